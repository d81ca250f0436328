// The conversation: turns, their rendering, one answer at a time. Text goes into text nodes alone, so that nothing a
// model writes is taken for markup.

let turns = []; // {role, text, thoughts, end: "whole"|"stopped"|"failed"|"running", note}
let running = null; // the AbortController of the answer that is being written
let keyWanted = null; // what to do once a key is given

const announce = (text) => (byId("announce").textContent = text);

function make(tag, props = {}, ...children) {
  const element = Object.assign(document.createElement(tag), props);
  element.append(...children);
  return element;
}

// A line of an answer: headings, points of lists, `code` and **strong** words look like it. Elements are made here, and
// hold text alone.
function appendLine(element, line) {
  const heading = /^#{1,6} +(.*)$/.exec(line);
  if (heading) {
    element.append(make("strong", { className: "heading", textContent: heading[1] }));
    return;
  }
  const parts = line.replace(/^(\s*)[-*] /, "$1• ").split(/(`[^`]+`|\*\*[^*]+\*\*)/);
  for (const part of parts) {
    if (/^`.+`$/.test(part)) element.append(make("code", { textContent: part.slice(1, -1) }));
    else if (/^\*\*.+\*\*$/.test(part)) element.append(make("strong", { textContent: part.slice(2, -2) }));
    else if (part) element.append(part);
  }
}

// Text with its fenced code apart; `plain`: as it was typed.
function fillText(element, text, plain) {
  const parts = text.split(/^```[^\n]*\n/m);
  element.replaceChildren();
  for (let i = 0; i < parts.length; ++i) {
    if (i % 2 !== 0) {
      element.append(make("pre", { tabIndex: 0, textContent: parts[i].replace(/\n$/, "") }));
    } else if (plain) {
      element.append(parts[i]);
    } else {
      parts[i].split("\n").forEach((line, at) => {
        if (at > 0) element.append("\n");
        appendLine(element, line);
      });
    }
  }
}

function fillTurn(turn) {
  const { element } = turn;
  element.dataset.end = turn.end;
  if (turn.thoughts) {
    if (!turn.thoughtsElement) {
      turn.thoughtsElement = make("div", { className: "text-thoughts" });
      turn.thoughtsElement.style.whiteSpace = "pre-wrap";
      turn.details = make("details", { className: "thoughts", open: true }, make("summary", { textContent: "Reasoning" }), turn.thoughtsElement);
      element.insertBefore(turn.details, turn.textElement);
    }
    turn.thoughtsElement.textContent = turn.thoughts;
    if (turn.text && turn.details.open && !turn.folded) {
      turn.details.open = false; // once: whoever opens it again wants to read it
      turn.folded = true;
    }
  }
  fillText(turn.textElement, turn.text.trimStart(), turn.role === "user");
  if (turn.role === "user") return;
  const foot = turn.footElement;
  foot.replaceChildren();
  const words = { stopped: "Stopped", failed: "Failed" }[turn.end];
  if (words) foot.append(make("span", { className: "mark", textContent: words + (turn.why ? ": " + turn.why : "") }));
  if (turn.note) foot.append(make("span", { textContent: turn.note }));
  if (turn.end === "running") return;
  if (turn.text && navigator.clipboard) { // browsers have none on plain HTTP of another machine
    const copy = make("button", { type: "button", textContent: "Copy" });
    copy.onclick = () => navigator.clipboard.writeText(turn.text).then(() => announce("Copied"));
    foot.append(copy);
  }
  if (turn === turns[turns.length - 1]) {
    const retry = make("button", { type: "button", className: "retry", textContent: "Retry" });
    retry.onclick = () => {
      dropTurn();
      answer();
      byId("question").focus();
    };
    foot.append(retry);
  }
}

function addTurn(role, text, more = {}) {
  const before = turns[turns.length - 1];
  const turn = { role, text, thoughts: "", end: "whole", note: "", ...more };
  const who = role === "user" ? "You" : "Answer";
  turn.textElement = make("div", { className: "text" });
  turn.footElement = make("div", { className: "foot" });
  turn.element = make("article", { className: "turn " + role }, make("h3", { textContent: who }), turn.textElement, turn.footElement);
  turn.element.setAttribute("aria-label", who);
  turns.push(turn);
  byId("log").append(turn.element);
  fillTurn(turn);
  if (before) fillTurn(before); // its Retry goes: only the last answer can be made again
  byId("log").scrollTop = byId("log").scrollHeight;
  return turn;
}

function dropTurn() {
  turns.pop().element.remove();
}

function saveTurns() {
  const kept = turns.map(({ role, text, thoughts, end, note, why }) => ({ role, text, thoughts, end, note, why }));
  try {
    sessionStorage.setItem("sluice-turns", JSON.stringify(kept));
  } catch {
    // Full: the conversation goes on and does not outlive a reload.
  }
}

function loadTurns() {
  try {
    for (const turn of JSON.parse(sessionStorage.getItem("sluice-turns") || "[]")) {
      addTurn(turn.role, turn.text, { ...turn, end: turn.end === "running" ? "stopped" : turn.end, folded: true });
    }
    for (const turn of turns) if (turn.details) turn.details.open = false;
  } catch {
    sessionStorage.removeItem("sluice-turns");
  }
}

// What is sent: the system prompt, and all turns that say something.
function messagesNow() {
  const system = byId("system").value.trim();
  const said = turns.filter((turn) => turn.text && turn.end !== "running").map(({ role, text }) => ({ role, content: text }));
  return system ? [{ role: "system", content: system }, ...said] : said;
}

function takeChunk(turn, chunk) {
  const choice = chunk.choices && chunk.choices[0];
  const delta = choice ? choice.delta : {};
  turn.thoughts += delta.reasoning_content || "";
  turn.text += delta.content || "";
  for (const call of delta.tool_calls || []) {
    turn.text += (call.function.name ? "\n[calls " + call.function.name + "] " : "") + (call.function.arguments || "");
  }
  if (choice && choice.finish_reason) turn.finish = choice.finish_reason;
  if (chunk.timings) turn.timings = chunk.timings;
  if (chunk.usage) turn.usage = chunk.usage;
}

function noteOf(turn) {
  const parts = [];
  if (turn.usage) parts.push(turn.usage.completion_tokens + " tokens");
  if (turn.timings && turn.timings.predicted_per_second) parts.push(turn.timings.predicted_per_second.toFixed(1) + " a second");
  if (turn.timings && turn.timings.stall_ms >= 1) parts.push((turn.timings.stall_ms / 1000).toFixed(2) + " s waiting for experts");
  if (turn.finish === "length") parts.push("cut: no room or tokens left");
  return parts.join(" · ");
}

function setBusy(controller) {
  running = controller;
  byId("send").hidden = controller !== null;
  byId("stop").hidden = controller === null;
}

async function answer() {
  const controller = new AbortController();
  setBusy(controller);
  const log = byId("log");
  const messages = messagesNow();
  const turn = addTurn("assistant", "", { end: "running" });
  announce("Answering");
  let frame = 0; // rendering is once a frame, however fast tokens come
  const render = () => {
    frame = 0;
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    fillTurn(turn);
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  try {
    await streamChat({ ...settingsNow(), messages }, controller.signal, (chunk) => {
      takeChunk(turn, chunk);
      frame = frame || requestAnimationFrame(render);
    });
    turn.end = "whole";
  } catch (error) {
    turn.end = error.name === "AbortError" ? "stopped" : "failed";
    turn.why = turn.end === "failed" ? error.message + (error.seconds ? "; try again in " + error.seconds + " s" : "") : "";
    if (error.kind === "key") {
      askKey(error.message, () => {
        if (turns[turns.length - 1] === turn && !running) {
          dropTurn();
          answer();
        }
      });
    }
  }
  cancelAnimationFrame(frame);
  turn.note = noteOf(turn);
  render();
  setBusy(null);
  saveTurns();
  announce({ whole: "Answer: " + turn.text, stopped: "Stopped", failed: "Failed: " + turn.why }[turn.end]);
}

function send() {
  const text = byId("question").value.trim();
  if (!text || running) return;
  byId("question").value = "";
  addTurn("user", text);
  answer();
}

function stopAnswer() {
  if (running) running.abort();
}

function askKey(why, then) {
  keyWanted = then;
  byId("key-why").textContent = why[0].toUpperCase() + why.slice(1) + ". It is kept for this tab until it is closed, and sent to this server alone.";
  byId("key").value = "";
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}
