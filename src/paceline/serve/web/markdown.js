// Finds the blocks of a markdown text as ranges of it. Pure: no HTML is made here, so nothing that a model writes can
// become markup. Understands what models write most: fences, headings, lists, quotes, tables, rules, paragraphs.

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(?=\S)/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])[ \t]+(?=\S)/;
const QUOTE = /^ {0,3}>[ \t]?/;
const TABLE_RULE = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

function linesOf(text) {
  const lines = [];
  let start = 0;
  while (start < text.length) {
    const newline = text.indexOf("\n", start);
    const end = newline < 0 ? text.length : newline;
    lines.push({ start, end, text: text.slice(start, end) });
    start = end + 1;
  }
  return lines;
}

/** Ranges of the cells of a table's row. */
function cells(line) {
  const found = [];
  const from = line.text.search(/\S/);
  let at = line.text[from] === "|" ? from + 1 : from;
  while (at >= 0 && at < line.text.length) {
    const bar = line.text.indexOf("|", at);
    const end = bar < 0 ? line.text.length : bar;
    const inside = line.text.slice(at, end);
    if (bar >= 0 || inside.trim()) {
      const lead = inside.length - inside.trimStart().length;
      const start = line.start + at + lead;
      found.push({ start, end: start + inside.trim().length });
    }
    at = end + 1;
  }
  return found;
}

const isTable = (lines, i) =>
  lines[i].text.includes("|") && lines[i + 1]?.text.includes("-") && TABLE_RULE.test(lines[i + 1].text);

function fence(lines, i, marks) {
  const [, open, language] = marks;
  const closing = new RegExp(`^ {0,3}${open[0]}{${open.length},}[ \\t]*$`);
  let last = i + 1;
  while (last < lines.length && !closing.test(lines[last].text)) last++;
  const inside = lines.slice(i + 1, last);
  const start = inside[0]?.start ?? lines[i].end;
  return { block: { kind: "code", language, start, end: inside.at(-1)?.end ?? start }, next: last + 1 };
}

function list(lines, i) {
  const items = [];
  const ordered = /\d/.test(lines[i].text.match(ITEM)[2]);
  const first = ordered ? parseInt(lines[i].text.match(ITEM)[2], 10) : 1;
  let next = i;
  for (; next < lines.length && lines[next].text.trim(); next++) {
    const line = lines[next];
    const marks = line.text.match(ITEM);
    if (marks && !RULE.test(line.text)) {
      const depth = Math.min(3, Math.floor(marks[1].replace(/\t/g, "    ").length / 2));
      if (depth === 0 && /\d/.test(marks[2]) !== ordered) break;
      items.push({ depth, marker: /\d/.test(marks[2]) ? marks[2] : "", start: line.start + marks[0].length, end: line.end });
    } else if (FENCE.test(line.text) || HEADING.test(line.text)) {
      break;
    } else {
      items.at(-1).end = line.end; // a line that goes on with the item above
    }
  }
  return { block: { kind: "list", ordered, first, items, start: items[0].start, end: items.at(-1).end }, next };
}

function quote(lines, i) {
  const parts = [];
  let next = i;
  for (; next < lines.length && QUOTE.test(lines[next].text); next++) {
    parts.push({ start: lines[next].start + lines[next].text.match(QUOTE)[0].length, end: lines[next].end });
  }
  return { block: { kind: "quote", parts, start: parts[0].start, end: parts.at(-1).end }, next };
}

function table(lines, i) {
  const rows = [cells(lines[i])];
  let next = i + 2;
  for (; next < lines.length && lines[next].text.includes("|"); next++) rows.push(cells(lines[next]));
  return { block: { kind: "table", rows, start: lines[i].start, end: lines[next - 1].end }, next };
}

const begins = (line) => [FENCE, HEADING, RULE, ITEM, QUOTE].some((pattern) => pattern.test(line.text));

function paragraph(lines, i) {
  let next = i + 1;
  while (next < lines.length && lines[next].text.trim() && !begins(lines[next]) && !isTable(lines, next)) next++;
  return { block: { kind: "paragraph", start: lines[i].start, end: lines[next - 1].end }, next };
}

function blockAt(lines, i) {
  const line = lines[i];
  const fenced = line.text.match(FENCE);
  if (fenced) return fence(lines, i, fenced);
  const heading = line.text.match(HEADING);
  if (heading) {
    return { block: { kind: "heading", level: heading[1].length, start: line.start + heading[0].length, end: line.end }, next: i + 1 };
  }
  if (RULE.test(line.text)) return { block: { kind: "rule", start: line.start, end: line.end }, next: i + 1 };
  if (ITEM.test(line.text)) return list(lines, i);
  if (QUOTE.test(line.text)) return quote(lines, i);
  if (isTable(lines, i)) return table(lines, i);
  return paragraph(lines, i);
}

/** The blocks of a text, in order; each has kind, start, end and what its kind needs. */
export function blocks(text) {
  const lines = linesOf(text);
  const found = [];
  for (let i = 0; i < lines.length; ) {
    if (!lines[i].text.trim()) {
      i++;
      continue;
    }
    const { block, next } = blockAt(lines, i);
    found.push(block);
    i = next;
  }
  return found;
}

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|\*(?=[^\s*])([^*\n]*?[^\s*])\*(?!\*)/g;

/** Styled ranges of [start, end): {start, end, style} with style "", "code", "strong" or "em"; marks are left out. */
export function spans(text, start, end) {
  const found = [];
  let at = start;
  for (const match of text.slice(start, end).matchAll(INLINE)) {
    const from = start + match.index;
    const style = match[1] ? "code" : match[3] !== undefined ? "strong" : "em";
    const mark = match[1]?.length ?? (style === "strong" ? 2 : 1);
    if (from > at) found.push({ start: at, end: from, style: "" });
    at = from + match[0].length;
    found.push({ start: from + mark, end: at - mark, style });
  }
  if (end > at) found.push({ start: at, end, style: "" });
  return found;
}
