// A little Markdown as DOM nodes: fenced code, headings, lists, quotes, tables, paragraphs; code, strong, emphasis and
// http(s) links within them. Text gets into the page as text nodes only, so nothing a model writes can become markup.

export function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const DEEPEST = 8; // quotes and lists within each other
const LONGEST = 10_000; // characters of a paragraph in which spans are looked for: a model that babbles must not stall it

// Shows `text` in `place`, replacing only the blocks that differ from what `update` showed there before.
export function update(place, text, depth = 0) {
  const sources = blocks(text);
  const shown = place.blocks ?? [];
  let same = 0;
  while (same < sources.length && same < shown.length && sources[same] === shown[same]) same += 1;
  while (place.childNodes.length > same) place.lastChild.remove();
  for (const source of sources.slice(same)) place.append(block(source, depth));
  place.blocks = sources;
}

const FENCE = /^ {0,3}(```+|~~~+)([^`]*)$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)]) +(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const DIVIDER = /^ *\|?( *:?-+:? *\|)+ *(:?-+:?)? *$/;

// The text cut at blank lines, fences left whole, and at lines that begin something else.
export function blocks(text) {
  const found = [];
  let current = [];
  let fence = null;
  const end = () => {
    if (current.length) found.push(current.join("\n"));
    current = [];
  };
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line);
    if (fence) {
      current.push(line);
      if (mark && mark[1].startsWith(fence) && !mark[2].trim()) {
        fence = null;
        end();
      }
    } else if (mark) {
      end();
      fence = mark[1];
      current.push(line);
    } else if (!line.trim()) {
      end();
    } else {
      if (HEADING.test(line) || RULE.test(line)) end();
      else if (ITEM.test(line) && current.length && !ITEM.test(current[0])) end();
      current.push(line);
      if (HEADING.test(line) || RULE.test(line)) end();
    }
  }
  end();
  return found;
}

function block(source, depth) {
  const lines = source.split("\n");
  const fence = FENCE.exec(lines[0]);
  if (fence) {
    const closed = lines.length > 1 && FENCE.exec(lines.at(-1))?.[1].startsWith(fence[1]);
    return codeBlock(lines.slice(1, closed ? -1 : undefined).join("\n"), fence[2].trim().split(/\s/)[0]);
  }
  const heading = HEADING.exec(source);
  if (heading) return make(`h${Math.min(heading[1].length + 2, 6)}`, {}, ...inline(heading[2].trimEnd().replace(/ #+$/, "")));
  if (RULE.test(source)) return make("hr");
  if (depth < DEEPEST && lines.every((line) => /^ {0,3}>/.test(line))) {
    const quote = make("blockquote");
    update(quote, lines.map((line) => line.replace(/^ {0,3}> ?/, "")).join("\n"), depth + 1);
    return quote;
  }
  if (ITEM.test(lines[0])) return list(lines, depth);
  if (lines.length > 1 && DIVIDER.test(lines[1]) && lines[0].includes("|")) return table(lines);
  return make("p", {}, ...inline(source));
}

function codeBlock(text, language) {
  const copy = make("button", { type: "button", class: "copy" }, "Copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not allowed";
    }
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  return make("figure", { class: "code" }, make("figcaption", {}, make("span", {}, language || "text"), copy),
    make("pre", { tabindex: "0" }, make("code", {}, text)));
}

function list(lines, depth) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(mark);
  const node = make(ordered ? "ol" : "ul", ordered && parseInt(mark, 10) !== 1 ? { start: parseInt(mark, 10) } : {});
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent.length + 1) items.push([item[3]]);
    else items.at(-1).push(line.replace(/^ {1,4}/, ""));
  }
  for (const [first, ...rest] of items) {
    const inner = depth < DEEPEST ? rest.findIndex((line) => ITEM.test(line)) : -1;
    const own = inner < 0 ? rest : rest.slice(0, inner);
    const entry = make("li", {}, ...inline([first, ...own].join("\n")));
    if (inner >= 0) entry.append(list(rest.slice(inner), depth + 1));
    node.append(entry);
  }
  return node;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (line, kind) => make("tr", {}, ...cells(line).map((cell) => make(kind, {}, ...inline(cell))));
  return make("div", { class: "table", tabindex: "0" }, make("table", {}, make("thead", {}, row(lines[0], "th")),
    make("tbody", {}, ...lines.slice(2).map((line) => row(line, "td")))));
}

const INLINE =
  /(?<!`)(?<ticks>`+)(?!`)(?<code>.+?)(?<!`)\k<ticks>(?!`)|\*\*(?<strong>[^*]+?)\*\*|(?<![\w*])\*(?<emphasis>[^\s*][^*]*?)\*(?!\w)|\[(?<label>[^\]\n]{1,500})\]\((?<href>https?:\/\/[^\s()]+)\)|(?<bare>https?:\/\/[^\s<>()"']+[^\s<>()"'.,;:!?])/gsu;

function inline(text) {
  if (text.length > LONGEST) return [text];
  const nodes = [];
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(text.slice(last, match.index), span(match.groups));
    last = match.index + match[0].length;
  }
  nodes.push(text.slice(last));
  return nodes.filter((node) => node !== "");
}

function span({ code, strong, emphasis, label, href, bare }) {
  if (code !== undefined) return make("code", {}, code.replace(/^ (.*[^ ].*) $/, "$1"));
  if (strong !== undefined) return make("strong", {}, ...inline(strong));
  if (emphasis !== undefined) return make("em", {}, ...inline(emphasis));
  return make("a", { href: href ?? bare, target: "_blank", rel: "noopener noreferrer" }, label ?? bare);
}
