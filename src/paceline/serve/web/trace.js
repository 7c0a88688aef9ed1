// From tokens to coloured text. A chunk brings two things: the tokens of a pass, each with its source, and the text
// that the server's parser has released so far. The parser drops tags, holds text back and turns tool calls into
// JSON, so the two are matched here, character by character.

/** A text whose every piece knows its token's source. */
export class Traced {
  text = "";
  /** Pieces in order: {start, end, source, title}. */
  pieces = [];

  append(pieces) {
    for (const piece of pieces) {
      const start = this.text.length;
      this.text += piece.text;
      this.pieces.push({ start, end: this.text.length, source: piece.source, title: piece.title });
    }
  }

  /** The pieces of [start, end), cut to size: {text, source, title}. */
  slice(start, end) {
    const found = [];
    for (let i = this.#firstEndingAfter(start); i < this.pieces.length && this.pieces[i].start < end; i++) {
      const piece = this.pieces[i];
      const text = this.text.slice(Math.max(start, piece.start), Math.min(end, piece.end));
      if (text) found.push({ text, source: piece.source, title: piece.title });
    }
    return found;
  }

  #firstEndingAfter(at) {
    let low = 0;
    let high = this.pieces.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.pieces[middle].end > at) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

const PLAIN = { source: "plain", title: "" };

/** Characters that are skipped at most: more than any tag has. */
const FAR = 80;
/** Tags in a row. */
const TAG = /\s*<[^<>]*>/gy;

/** Tokens whose text no delta has brought yet. */
export class TokenQueue {
  #text = "";
  #tokens = []; // {end, source, title}; end counts from the start of #text

  /** Take in the tokens of one chunk. */
  push(tokens) {
    const accepted = tokens.filter((token) => token.source === "draft").length;
    tokens.forEach((token, i) => {
      this.#text += token.text;
      this.#tokens.push({ end: this.#text.length, source: token.source, title: titleOf(token.source, i, accepted) });
    });
  }

  /** The pieces that a delta is made of: {text, source, title}. What the parser has dropped before is dropped. */
  take(delta) {
    const pieces = [];
    let at = 0; // in #text
    let index = 0; // of the token that #text[at] belongs to
    for (let i = 0; i < delta.length; i++) {
      const found = this.#text[at] === delta[i] ? at : this.#find(delta, i, at);
      if (found >= 0) at = found;
      while (index < this.#tokens.length - 1 && this.#tokens[index].end <= at) index++;
      const owner = this.#tokens[index] ?? PLAIN;
      if (pieces.at(-1)?.owner === owner) pieces.at(-1).text += delta[i];
      else pieces.push({ text: delta[i], owner });
      if (found >= 0) at++;
    }
    this.#drop(at);
    return pieces.map(({ text, owner }) => ({ text, source: owner.source, title: owner.title }));
  }

  /** Where a delta goes on behind something that was dropped; -1 where its text is the parser's own. */
  #find(delta, i, at) {
    const ahead = this.#text.slice(at, at + FAR);
    for (const tag of ahead.matchAll(TAG)) {
      const behind = tag.index + tag[0].length;
      if (ahead[behind] === delta[i]) return at + behind; // the usual reason
    }
    for (const length of [4, 2, 1]) {
      const found = ahead.indexOf(delta.slice(i, i + length));
      if (found >= 0) return at + found;
    }
    return -1;
  }

  #drop(upTo) {
    this.#text = this.#text.slice(upTo);
    this.#tokens = this.#tokens
      .map((token) => ({ ...token, end: token.end - upTo }))
      .filter((token) => token.end > 0);
  }
}

function titleOf(source, index, accepted) {
  if (source === "draft") return `draft ${index + 1} of ${accepted} accepted in this pass`;
  if (source === "bonus") return accepted ? `the model’s own token behind ${accepted} accepted` : "the model’s own token: no draft agreed";
  return "the model’s own token: no draft was tried";
}
