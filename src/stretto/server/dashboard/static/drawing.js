// The two canvases: lanes (a slot each, time to the left) and the rows of each tick.

import { WINDOW_S } from "./timeline.js";

const hues = new Map();

export function hueOf(stream) {
  // Neighbours in time get colours far apart: each new request turns the wheel by the golden angle.
  if (!hues.has(stream)) {
    hues.set(stream, (hues.size * 137.508 + 205) % 360);
    if (hues.size > 2000) hues.delete(hues.keys().next().value);
  }
  return hues.get(stream);
}

function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  const [saturation, lightness] = [read("--saturation"), read("--lightness")];
  return {
    text: read("--text"), quiet: read("--quiet"), line: read("--line"),
    colour: (stream, alpha = 1) => `hsl(${hueOf(stream)} ${saturation} ${lightness} / ${alpha})`,
    accepted: (stream) => `hsl(${hueOf(stream)} ${saturation} ${read("--accepted-lightness")})`,
  };
}

function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (height) canvas.style.height = `${height}px`;
  const tall = height || canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(tall * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(tall * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, tall);
  return { pen, width, height: tall };
}

export function drawLanes(canvas, timeline, laneHeight) {
  const { pen, width } = prepare(canvas, Math.max(1, timeline.slots.length) * laneHeight);
  const paint = theme();
  const now = timeline.now;
  const x = (at) => width - ((now - at) / WINDOW_S) * width;
  pen.strokeStyle = paint.line;
  for (let lane = 1; lane < timeline.slots.length; lane++) line(pen, 0, lane * laneHeight, width, lane * laneHeight);
  for (let back = 5; back < WINDOW_S; back += 5) line(pen, x(now - back), 0, x(now - back), canvas.clientHeight);
  pen.font = "10px system-ui, sans-serif";
  pen.textBaseline = "middle";
  for (const tick of timeline.ticks) {
    const left = x(tick.at - tick.seconds);
    const wide = Math.max(1.2, x(tick.at) - left + 0.4);
    if (left + wide < 0) continue;
    for (const span of tick.spans) drawSpan(pen, paint, span, left, wide, laneHeight);
  }
  for (const hit of timeline.reused) drawReused(pen, paint, hit, x(hit.at), laneHeight);
  pen.fillStyle = paint.text;
  for (const end of timeline.ends) pen.fillRect(x(end.at), end.slot * laneHeight + 5, 2.5, laneHeight - 10);
}

export function drawEncoder(canvas, timeline, laneHeight) {
  const { pen, width } = prepare(canvas, laneHeight);
  const paint = theme();
  const now = timeline.now;
  const x = (at) => width - ((now - at) / WINDOW_S) * width;
  pen.font = "10px system-ui, sans-serif";
  pen.textBaseline = "middle";
  for (const batch of timeline.encodings) {
    const left = x(batch.at - batch.seconds);
    const wide = Math.max(2, x(batch.at) - left);
    pen.fillStyle = paint.colour(batch.streams[0] || "", 0.75);
    pen.fillRect(left, 4, wide, laneHeight - 8);
    if (wide > 22) {
      pen.fillStyle = paint.text;
      pen.fillText(String(batch.rows), left + 4, laneHeight / 2);
    }
  }
}

function drawSpan(pen, paint, span, left, wide, laneHeight) {
  const top = span.slot * laneHeight;
  pen.fillStyle = paint.colour(span.stream_id, span.decode ? 0.95 : 0.75);
  if (span.decode) {
    pen.fillRect(left, top + laneHeight * 0.36, wide, laneHeight * 0.28);
    if (span.accepted) {
      const tall = laneHeight * Math.min(0.3, 0.06 * span.accepted);
      pen.fillStyle = paint.accepted(span.stream_id);
      pen.fillRect(left, top + laneHeight * 0.36 - tall, wide, tall);
    }
    return;
  }
  pen.fillRect(left, top + 4, wide, laneHeight - 8);
  if (wide > 22) {
    pen.fillStyle = paint.text;
    pen.fillText(String(span.rows), left + 4, top + laneHeight / 2);
  }
}

function drawReused(pen, paint, hit, at, laneHeight) {
  const wide = 12 + 6 * Math.log2(1 + hit.tokens / 64);
  const top = hit.slot * laneHeight + 4;
  const left = at - wide;
  pen.save();
  pen.beginPath();
  pen.rect(left, top, wide, laneHeight - 8);
  pen.clip();
  pen.strokeStyle = paint.colour(hit.stream);
  for (let step = -laneHeight; step < wide; step += 5) line(pen, left + step, top + laneHeight - 8, left + step + laneHeight, top - 4);
  pen.restore();
  pen.strokeStyle = paint.colour(hit.stream);
  pen.strokeRect(left, top, wide, laneHeight - 8);
  pen.fillStyle = paint.text;
  pen.fillText(String(Math.round(hit.tokens)), left + 3, top + (laneHeight - 8) / 2);
}

export function shadesOf(span, paint) {
  // The rows of a decode span by what became of them: its own, accepted drafts, rejected drafts.
  const accepted = Math.min(span.accepted || 0, span.rows - 1);
  return [
    [1, paint.colour(span.stream_id, 0.95)],
    [accepted, paint.accepted(span.stream_id)],
    [span.rows - 1 - accepted, paint.colour(span.stream_id, 0.3)],
  ].filter(([rows]) => rows > 0);
}

export function drawBatches(canvas, timeline) {
  const { pen, width, height } = prepare(canvas, 0);
  const paint = theme();
  const bar = 7;
  const shown = timeline.ticks.slice(-Math.floor(width / bar));
  const rowsOf = (tick, decode) => tick.spans.reduce((sum, span) => sum + (span.decode === decode ? span.rows : 0), 0);
  // Decode rows all have one height. Prompt rows get a root scale above them: 16 stay visible beside 512.
  const decodeMost = Math.max(1, ...shown.map((tick) => rowsOf(tick, true)));
  const unit = Math.min(7, (height * 0.4) / decodeMost);
  const promptMost = Math.max(64, ...shown.map((tick) => rowsOf(tick, false)));
  const scale = (rows) => (height * 0.85 - decodeMost * unit) * Math.sqrt(rows / promptMost);
  shown.forEach((tick, index) => {
    const left = width - (shown.length - index) * bar;
    let top = height;
    for (const span of tick.spans.filter((one) => one.decode)) {
      for (const [rows, style] of shadesOf(span, paint)) {
        pen.fillStyle = style;
        pen.fillRect(left, top - rows * unit, bar - 1.5, Math.max(0.8, rows * unit - 0.6));
        top -= rows * unit;
      }
    }
    let below = 0;
    for (const span of tick.spans.filter((one) => !one.decode)) {
      pen.fillStyle = paint.colour(span.stream_id, 0.6);
      const [from, to] = [scale(below), scale(below + span.rows)];
      pen.fillRect(left, top - to, bar - 1.5, Math.max(1, to - from - 0.6));
      below += span.rows;
    }
  });
  pen.fillStyle = paint.quiet;
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "top";
  const last = shown.at(-1);
  if (last) {
    const accepted = last.spans.reduce((sum, span) => sum + (span.accepted || 0), 0);
    const drafts = accepted ? ` (${accepted} accepted drafts)` : "";
    const rows = `${rowsOf(last, true)} decode${drafts} + ${rowsOf(last, false)} prompt rows`;
    pen.fillText(`last tick: ${rows}, ${(last.seconds * 1000).toFixed(1)} ms`, 6, 4);
  } else {
    pen.fillText("no ticks yet: send a message", 6, 4);
  }
}

function line(pen, x0, y0, x1, y1) {
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
}
