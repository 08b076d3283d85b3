// Requests with the visitor's key, and server-sent events read from a fetch: EventSource cannot send a key.

let key = sessionStorage.getItem("stretto-key") || "";
let askForKey = () => {};

export function onKeyNeeded(handler) { askForKey = handler; }

export function useKey(value) {
  key = value.trim();
  sessionStorage.setItem("stretto-key", key);
}

export async function request(path, options = {}) {
  const headers = new Headers(options.headers || {});
  if (key) headers.set("Authorization", `Bearer ${key}`);
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401) askForKey();
  return response;
}

export async function failureOf(response) {
  // A readable line from an error reply of any shape.
  try {
    const { error } = await response.json();
    return error.message || String(error);
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

export async function* eventsOf(response) {
  // {event, data} for each event; comments (pings) are skipped.
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const found = parsed(rest.slice(0, end));
      rest = rest.slice(end + 2);
      if (found) yield found;
    }
  }
}

function parsed(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
