// What the person set: kept in localStorage of this browser, sent with each request.

const STORED = "hf2q-settings";
const dialog = document.getElementById("settings");
const form = dialog.querySelector("form");
const wrong = document.getElementById("settings-wrong");

export function settings() {
  try {
    return JSON.parse(localStorage.getItem(STORED)) ?? {};
  } catch {
    return {};
  }
}

// The fields of a chat request that they stand for.
export function fields() {
  return parsed(settings());
}

function parsed({ temperature, max_tokens, effort, tools }) {
  const found = {};
  if (temperature) found.temperature = number("Temperature", temperature.replace(",", "."), 0, 2);
  if (max_tokens) {
    found.max_completion_tokens = number("Most tokens", max_tokens, 1, Infinity);
    if (!Number.isInteger(found.max_completion_tokens)) throw new Error("Most tokens is a whole number.");
  }
  if (effort) found.reasoning_effort = effort;
  if (tools) {
    try {
      found.tools = JSON.parse(tools);
    } catch (error) {
      throw new Error(`Tools are not JSON: ${error.message}`);
    }
    if (!Array.isArray(found.tools)) throw new Error("Tools are a JSON list.");
    if (!found.tools.length) delete found.tools;
  }
  return found;
}

function number(name, text, least, most) {
  const value = Number(text);
  if (!Number.isFinite(value) || value < least || value > most) {
    throw new Error(most === Infinity ? `${name} is a number from ${least}.` : `${name} is a number from ${least} to ${most}.`);
  }
  return value;
}

export function wire() {
  document.getElementById("show-settings").addEventListener("click", () => {
    const now = settings();
    for (const field of form.elements) if (field.name) field.value = now[field.name] ?? "";
    wrong.textContent = "";
    dialog.showModal();
  });
  document.getElementById("settings-cancel").addEventListener("click", () => dialog.close());
  form.addEventListener("submit", (event) => {
    const next = {};
    for (const field of form.elements) if (field.name && field.value.trim()) next[field.name] = field.value.trim();
    try {
      parsed(next);
    } catch (error) {
      event.preventDefault();
      wrong.textContent = error.message;
      return;
    }
    localStorage.setItem(STORED, JSON.stringify(next));
  });
}
