// One message as it is shown: reasoning folded away, text, tool calls, and a line about its cost.

import { make, update } from "./markdown.js";

export function userMessage(text) {
  return make("article", { class: "user", "aria-label": "You" }, make("div", { class: "text plain" }, text));
}

export function toolMessage(name, text) {
  return make("article", { class: "tool", "aria-label": `Result of ${name}` },
    make("div", { class: "text plain" }, text));
}

export class AnswerView {
  constructor() {
    this.thought = make("div", { class: "text" });
    this.summary = make("summary", {}, "Thinking…");
    this.details = make("details", { class: "reasoning", hidden: "" }, this.summary, this.thought);
    this.text = make("div", { class: "text" });
    this.calls = make("div", { class: "calls" });
    this.error = make("p", { class: "wrong", role: "alert", hidden: "" });
    this.foot = make("p", { class: "foot" });
    this.node = make("article", { class: "assistant", "aria-label": "Model", "aria-busy": "true" },
      this.details, this.text, this.calls, this.error, this.foot);
    this.boxes = [];
    this.pending = false;
  }

  // Shows the answer so far, at most once for each frame that the browser draws.
  show(answer, after) {
    this.answer = answer;
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.draw();
      after();
    });
  }

  draw() {
    const { reasoning, content, calls } = this.answer;
    if (reasoning) {
      this.details.hidden = false;
      // what is folded away costs nothing until it is looked at
      if (this.details.open) update(this.thought, reasoning);
      else this.details.ontoggle = () => update(this.thought, this.answer.reasoning);
      if (content || calls.length) this.summary.textContent = "Reasoning";
    }
    update(this.text, content);
    calls.forEach((call, index) => {
      this.boxes[index] ??= this.box(call);
      this.boxes[index].name.textContent = call.function.name;
      this.boxes[index].body.textContent = tidy(call.function.arguments);
    });
  }

  box(call) {
    const name = make("span", { class: "name" });
    const body = make("code");
    const node = make("div", { class: "call" }, make("div", { class: "title" }, "Tool call ", name),
      make("pre", { tabindex: "0" }, body));
    this.calls.append(node);
    return { node, name, body, call };
  }

  // Asks for the results of the calls; `send` gets a list of texts, one for each.
  askResults(send) {
    const inputs = this.boxes.map(({ node, call }) => {
      const input = make("textarea", { rows: "2", "aria-label": `Result of ${call.function.name}` });
      input.placeholder = "Result of this call";
      node.append(input);
      return input;
    });
    const button = make("button", { type: "button" }, inputs.length > 1 ? "Send results" : "Send result");
    button.addEventListener("click", () => {
      this.endResults();
      send(inputs.map((input) => input.value));
    });
    this.endResults = () => [button, ...inputs].forEach((node) => node.remove());
    this.calls.append(button);
  }

  endResults() {}

  done(foot) {
    this.draw();
    if (this.answer.reasoning) this.summary.textContent = "Reasoning";
    this.node.setAttribute("aria-busy", "false");
    this.foot.textContent = foot;
  }

  fail(message) {
    this.error.hidden = false;
    this.error.textContent = message;
  }
}

function tidy(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // still on its way
  }
}
