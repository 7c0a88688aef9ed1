// The conversation: what was said, what runs now, and what the person may do next.

import { ServerError, stream } from "./api.js";
import { Answer, userMessage } from "./message.js";
import { make } from "./render.js";

/** Emits "state" (running or not), "figures" (of the running answer) and "refused" (a ServerError). */
export class Chat extends EventTarget {
  #messages = [];
  #running = null; // {answer, abort}
  #open = []; // tool calls that wait for their results

  /** `settings()` gives a request's fields; `completes()` whether the model only continues text. */
  constructor(log, settings, completes) {
    super();
    this.log = log;
    this.settings = settings;
    this.completes = completes;
  }

  get running() {
    return this.#running !== null;
  }

  /** Whether tool calls wait for results. */
  get waitsForTools() {
    return this.#open.length > 0;
  }

  /** Forget everything. */
  clear() {
    this.stop();
    this.#running = null; // its end finds a new conversation, in which it has no place
    this.#messages = [];
    this.#open = [];
    for (const article of this.log.querySelectorAll("article, .failure")) article.remove();
    this.#emit("state");
  }

  /** End the running answer; what has come of it stays. */
  stop() {
    this.#running?.abort.abort();
  }

  send(text) {
    this.#answerOpenCalls("");
    this.#messages.push({ role: "user", content: text });
    this.log.append(userMessage(text));
    return this.run();
  }

  /** Ask for the next answer; also what "Try again" does. */
  async run() {
    this.log.querySelector(".failure")?.remove();
    const answer = new Answer();
    const running = (this.#running = { answer, abort: new AbortController() });
    this.log.append(answer.element);
    this.#emit("state");
    try {
      await stream(...this.#request(), running.abort.signal, (chunk) => {
        answer.take(chunk);
        this.#emit("figures", answer.figures);
      });
      if (this.#running === running) this.#keep(answer);
    } catch (error) {
      if (this.#running === running) this.#failed(answer, error);
    }
    if (this.#running !== running) return;
    this.#running = null;
    this.#emit("state", answer);
  }

  #request() {
    const { system, ...fields } = this.settings();
    const body = { ...fields, paceline: { trace: true } };
    if (this.completes()) {
      const { chat_template_kwargs: _, tools: __, ...rest } = body;
      const prompt = this.#messages.map((message) => message.content).join("");
      return ["v1/completions", { max_tokens: 512, ...rest, prompt }];
    }
    const head = system ? [{ role: "system", content: system }] : [];
    return ["v1/chat/completions", { ...body, messages: [...head, ...this.#messages] }];
  }

  #keep(answer) {
    answer.end();
    this.#messages.push(answer.toMessage());
    this.#open = [];
    for (const call of answer.calls) this.#askForResult(call);
  }

  #failed(answer, error) {
    const stopped = error.name === "AbortError";
    if (!stopped && !(error instanceof ServerError)) console.error(error);
    if (stopped || answer.figures.tokens) {
      answer.end(stopped ? "stopped" : "broken");
      // A tool call that was cut off cannot be answered, so the message is kept without it.
      if (answer.content.text) this.#messages.push({ role: "assistant", content: answer.content.text });
    } else {
      answer.element.remove();
    }
    if (!stopped) this.#emit("refused", error);
  }

  /** The person plays the tool: a field below the call takes what it gives back. */
  #askForResult(call) {
    const field = make("textarea", "mono");
    field.rows = 1;
    field.placeholder = `What ${call.name} gives back`;
    field.setAttribute("aria-label", field.placeholder);
    const send = make("button", "quiet small", "Give back");
    send.type = "submit";
    const form = make("form", "result", field, send);
    call.card.append(form);
    this.#open.push({ call, form });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#result(call, field.value);
      if (this.waitsForTools) this.#open[0].form.querySelector("textarea").focus();
      else this.run();
    });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
  }

  #result(call, text) {
    this.#messages.push({ role: "tool", tool_call_id: call.id, content: text });
    const { form } = this.#open.find((open) => open.call === call);
    this.#open = this.#open.filter((open) => open.call !== call);
    form.replaceWith(userMessage(text || "(nothing)", "tool"));
  }

  /** Templates want a result for every call: whoever writes on instead has given none. */
  #answerOpenCalls(text) {
    for (const { call } of [...this.#open]) this.#result(call, text);
  }

  #emit(kind, detail = null) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }
}
