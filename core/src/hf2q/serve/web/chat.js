// The conversation: what was said, and the answer that is on its way.

import { call } from "./api.js";
import { AnswerView, toolMessage, userMessage } from "./message.js";
import { fields, settings } from "./settings.js";
import { events } from "./sse.js";
import { rate, seconds } from "./units.js";

const log = document.getElementById("log");
const hello = document.getElementById("hello");
const send = document.getElementById("send");
const stop = document.getElementById("stop");
const question = document.getElementById("question");
const model = document.getElementById("model");

let models = null; // a function; its promise is kept when there is a model to choose
let said = []; // in the form of the API
let running = null; // AbortController of the answer on its way
let last = null; // AnswerView of the last answer

export function wire(known) {
  models = known;
  const form = document.getElementById("ask");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = question.value.trim();
    if (!text || running) return;
    question.value = "";
    fit();
    ask(text);
  });
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  question.addEventListener("input", fit);
  stop.addEventListener("click", () => running?.abort());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running && !document.querySelector("dialog[open]")) running.abort();
  });
  document.getElementById("new").addEventListener("click", () => {
    running?.abort();
    [said, last] = [[], null];
    log.replaceChildren(hello);
    question.focus();
  });
}

function fit() {
  question.style.height = "auto";
  question.style.height = `${Math.min(question.scrollHeight, window.innerHeight / 3)}px`;
}

function ask(text) {
  last?.endResults();
  said.push({ role: "user", content: text });
  add(userMessage(text));
  return answer();
}

function results(calls, texts) {
  calls.forEach((each, index) => {
    said.push({ role: "tool", tool_call_id: each.id, content: texts[index] });
    add(toolMessage(each.function.name, texts[index]));
  });
  return answer();
}

function add(node) {
  hello.remove();
  log.append(node);
  log.scrollTop = log.scrollHeight;
}

async function answer() {
  const view = (last = new AnswerView());
  const conversation = said;
  const got = { reasoning: "", content: "", calls: [], reason: null, usage: null, started: performance.now() };
  running = new AbortController();
  busy(true);
  add(view.node);
  view.show(got, () => {});
  try {
    await receive(got, view, running.signal);
  } catch (error) {
    if (error.name !== "AbortError") view.fail(error.message);
    else if (got.reason === null) got.reason = "stopped";
  }
  view.done(cost(got));
  busy(false);
  running = null;
  if (conversation !== said) return; // a new chat was begun meanwhile
  keep(got);
  const whole = got.reason === "tool_calls" && got.calls.length > 0;
  if (whole) view.askResults((texts) => results(got.calls, texts));
  if (document.activeElement === document.body) question.focus();
}

// What there is of the answer becomes part of the conversation; calls that were cut off do not.
function keep(got) {
  const calls = got.reason === "tool_calls" ? got.calls : [];
  if (!got.content && !calls.length) return;
  const message = { role: "assistant", content: got.content || null };
  if (got.reasoning) message.reasoning_content = got.reasoning;
  if (calls.length) message.tool_calls = calls;
  said.push(message);
}

async function receive(got, view, signal) {
  await models();
  const { system } = settings();
  const messages = system ? [{ role: "system", content: system }, ...said] : said;
  const body = { model: model.value, messages, stream: true, stream_options: { include_usage: true }, ...fields() };
  const response = await call("/v1/chat/completions", { body, signal });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message ?? String(chunk.error));
    if (chunk.usage) got.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (choice) take(got, choice);
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    view.show(got, () => atEnd && (log.scrollTop = log.scrollHeight));
  }
  throw new Error("The connection ended before the answer was complete.");
}

function take(got, { delta, finish_reason }) {
  if (delta.reasoning_content || delta.content || delta.tool_calls) {
    got.first ??= performance.now();
    got.latest = performance.now();
  }
  got.reasoning += delta.reasoning_content ?? "";
  got.content += delta.content ?? "";
  for (const piece of delta.tool_calls ?? []) {
    const each = (got.calls[piece.index] ??= { id: piece.id, type: "function", function: { name: "", arguments: "" } });
    each.function.name += piece.function?.name ?? "";
    each.function.arguments += piece.function?.arguments ?? "";
  }
  if (finish_reason) got.reason = finish_reason;
}

const REASONS = { length: "cut at the limit", stopped: "stopped" };

function cost({ usage, reason, started, first, latest }) {
  const parts = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`${usage.prompt_tokens} prompt tokens${cached ? ` (${cached} cached)` : ""}`);
    parts.push(`${usage.completion_tokens} generated`);
  }
  if (first) parts.push(`first after ${seconds((first - started) / 1000)}`);
  if (usage?.completion_tokens > 1 && latest > first) {
    parts.push(rate((usage.completion_tokens - 1) / ((latest - first) / 1000)));
  }
  if (REASONS[reason]) parts.push(REASONS[reason]);
  return parts.join(" · ");
}

function busy(yes) {
  send.hidden = yes;
  stop.hidden = !yes;
}
