// Turns a traced text into DOM. Everything that a model wrote goes through textContent: none of it is ever markup.

import { blocks, spans } from "./markdown.js";

/** An element with classes and children; strings become text. */
export function make(tag, classes = "", ...children) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  element.append(...children);
  return element;
}

/** One span a token of [start, end). */
export function tokens(traced, start, end) {
  return traced.slice(start, end).map((piece) => {
    const span = make("span", `t ${piece.source}`, piece.text);
    if (piece.title) span.title = piece.title;
    return span;
  });
}

function inline(traced, start, end) {
  return spans(traced.text, start, end).flatMap((range) => {
    const inside = tokens(traced, range.start, range.end);
    return range.style ? [make(range.style, "", ...inside)] : inside;
  });
}

function code(traced, block) {
  const copy = make("button", "quiet small copy", "Copy");
  copy.type = "button";
  copy.addEventListener("click", () => copyText(copy, traced.text.slice(block.start, block.end)));
  const head = make("div", "code-head", make("span", "", block.language || "code"), copy);
  const pre = make("pre", "", make("code", "", ...tokens(traced, block.start, block.end)));
  pre.tabIndex = 0; // a long line is scrolled with the arrow keys
  return make("div", "code", head, pre);
}

async function copyText(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "No access"; // browsers lend the clipboard to secure origins only
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

function list(traced, block) {
  const items = block.items.map((item) => {
    const entry = make("li", item.depth ? `depth-${item.depth}` : "", ...inline(traced, item.start, item.end));
    entry.classList.add(item.marker ? "number" : "bullet"); // one flat list may hold both
    if (item.marker) entry.value = parseInt(item.marker, 10);
    return entry;
  });
  return make(block.ordered ? "ol" : "ul", "", ...items);
}

function table(traced, block) {
  const [head, ...rows] = block.rows.map((row, i) =>
    make("tr", "", ...row.map((cell) => make(i ? "td" : "th", "", ...inline(traced, cell.start, cell.end)))),
  );
  return make("div", "table", make("table", "", make("thead", "", head), make("tbody", "", ...rows)));
}

const MAKERS = {
  code,
  list,
  table,
  rule: () => make("hr"),
  heading: (traced, block) =>
    make(`h${Math.min(6, block.level + 2)}`, "", ...inline(traced, block.start, block.end)),
  quote: (traced, block) =>
    make("blockquote", "", ...block.parts.flatMap((part) => [...inline(traced, part.start, part.end), "\n"])),
  paragraph: (traced, block) => make("p", "", ...inline(traced, block.start, block.end)),
};

/** Keeps an element in step with a growing text: only the last blocks are made anew. */
export class Markdown {
  #made = []; // {sign, element}

  constructor(element) {
    this.element = element;
  }

  update(traced) {
    const found = blocks(traced.text);
    const signs = found.map((block, i) => `${block.kind} ${block.start} ${block.end} ${i === found.length - 1}`);
    let same = 0;
    while (same < this.#made.length && this.#made[same].sign === signs[same]) same++;
    for (const { element } of this.#made.splice(same)) element.remove();
    for (let i = same; i < found.length; i++) {
      const element = MAKERS[found[i].kind](traced, found[i]);
      this.#made.push({ sign: signs[i], element });
      this.element.append(element);
    }
  }
}
