// One message of the conversation on the screen.

import { AnswerFigures, shown } from "./figures.js";
import { Markdown, make, tokens } from "./render.js";
import { TokenQueue, Traced } from "./trace.js";

/** What the person wrote, or what a tool gave back. */
export function userMessage(text, kind = "user") {
  const name = kind === "user" ? "You" : "Tool result";
  return make("article", `message ${kind}`, make("h3", "unseen", name), make("div", "text", text));
}

/** An answer as it comes. `take` chunks; `end` it once. */
export class Answer {
  figures = new AnswerFigures();
  reasoning = new Traced();
  content = new Traced();
  /** Tool calls in order: {id, name, arguments: Traced, card}. */
  calls = [];
  finish = "";
  #queue = new TokenQueue();
  #dirty = false;
  #cost = 0; // milliseconds of the last drawing
  #began = performance.now();
  #thought = 0;
  #thinking;
  #thinkingLabel;
  #thinkingText;
  #body;
  #markdown;
  #calls;

  constructor() {
    this.#thinkingLabel = make("span", "", "Thinking");
    this.#thinkingText = make("div", "thought");
    this.#thinking = make("details", "thinking", make("summary", "", this.#thinkingLabel), this.#thinkingText);
    this.#thinking.hidden = true;
    this.#thinking.addEventListener("toggle", () => this.#later());
    this.#body = make("div", "text");
    this.#markdown = new Markdown(this.#body);
    this.#calls = make("div", "calls");
    this.foot = make("p", "foot");
    this.element = make(
      "article", "message assistant busy",
      make("h3", "unseen", "Model"), this.#thinking, this.#body, this.#calls, this.foot,
    );
  }

  /** Take in a chunk of a chat completion, or of a completion (then its text is the content). */
  take(chunk) {
    const now = performance.now();
    if (chunk.paceline?.tokens) {
      this.#queue.push(chunk.paceline.tokens);
      this.figures.take(chunk.paceline, now);
    }
    const choice = chunk.choices[0];
    if (!choice) return;
    const delta = choice.delta ?? { content: choice.text };
    if (delta.reasoning) this.reasoning.append(this.#queue.take(delta.reasoning));
    if ((delta.content || delta.tool_calls) && this.reasoning.text && !this.#thought) this.#thought = now;
    if (delta.content) this.content.append(this.#queue.take(delta.content));
    for (const call of delta.tool_calls ?? []) this.#takeCall(call);
    if (choice.finish_reason) this.finish = choice.finish_reason;
    this.#later();
  }

  #takeCall(delta) {
    const call = (this.calls[delta.index] ??= { id: "", name: "", arguments: new Traced(), card: null });
    if (delta.id) call.id = delta.id;
    if (delta.function.name) call.name = delta.function.name;
    if (delta.function.arguments) call.arguments.append(this.#queue.take(delta.function.arguments));
    if (!call.card) {
      call.code = make("code");
      call.card = make(
        "div", "call",
        make("p", "call-name", make("span", "call-mark", "calls"), " ", make("strong", "", call.name)),
        make("pre", "", call.code),
      );
      this.#calls.append(call.card);
    }
  }

  /** Draw once a frame at most, and rest three times as long as drawing takes: answers may be long. */
  #later() {
    if (this.#dirty) return;
    this.#dirty = true;
    setTimeout(() => requestAnimationFrame(() => this.#draw()), 3 * this.#cost);
  }

  #draw() {
    const began = performance.now();
    this.#dirty = false;
    this.#drawThinking();
    this.#markdown.update(this.content);
    for (const call of this.calls) call.code.replaceChildren(...tokens(call.arguments, 0, call.arguments.text.length));
    this.foot.textContent = this.#summary();
    this.element.dispatchEvent(new Event("drawn", { bubbles: true }));
    this.#cost = performance.now() - began;
  }

  #drawThinking() {
    const { text } = this.reasoning;
    this.#thinking.hidden = !text.trim();
    const seconds = ((this.#thought || performance.now()) - this.#began) / 1000;
    const running = !this.#thought && this.element.classList.contains("busy");
    this.#thinkingLabel.textContent = running ? `Thinking, ${seconds.toFixed(0)} s` : `Thought for ${seconds.toFixed(1)} s`;
    if (!this.#thinking.open) return; // folded: nobody sees it
    this.#thinkingText.replaceChildren(...tokens(this.reasoning, 0, text.length));
  }

  #summary() {
    const { tokens: count, speed, acceptanceLength } = this.figures;
    const parts = [];
    if (count) parts.push(count === 1 ? "1 token" : `${count} tokens`);
    if (speed) parts.push(`${shown(speed)} tokens/s`);
    if (acceptanceLength) parts.push(`acceptance length ${acceptanceLength.toFixed(2)}`);
    else if (count > 1) parts.push("no drafts");
    if (this.finish === "length") parts.push("cut off at the limit");
    if (this.finish === "stopped") parts.push("stopped");
    return parts.join(" · ");
  }

  /** Nothing more comes. `finish` replaces the server's reason, where the person or an error ended it. */
  end(finish = "") {
    if (finish) this.finish = finish;
    if (this.reasoning.text && !this.#thought) this.#thought = performance.now();
    this.element.classList.remove("busy");
    this.#draw();
  }

  /** The message as the server wants it back. */
  toMessage() {
    const message = { role: "assistant", content: this.content.text };
    if (this.reasoning.text) message.reasoning = this.reasoning.text;
    if (this.calls.length) {
      message.tool_calls = this.calls.map((call) => ({
        id: call.id, type: "function", function: { name: call.name, arguments: call.arguments.text },
      }));
    }
    return message;
  }
}
