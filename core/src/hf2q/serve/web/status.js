// The status of the server, asked for each second while somebody can see it.

import { call } from "./api.js";
import { make } from "./markdown.js";
import { bytes, count, rate, seconds } from "./units.js";

const EVERY = 1000;
const panel = document.getElementById("status");
const facts = document.getElementById("facts");
const slots = document.getElementById("slots");
const stale = document.getElementById("stale");
const pill = document.getElementById("ready");
const rows = new Map();
let timer = null;
let asking = false;

export function wire() {
  const button = document.getElementById("show-status");
  const narrow = matchMedia("(max-width: 760px)");
  const show = (yes) => {
    panel.hidden = !yes;
    button.setAttribute("aria-expanded", String(yes));
  };
  show(!narrow.matches);
  narrow.addEventListener("change", () => show(!narrow.matches));
  button.addEventListener("click", () => show(panel.hidden));
  document.addEventListener("visibilitychange", schedule);
  tick();
}

function schedule() {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(tick, EVERY);
}

async function tick() {
  if (asking) return;
  asking = true;
  try {
    const response = await call("/hf2q/v1/status", { signal: AbortSignal.timeout(5000), ask: false });
    show(await response.json());
    stale.hidden = true;
    panel.classList.remove("old");
  } catch (error) {
    pill.textContent = error.status === 401 ? "needs a key" : "not reached";
    pill.dataset.kind = "bad";
    stale.textContent = error.status ? error.message : "The server is not reached; trying again.";
    stale.hidden = false;
    panel.classList.add("old");
  } finally {
    asking = false;
    schedule();
  }
}

function show(status) {
  pill.textContent = status.ready ? "ready" : status.detail;
  pill.dataset.kind = status.ready ? "good" : "busy";
  const shown = { Up: seconds(status.uptime_seconds) };
  const several = status.models.length > 1;
  const seen = new Set();
  for (const { id, engine } of status.models) {
    if (!engine) continue;
    const prefix = several ? `${id}: ` : "";
    shown[`${prefix}Waiting`] = `${engine.queued} of ${engine.queue_capacity}`;
    shown[`${prefix}Caches`] = bytes(engine.kv_bytes) + (engine.kv_budget ? ` of ${bytes(engine.kv_budget)}` : "");
    shown[`${prefix}Prompts`] = split(engine.prompt_tokens, engine.cached_tokens);
    shown[`${prefix}Generated`] = `${count(engine.generated_tokens)} tokens`;
    shown[`${prefix}Requests`] = ended(engine);
    for (const slot of engine.slots) seen.add(showSlot(id, slot, several));
  }
  facts.replaceChildren(...Object.entries(shown).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  for (const [key, row] of rows) {
    if (!seen.has(key)) {
      row.node.remove();
      rows.delete(key);
    }
  }
}

const split = (all, cached) => `${count(all)} tokens${cached ? `, ${count(cached)} cached` : ""}`;

function ended({ accepted, failed, cancelled, refused }) {
  const parts = [count(accepted)];
  for (const [value, name] of [[cancelled, "cancelled"], [failed, "failed"], [refused, "refused"]]) {
    if (value) parts.push(`${count(value)} ${name}`);
  }
  return parts.join(", ");
}

function showSlot(model, slot, several) {
  const key = `${model}/${slot.index}`;
  let row = rows.get(key);
  if (!row) {
    row = { name: make("span", { class: "name" }), phase: make("span", { class: "phase" }),
      bar: make("progress", { max: "1" }), text: make("p") };
    row.node = make("li", {}, make("div", { class: "title" }, row.name, row.phase), row.bar, row.text);
    rows.set(key, row);
    slots.append(row.node);
  }
  const busy = slot.phase !== "idle";
  row.name.textContent = `${several ? `${model} · ` : ""}Slot ${slot.index}`;
  row.phase.textContent = slot.phase;
  row.node.dataset.phase = slot.phase;
  row.node.title = busy ? `request ${slot.request_id}` : "";
  const done = slot.prompt_tokens ? slot.done_tokens / slot.prompt_tokens : 0;
  row.bar.value = slot.phase === "decode" ? 1 : done;
  row.bar.setAttribute("aria-label", `Prompt of slot ${slot.index}`);
  row.bar.hidden = row.text.hidden = !busy;
  row.text.textContent = busy ? work(slot, done) : "";
  return key;
}

function work(slot, done) {
  const fresh = slot.prompt_tokens - slot.cached_tokens;
  const parts = [`${count(slot.cached_tokens)} cached + ${count(fresh)} new`];
  if (slot.phase === "decode") parts.push(`${count(slot.generated)} generated`);
  else parts.push(`${Math.floor(done * 100)} %`);
  if (slot.rate > 0) parts.push(rate(slot.rate));
  if (slot.phase === "prefill" && slot.eta_seconds !== null) parts.push(`${seconds(slot.eta_seconds)} left`);
  return parts.join(" · ");
}
