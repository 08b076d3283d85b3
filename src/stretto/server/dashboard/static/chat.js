// The playground: a conversation with the first model, streamed; or four answers at once, in one batch.

import { eventsOf, failureOf, request } from "./http.js";
import { imageOf, setModalities, startPictures, takePictures } from "./pictures.js";

const field = (id) => document.getElementById(id);
const history = [];
let model = "";
let running = null;  // the AbortController of the running answer

export function setModel(name, modalities) { model = name; setModalities(modalities); }

export function startChat() {
  startPictures();
  field("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(1); });
  field("send-four").addEventListener("click", () => ask(4));
  field("stop").addEventListener("click", () => running?.abort());
  field("clear").addEventListener("click", clear);
  field("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask(1); }
  });
}

function clear() {
  running?.abort();
  history.length = 0;
  field("messages").replaceChildren();
}

async function ask(count) {
  const text = field("prompt").value.trim();
  if (!text || running) return;
  field("prompt").value = "";
  const pictures = takePictures();
  const said = show("user");
  said.body.textContent = text;
  said.item.prepend(...pictures.map(imageOf));
  history.push({ role: "user", content: contentOf(text, pictures) });
  running = new AbortController();
  setBusy(true);
  const row = document.createElement("li");
  row.className = count > 1 ? "answers" : "";
  field("messages").append(row);
  const answers = await Promise.all(Array.from({ length: count }, (_, index) => answer(row, index, running.signal)));
  const first = answers.find((content) => content);
  if (first) history.push({ role: "assistant", content: first });
  else history.pop();
  running = null;
  setBusy(false);
}

function contentOf(text, pictures) {
  if (!pictures.length) return text;
  return [...pictures.map(({ url }) => ({ type: "image_url", image_url: { url } })), { type: "text", text }];
}

async function answer(row, index, signal) {
  const view = show("assistant", row);
  const started = performance.now();
  const seen = { text: "", first: 0, usage: null, reason: "" };
  try {
    const response = await request("v1/chat/completions", {
      method: "POST", signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body(index)),
    });
    if (!response.ok) throw new Error(await failureOf(response));
    for await (const { data } of eventsOf(response)) {
      if (data === "[DONE]") break;
      take(JSON.parse(data), seen, view, started);
    }
  } catch (error) {
    if (error.name !== "AbortError") { view.item.classList.add("failed"); view.body.textContent += error.message; return ""; }
    seen.reason = "stopped";
  }
  view.foot.textContent = summary(seen, started);
  return seen.text;
}

function body(index) {
  const system = field("system").value.trim();
  return {
    model, stream: true, stream_options: { include_usage: true },
    messages: [...(system ? [{ role: "system", content: system }] : []), ...history],
    temperature: Number(field("temperature").value), max_completion_tokens: Number(field("max-tokens").value),
    priority: field("priority").value, ...(index ? { seed: 1000 + index } : {}),
  };
}

function take(chunk, seen, view, started) {
  if (chunk.error) throw new Error(chunk.error.message);
  if (chunk.usage) seen.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  seen.reason = choice.finish_reason || seen.reason;
  const { content = "", reasoning_content = "" } = choice.delta || {};
  if ((content || reasoning_content) && !seen.first) seen.first = performance.now() - started;
  if (reasoning_content) view.reasoning.textContent += reasoning_content;
  if (content) { seen.text += content; view.body.textContent = seen.text; }
  view.item.scrollIntoView({ block: "nearest" });
}

function summary(seen, started) {
  const seconds = (performance.now() - started) / 1000;
  const usage = seen.usage;
  const parts = [seen.reason];
  if (seen.first) parts.push(`first token ${(seen.first / 1000).toFixed(2)} s`);
  if (usage) {
    const after = seconds - seen.first / 1000;
    parts.push(`${usage.completion_tokens} tokens`);
    if (after > 0 && usage.completion_tokens > 1) parts.push(`${((usage.completion_tokens - 1) / after).toFixed(1)} tok/s`);
    const cached = usage.prompt_tokens_details?.cached_tokens || 0;
    parts.push(`prompt ${usage.prompt_tokens}${cached ? `, ${cached} of it reused` : ""}`);
  }
  return parts.filter(Boolean).join(" · ");
}

function show(role, parent = field("messages")) {
  const item = document.createElement(parent.id === "messages" ? "li" : "div");
  item.className = `message ${role}`;
  const [reasoning, text, foot] = ["span", "span", "footer"].map((tag) => item.appendChild(document.createElement(tag)));
  reasoning.className = "reasoning";
  parent.append(item);
  item.scrollIntoView({ block: "nearest" });
  return { item, reasoning, body: text, foot };
}

function setBusy(busy) {
  for (const id of ["send", "send-four"]) field(id).disabled = busy;
  field("stop").disabled = !busy;
}
