// Connects the page: scheduler events to the timeline, the timeline to figures, lanes and bars.

import { setModel, startChat } from "./chat.js";
import { drawBatches, drawEncoder, drawLanes, hueOf } from "./drawing.js";
import { eventsOf, onKeyNeeded, request, useKey } from "./http.js";
import { percentile, Timeline, WINDOW_S } from "./timeline.js";

const field = (id) => document.getElementById(id);
const timeline = new Timeline();
const FRAME_MS = 50;
const FIGURES_MS = 500;
let drawnFigures = 0;

function setHealth(state, text) {
  field("health").dataset.state = state;
  field("health").textContent = text;
}

async function follow() {
  // Reads scheduler events forever: reconnects with increasing delays.
  for (let wait = 500; ; wait = Math.min(wait * 2, 8000)) {
    try {
      const response = await request("events");
      if (response.ok) {
        wait = 500;
        for await (const { event, data } of eventsOf(response)) handle(event, JSON.parse(data));
      }
      setHealth("lost", response.status === 401 ? "needs a key" : "connection lost");
    } catch {
      setHealth("lost", "connection lost");
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

function handle(event, data) {
  if (event === "hello") {
    timeline.begin(data.models);
    const served = data.models.find((model) => model.loaded) || data.models[0];
    if (served) { setModel(served.id, served.modalities); describe(served); }
  } else if (event === "health") {
    setHealth(data.ready ? "ready" : "not-ready", data.ready ? "ready" : data.reason || "not ready");
  } else if (event === "ticks") {
    timeline.addEncodings(data.encodings || []);
    timeline.add(data.ticks);
  }
}

function describe(model) {
  const parts = [model.id];
  if (model.slots) parts.push(`${model.slots} slots × ${model.context_window} tokens`);
  field("model").textContent = parts.join(" · ");
}

function frame() {
  if (!document.hidden) {
    const height = parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--lane-height"));
    if (timeline.now - timeline.newest < WINDOW_S + 1 || !timeline.heardAt) {
      drawLanes(field("lane-canvas"), timeline, height);
      if (timeline.encodes) drawEncoder(field("encoder-canvas"), timeline, height);
      drawBatches(field("batch-canvas"), timeline);
    }
    if (performance.now() - drawnFigures > FIGURES_MS || timeline.busy) showFigures();
  }
  setTimeout(() => requestAnimationFrame(frame), FRAME_MS);
}

function showFigures() {
  drawnFigures = performance.now();
  const pair = (values) => {
    const [middle, high] = [percentile(values, 0.5), percentile(values, 0.95)];
    return middle === null ? "–" : `${milliseconds(middle)} / ${milliseconds(high)}`;
  };
  field("figure-rate").textContent = timeline.rate().toFixed(timeline.rate() < 10 ? 1 : 0);
  field("figure-ttft").textContent = pair(timeline.ttfts);
  field("figure-gap").textContent = pair(timeline.gaps);
  field("figure-slots").textContent = `${timeline.busy} of ${timeline.slots.length}`;
  field("figure-queue").textContent = `${timeline.queue.urgent} / ${timeline.queue.default} / ${timeline.queue.background}`;
  field("figure-kv").textContent = `${(100 * timeline.kv).toFixed(1)} %`;
  showLabels();
  showEncoder();
  showNotes();
}

function milliseconds(seconds) {
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(2)} s`;
}

function showLabels() {
  const list = field("lane-labels");
  while (list.children.length < timeline.slots.length) {
    const item = list.appendChild(document.createElement("li"));
    item.className = "lane";
    item.append(document.createElement("span"), document.createElement("span"));
    item.lastChild.className = "detail";
  }
  timeline.slots.forEach((slot, index) => {
    const item = list.children[index];
    item.dataset.slot = index;
    item.dataset.state = slot.state;
    item.dataset.stream = slot.state === "idle" ? "" : slot.stream;
    item.firstChild.textContent = `slot ${index} · ${slot.state}`;
    item.lastChild.textContent = slot.state === "idle" ? "" : `${slot.tokens} tokens`;
    item.style.borderLeft = slot.state === "idle" ? "" : `4px solid hsl(${hueOf(slot.stream)} 60% 55%)`;
    item.style.paddingLeft = slot.state === "idle" ? "" : ".4rem";
  });
}

function showEncoder() {
  field("encoder").hidden = !timeline.encodes;
  field("encoder").dataset.encoded = timeline.encoded;
  const last = timeline.encodings.at(-1);
  field("encoder-detail").textContent = last ? `${last.rows} rows in ${milliseconds(last.seconds)}` : "";
}

function showNotes() {
  field("notes").replaceChildren(...timeline.notes.map((note) => {
    const item = document.createElement("li");
    const name = document.createElement("b");
    name.textContent = note.name;
    item.append(name, note.slot >= 0 ? ` · slot ${note.slot}` : "", note.value ? ` · ${Math.round(note.value)}` : "");
    return item;
  }));
}

onKeyNeeded(() => { field("key").hidden = false; });
field("key").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(field("key-field").value);
  field("key").hidden = true;
});
startChat();
follow();
frame();
