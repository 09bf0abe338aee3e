// Requests to the server this page came from. When it wants a key, the person is asked for one; the key is kept in
// sessionStorage, so that it lives as long as the tab.

const STORED = "hf2q-key";
let asking = null;

export class ApiError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export async function call(path, { body, signal, ask = true } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(STORED);
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    const options = { headers, signal, cache: "no-store", credentials: "omit", redirect: "error" };
    if (body !== undefined) {
      options.method = "POST";
      headers["content-type"] = "application/json";
      options.body = JSON.stringify(body);
    }
    const response = await fetch(path, options);
    if (response.ok) return response;
    const error = await failure(response);
    // another request may have asked for the key meanwhile
    const renewed = sessionStorage.getItem(STORED) !== key;
    if (response.status === 401 && (renewed || (ask && (await askForKey(key))))) continue;
    throw error;
  }
}

async function failure(response) {
  const found = await response.json().catch(() => null);
  const error = found?.error ?? {};
  return new ApiError(error.message ?? `the server answered ${response.status}`, response.status, error.code);
}

function askForKey(last) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("key");
    const input = dialog.querySelector("input");
    document.getElementById("key-why").textContent = last
      ? "The server does not accept this key."
      : "This server answers with a key only. It stays in this tab and is forgotten with it.";
    input.value = "";
    dialog.returnValue = "";
    document.getElementById("key-cancel").onclick = () => dialog.close("cancel");
    dialog.querySelector("form").onsubmit = () => {
      sessionStorage.setItem(STORED, input.value.trim());
      dialog.returnValue = "use";
    };
    dialog.addEventListener("close", () => {
      asking = null;
      resolve(dialog.returnValue === "use");
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}
