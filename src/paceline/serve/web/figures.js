// Counts what the passes of one answer say, as the server counts: only passes that held drafts have a say in
// acceptance, and the first token comes of the prompt, not of a pass.

export class AnswerFigures {
  tokens = 0;
  /** Passes that held drafts. */
  drafted = 0;
  accepted = 0;
  /** How many passes accepted a draft at each position. */
  positions = [];
  #first = 0;
  #last = 0;

  /** Count a chunk's `paceline` object; `now` is in milliseconds. */
  take(trace, now) {
    if (!trace.tokens.length) return;
    this.tokens += trace.tokens.length;
    if (!this.#first) {
      this.#first = now;
      this.firstTokens = trace.tokens.length;
    }
    this.#last = now;
    if (!trace.drafted) return;
    const accepted = trace.tokens.filter((token) => token.source === "draft").length;
    this.drafted++;
    this.accepted += accepted;
    while (this.positions.length < trace.drafted) this.positions.push(0);
    for (let i = 0; i < accepted; i++) this.positions[i]++;
  }

  /** Tokens a second after the first; null before there are two. */
  get speed() {
    const seconds = (this.#last - this.#first) / 1000;
    return seconds > 0 ? (this.tokens - this.firstTokens) / seconds : null;
  }

  /** Mean tokens of a pass with drafts, the model's own included; null where none was drafted. */
  get acceptanceLength() {
    return this.drafted ? 1 + this.accepted / this.drafted : null;
  }

  /** Share of passes that accepted a draft at each position, 0 to 1. */
  get byPosition() {
    return this.positions.map((count) => count / this.drafted);
  }
}

/** A number for people: as many digits as say something. */
export function shown(value, digits = 1) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value >= 100 ? Math.round(value).toString() : value.toFixed(digits);
}
