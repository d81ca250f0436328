// The settings' panel, the live view, the server's state, and what starts them all.

const PRESETS = {
  model: {},
  exact: { temperature: 0 },
  even: { temperature: 0.7, top_p: 0.9 },
  free: { temperature: 1, top_p: 0.95, min_p: 0.02 },
};
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens"];
const KEPT = ["preset", ...NUMBERS, "thinking", "system"];
const OF_PRESET = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];

// The members of a request: only what is set, so that the model's own defaults hold elsewhere.
function settingsNow() {
  const body = models.length > 1 ? { model: byId("model").value } : {};
  for (const name of NUMBERS) {
    const { value, validity } = byId(name);
    if (value !== "" && validity.valid) body[name] = Number(value);
  }
  const thinking = byId("thinking").value;
  if (thinking) body.chat_template_kwargs = { enable_thinking: thinking === "on" };
  return body;
}

function saveSettings() {
  sessionStorage.setItem("sluice-settings", JSON.stringify(Object.fromEntries(KEPT.map((id) => [id, byId(id).value]))));
}

function loadSettings() {
  try {
    const kept = JSON.parse(sessionStorage.getItem("sluice-settings") || "{}");
    for (const id of KEPT) if (typeof kept[id] === "string") byId(id).value = kept[id];
  } catch {
    sessionStorage.removeItem("sluice-settings");
  }
}

function takePreset() {
  const preset = PRESETS[byId("preset").value];
  if (preset) for (const name of OF_PRESET) byId(name).value = preset[name] ?? "";
  saveSettings();
}

function showState(state, text, notice = "") {
  const pill = byId("state");
  if (pill.textContent !== text) pill.textContent = text; // a status that is the same is not read out again
  pill.dataset.state = state;
  const box = byId("notice");
  if (box.textContent !== notice) box.textContent = notice;
  box.hidden = notice === "";
}

async function lookAtHealth() {
  try {
    await ask("health");
    showState("good", "serving");
    if (!byId("model").textContent) await learnModel();
  } catch (error) {
    if (error.kind === "away") {
      showState("bad", "server away", "The server does not answer. This page looks for it every two seconds; what was said is kept.");
    } else {
      showState("wait", "not serving", "No answers for now: " + error.message + ". This page goes on by itself when the server does.");
    }
  }
}

let models = []; // as the server lists them
let modelBytes = 0;
function takeModel() {
  const model = models.find((one) => one.id === byId("model").value);
  byId("model").title = model.meta.family + ", context " + model.max_model_len + ", " + formatBytes(model.meta.size);
  modelBytes = model.meta.size;
  document.title = model.id + " · Sluice";
  before = null;
}

async function learnModel() {
  try {
    models = (await (await ask("v1/models")).json()).data;
    byId("model").replaceChildren(...models.map(({ id }) => make("option", { value: id, textContent: id })));
    byId("model").disabled = models.length < 2;
    takeModel();
  } catch (error) {
    if (error.kind === "key" && !byId("key-dialog").open && !keyRefused) {
      askKey(error.message, () => {});
    }
  }
}

const percent = (part, whole) => (whole > 0 ? ((100 * part) / whole).toFixed(1) + " %" : "–");
const looks = []; // rates of generation, the newest last
let before = null;

function showTiers(now, seconds) {
  const of = (part) => now['inferd_memory_bytes{part="' + part + '"}'] || 0;
  const rate = (tier) => {
    const name = 'inferd_weight_bytes_total{tier="' + tier + '"}';
    return before ? Math.max(0, now[name] - before.values[name]) / seconds : 0;
  };
  const tiers = [
    ["Device: weights' slots", of("device_slots"), modelBytes, of("device_slots") > 0],
    ["DRAM: weights", of("weights"), modelBytes, true],
    ["DRAM: KV cache", of("kv") * now.inferd_kv_usage_ratio, of("kv"), true],
    ["DRAM: inferd's own", of("private"), 0, true],
  ];
  const rows = tiers.filter((tier) => tier[3]).map(([name, part, whole]) => {
    const row = make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: formatBytes(whole ? Math.min(part, whole) : part) + (whole ? " of " + formatBytes(whole) : "") }));
    if (whole) {
      const bar = make("progress", { max: whole, value: Math.min(part, whole) });
      bar.setAttribute("aria-label", name);
      row.append(bar);
    }
    return row;
  });
  for (const [name, tier] of [["SSD: read a second", "ssd"], ["Link: copied a second", "link"]]) {
    if (tier === "ssd" || of("device_slots") > 0) {
      rows.push(make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: formatBytes(rate(tier)) })));
    }
  }
  byId("tiers").replaceChildren(...rows);
}

function showLive(now) {
  const at = performance.now();
  const seconds = before ? (at - before.at) / 1000 : 0;
  const grown = (name) => (before ? Math.max(0, now[name] - before.values[name]) : 0);
  const rate = seconds > 0 ? grown("inferd_generation_tokens_total") / seconds : 0;
  looks.push(rate);
  if (looks.length > 60) looks.shift();
  const most = Math.max(1, ...looks);
  byId("spark-line").setAttribute("points", looks.map((value, i) => (120 - 2 * (looks.length - 1 - i)) + "," + (30 - (28 * value) / most)).join(" "));
  byId("live-rate").textContent = before ? rate.toFixed(1) : "–";
  byId("live-prompt").textContent = seconds > 0 ? (grown("inferd_prompt_tokens_total") / seconds).toFixed(1) : "–";
  // Of the last look where something ran, else since the start.
  const busy = grown("inferd_expert_requests_total") > 0;
  byId("live-hits").textContent = busy
    ? percent(grown("inferd_expert_hits_total"), grown("inferd_expert_requests_total"))
    : percent(now.inferd_expert_hits_total, now.inferd_expert_requests_total) + " so far";
  byId("live-stall").textContent = seconds > 0 ? percent(grown("inferd_expert_stall_seconds_total"), seconds) + " of the time" : "–";
  byId("live-load").textContent = now.inferd_requests_running + ", " + now.inferd_requests_waiting;
  byId("live-cached").textContent = percent(now.inferd_cached_prompt_tokens_total, now.inferd_prompt_tokens_total);
  showTiers(now, seconds || 1);
  before = { at, values: now };
}

async function lookAtMetrics() {
  const why = byId("live-why");
  try {
    const path = models.length > 1 ? "metrics/" + encodeURIComponent(byId("model").value) : "metrics";
    showLive(parseMetrics(await (await ask(path)).text()));
    why.hidden = true;
  } catch (error) {
    before = null;
    for (const value of byId("live").querySelectorAll("dd")) value.textContent = "–"; // old figures look like new ones
    why.textContent = error.kind === "key" ? "A key is needed to see this." : "No figures: " + error.message + ".";
    why.hidden = false;
  }
}

let keyRefused = false; // whoever closed the question for a key is not asked again until something is sent
async function lookEvery(milliseconds, look) {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((done) => setTimeout(done, milliseconds));
  }
}

function togglePanel(button, panel) {
  byId(button).onclick = () => {
    byId(panel).hidden = !byId(panel).hidden;
    byId(button).setAttribute("aria-expanded", String(!byId(panel).hidden));
  };
}

function wireKey() {
  const dialog = byId("key-dialog");
  byId("key-form").onsubmit = (event) => {
    event.preventDefault();
    keys.set(byId("key").value.trim());
    dialog.close();
    learnModel();
    lookAtMetrics();
    if (keyWanted) keyWanted();
    byId("question").focus();
  };
  byId("key-cancel").onclick = () => dialog.close();
  dialog.addEventListener("close", () => (keyRefused = !keys.get()));
  byId("change-key").onclick = () => askKey("A key for this server", () => {});
}

function wire() {
  byId("composer").onsubmit = (event) => {
    event.preventDefault();
    send();
  };
  byId("question").onkeydown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !byId("key-dialog").open) stopAnswer();
  });
  byId("stop").onclick = () => {
    stopAnswer();
    byId("question").focus();
  };
  byId("fresh").onclick = () => {
    stopAnswer();
    while (turns.length) dropTurn();
    saveTurns();
    announce("New chat");
    byId("question").focus();
  };
  byId("model").onchange = takeModel;
  byId("preset").onchange = takePreset;
  for (const id of KEPT.slice(1)) {
    byId(id).onchange = () => {
      if (OF_PRESET.includes(id)) byId("preset").value = "own";
      saveSettings();
    };
  }
  byId("reset").onclick = () => {
    for (const id of KEPT) byId(id).value = id === "preset" ? "model" : "";
    saveSettings();
  };
  togglePanel("show-settings", "settings");
  togglePanel("show-live", "live");
  wireKey();
}

wire();
loadSettings();
loadTurns();
if (matchMedia("(max-width: 50rem)").matches) byId("show-live").click();
lookEvery(2000, lookAtHealth);
lookEvery(2000, () => (byId("live").hidden ? Promise.resolve() : lookAtMetrics()));
