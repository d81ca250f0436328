"use strict";
// What the page asks of its server: answers as streams, looks at health and metrics, and the key for both. All paths
// are relative, so that the page works behind a proxy's prefix.

const byId = (id) => document.getElementById(id);

const keys = {
  get: () => sessionStorage.getItem("sluice-key") || "",
  set: (key) => (key ? sessionStorage.setItem("sluice-key", key) : sessionStorage.removeItem("sluice-key")),
  headers: () => (keys.get() ? { Authorization: "Bearer " + keys.get() } : {}),
};

// A failure with words for people. `kind`: "away" (no answer), "key" (one is needed), "busy", "failed".
class AskError extends Error {
  constructor(kind, message, seconds = 0) {
    super(message);
    this.kind = kind;
    this.seconds = seconds;
  }
}

async function refusalOf(answer) {
  let message = "the server answered with status " + answer.status;
  try {
    message = JSON.parse(await answer.text()).error.message || message;
  } catch {
    // A proxy's page, say: the status has to do.
  }
  if (answer.status === 401) message = keys.get() ? "this key is not known here" : "a key is needed";
  const kind = answer.status === 401 ? "key" : answer.status === 429 ? "busy" : "failed";
  return new AskError(kind, message, Number(answer.headers.get("retry-after")) || 0);
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...options, cache: "no-store", headers: { ...options.headers, ...keys.headers() } });
  } catch (error) {
    throw error.name === "AbortError" ? error : new AskError("away", "the server does not answer");
  }
  if (!answer.ok) throw await refusalOf(answer);
  return answer;
}

// The data of a stream of server-sent events, as their blocks become whole. Feed it text, take what is there.
class EventReader {
  constructor() {
    this.rest = "";
  }
  push(text) {
    const blocks = (this.rest + text).split("\n\n");
    this.rest = blocks.pop();
    return blocks.flatMap((block) => block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)));
  }
}

// Streams one chat answer; `onChunk` gets each parsed chunk. Throws AskError, or AbortError once `signal` says so.
async function streamChat(body, signal, onChunk) {
  const answer = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const events = new EventReader();
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      throw error.name === "AbortError" ? error : new AskError("failed", "the connection broke in the middle of the answer");
    }
    if (part.done) throw new AskError("failed", "the answer ended before its end");
    for (const data of events.push(part.value)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new AskError("failed", chunk.error.message);
      onChunk(chunk);
    }
  }
}

// Prometheus' text as {name: value}, samples with labels as {'name{tier="ssd"}': value}.
function parseMetrics(text) {
  const values = {};
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+(?:\{[^}]*\})?) (\S+)$/.exec(line);
    if (match) values[match[1]] = Number(match[2]);
  }
  return values;
}

function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    ++unit;
  }
  return (unit === 0 || bytes >= 100 ? bytes.toFixed(0) : bytes.toFixed(1)) + " " + units[unit];
}
