// Puts the page together.

import { call } from "./api.js";
import * as chat from "./chat.js";
import { make } from "./markdown.js";
import * as settings from "./settings.js";
import * as status from "./status.js";

const select = document.getElementById("model");
const CHOSEN = "hf2q-model";

let known = null;

// Resolves when the models are in the list; what went wrong before is tried again.
function models() {
  known ??= list().catch((error) => {
    known = null;
    throw error;
  });
  return known;
}

async function list() {
  const { data } = await (await call("/v1/models")).json();
  const chosen = sessionStorage.getItem(CHOSEN);
  select.replaceChildren(...data.map(({ id }) => make("option", { value: id }, id)));
  if (data.some(({ id }) => id === chosen)) select.value = chosen;
}

select.addEventListener("change", () => sessionStorage.setItem(CHOSEN, select.value));
settings.wire();
chat.wire(models);
document.getElementById("question").focus();
try {
  await models();
} catch (error) {
  document.getElementById("hello").textContent = `The models of this server cannot be listed: ${error.message}`;
}
status.wire();
