// The page's model of the scheduler: the ticks of the last seconds, the slots, and figures derived from them.
// Knows nothing about drawing. Times are seconds on the worker's clock.

export const WINDOW_S = 20;
const SAMPLES_MAX = 600;
const NOTES_MAX = 8;

export class Timeline {
  constructor() {
    this.slots = [];          // index -> {state, stream, tokens, rows}
    this.ticks = [];          // oldest first
    this.ends = [];           // {slot, at}
    this.reused = [];         // {slot, at, tokens, stream}
    this.encodings = [];      // batches of the encoder: {at, seconds, media, rows, streams}
    this.encodes = false;     // a model takes pictures or sounds
    this.encoded = 0;         // pictures and sounds so far
    this.notes = [];
    this.queue = { urgent: 0, default: 0, background: 0 };
    this.kv = 0;
    this.newest = 0;          // the worker's clock at the last tick
    this.heardAt = 0;         // this page's clock at that moment
    this.ttfts = [];
    this.gaps = [];
    this.slotOf = new Map();  // stream -> slot
    this.lastToken = new Map();
  }

  begin(models) {
    const slots = Math.max(1, ...models.map((model) => model.slots || 0));
    this.encodes = models.some((model) => (model.modalities || []).length > 1);
    while (this.slots.length < slots) this.slots.push({ state: "idle", stream: "", tokens: 0 });
  }

  add(ticks) {
    for (const tick of ticks) this.addTick(tick);
    this.heardAt = performance.now() / 1000;
    this.forget();
  }

  addEncodings(encodings) {
    for (const batch of encodings) {
      this.newest = Math.max(this.newest, batch.at_s);
      this.encoded += batch.media;
      this.encodings.push({ at: batch.at_s, seconds: batch.encode_s, media: batch.media, rows: batch.rows, streams: batch.streams || [] });
    }
  }

  addTick(tick) {
    this.newest = Math.max(this.newest, tick.at_s);
    const spans = tick.spans || [];
    for (const span of spans) this.addSpan(span, tick.at_s);
    for (const [name, stream, slot, value] of tick.notes || []) this.addNote(name, stream, slot, value, tick.at_s);
    for (const stream of tick.ends || []) this.end(stream, tick.at_s);
    for (const ttft of Object.values(tick.ttfts || {})) push(this.ttfts, ttft);
    this.queue = { urgent: 0, default: 0, background: 0, ...tick.queued };
    this.kv = tick.kv_used || 0;
    if (spans.length) this.ticks.push({ at: tick.at_s, seconds: tick.eval_s, spans });
    const busy = new Set(spans.map((span) => span.slot));
    for (const [index, slot] of this.slots.entries()) {
      if (!busy.has(index) && tick.active_slots === 0) slot.state = "idle";
    }
  }

  addSpan(span, at) {
    while (this.slots.length <= span.slot) this.slots.push({ state: "idle", stream: "", tokens: 0 });
    const slot = this.slots[span.slot];
    if (slot.stream !== span.stream_id || slot.state === "idle") slot.tokens = 0;
    slot.stream = span.stream_id;
    slot.state = span.decode ? "generating" : "prefilling";
    this.slotOf.set(span.stream_id, span.slot);
    if (!span.decode) return;
    slot.tokens += tokensOf(span);
    const before = this.lastToken.get(span.stream_id);
    if (before !== undefined) push(this.gaps, at - before);
    this.lastToken.set(span.stream_id, at);
  }

  addNote(name, stream, slot, value, at) {
    if (name === "cache-hit" && value > 0) this.reused.push({ slot, at, tokens: value, stream });
    if (name === "slot-started") return;  // the lanes show it
    this.notes.unshift({ name, stream, slot, value });
    this.notes.length = Math.min(this.notes.length, NOTES_MAX);
  }

  end(stream, at) {
    const index = this.slotOf.get(stream);
    this.slotOf.delete(stream);
    this.lastToken.delete(stream);
    if (index === undefined) return;
    this.ends.push({ slot: index, at });
    if (this.slots[index].stream === stream) this.slots[index].state = "idle";
  }

  forget() {
    const oldest = this.newest - WINDOW_S - 2;
    while (this.ticks.length && this.ticks[0].at < oldest) this.ticks.shift();
    while (this.ends.length && this.ends[0].at < oldest) this.ends.shift();
    while (this.encodings.length && this.encodings[0].at < oldest) this.encodings.shift();
    while (this.reused.length && this.reused[0].at < oldest) this.reused.shift();
  }

  get now() {
    // Estimate of the worker's clock, so that lanes move smoothly between two messages.
    return this.heardAt ? this.newest + (performance.now() / 1000 - this.heardAt) : 0;
  }

  get busy() { return this.slots.filter((slot) => slot.state !== "idle").length; }

  rate() {
    // Tokens per second over the last two seconds of ticks.
    const since = this.now - 2;
    let tokens = 0;
    for (let at = this.ticks.length - 1; at >= 0 && this.ticks[at].at > since; at--) {
      for (const span of this.ticks[at].spans) tokens += tokensOf(span);
    }
    return tokens / 2;
  }
}

export function tokensOf(span) {
  // A decode span gives one token, and one for each accepted draft; its other rows were drafts in vain.
  return span.decode ? 1 + (span.accepted || 0) : 0;
}

export function percentile(values, share) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

function push(samples, value) {
  samples.push(value);
  if (samples.length > SAMPLES_MAX) samples.shift();
}
