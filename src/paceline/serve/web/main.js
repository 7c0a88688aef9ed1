// Puts the page together: the composer, the server's state, errors, and the keys.

import { ServerError, apiKey, health, metricsText, model, setApiKey } from "./api.js";
import { Chat } from "./chat.js";
import { ServerFigures } from "./metrics.js";
import { fit, openPanel, setUp, settings, showAnswer, showServer } from "./panel.js";
import { make } from "./render.js";

const $ = (id) => document.getElementById(id);
const POLL_MS = 1000;

let served = null; // the model, once the server has told
let fitted = ""; // what the controls were made for
const chat = new Chat($("log"), settings, () => served !== null && !served.paceline.chat);
const server = new ServerFigures();

// ---- the server's state

function say(text) {
  $("status").textContent = text;
}

function notice(text) {
  if (text === $("notice").textContent) return;
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

function state(name) {
  $("dot").dataset.state = name;
  $("dot").title = { ready: "the server answers", wait: "loading", gone: "no answer" }[name];
}

async function meet() {
  const before = fitted;
  served = await model();
  fitted = JSON.stringify(served.paceline);
  const name = served.id.startsWith("/") ? served.id.split("/").at(-1) : served.id;
  $("model").textContent = name;
  $("model").title = served.id;
  document.title = `${name} · paceline`;
  $("key-form").hidden = true;
  if (fitted !== before) fit(served.paceline); // a server that came back as it was leaves the controls alone
  const { chat: chats } = served.paceline;
  $("input").placeholder = chats ? "Message" : "A text to continue";
  $("input").title = chats ? "" : "This model has no chat template: it continues what you write.";
}

function askForKey() {
  const wrong = Boolean(apiKey());
  $("key-wrong").hidden = !wrong;
  if (!$("key-form").hidden) return;
  $("key-form").hidden = false;
  $("key").focus();
}

async function look() {
  const needsKey = !$("key-form").hidden;
  try {
    showServer(server.take(await metricsText(), performance.now()));
    await health();
    if (served === null && !needsKey) await meet();
    notice("");
    state(served === null ? "wait" : "ready");
  } catch (error) {
    if (!(error instanceof ServerError) && error.name !== "TimeoutError") throw error;
    trouble(error);
  }
}

function trouble(error) {
  if (error.status === 401) {
    state("wait");
    notice("");
    askForKey();
  } else if (error.status === 503) {
    state("wait");
    notice(`Not ready: ${error.message}. Looking again every second.`);
  } else {
    state("gone");
    served = null; // whoever comes back may be another
    notice(error.status ? error.message : "The server does not answer. Trying again every second.");
    showServer(null);
  }
}

async function poll() {
  try {
    if (!document.hidden) await look();
  } finally {
    setTimeout(poll, POLL_MS);
  }
}

$("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  setApiKey($("key").value);
  try {
    await meet();
    state("ready");
    $("key").value = "";
    focusInput();
  } catch (error) {
    trouble(error);
  }
});

// ---- the conversation

const scroll = $("scroll");
let follows = true; // stay at the end, unless the person has scrolled away from it
scroll.addEventListener("scroll", () => {
  follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;
});
const toEnd = () => follows && scroll.scrollTo({ top: scroll.scrollHeight });
$("log").addEventListener("drawn", toEnd);

chat.addEventListener("state", ({ detail: answer }) => {
  $("send").hidden = chat.running;
  $("stop").hidden = !chat.running;
  $("log").setAttribute("aria-busy", String(chat.running));
  $("empty").hidden = Boolean($("log").querySelector("article"));
  toEnd();
  if (chat.running) say("The model answers.");
  else if (answer) say(answer.finish === "stopped" ? "Stopped." : `The answer is there: ${answer.figures.tokens} tokens.`);
});
chat.addEventListener("figures", ({ detail: figures }) => showAnswer(figures));

chat.addEventListener("refused", ({ detail: error }) => {
  if (error.status === 401) {
    served = null;
    askForKey();
  }
  const again = make("button", "quiet small", "Try again");
  again.type = "button";
  again.addEventListener("click", () => !chat.running && chat.run());
  const text = make("p", "", error.message ?? "The page has made a mistake; its console says more.");
  const failure = make("div", "failure", text, again);
  failure.setAttribute("role", "alert");
  $("log").append(failure);
  if (error.status === 429) countDown(again, error.retryAfter || 1);
});

/** Let the server breathe for as long as it asks. */
function countDown(button, seconds) {
  button.disabled = seconds > 0;
  button.textContent = seconds > 0 ? `Try again in ${seconds} s` : "Try again";
  if (seconds > 0) setTimeout(() => countDown(button, seconds - 1), 1000);
}

function send(text) {
  if (chat.running || !text.trim()) return;
  follows = true;
  openPanel(false);
  $("input").value = "";
  fitInput();
  chat.send(text.trim());
}

function newChat() {
  chat.clear();
  $("empty").hidden = false;
  focusInput();
  say("A new chat.");
}

// ---- the composer and the keys

/** Where there is a keyboard: on a phone the focus would call one up, over half of the page. */
function focusInput() {
  if (!matchMedia("(pointer: coarse)").matches) $("input").focus();
}

function fitInput() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight, 200)}px`;
}

$("input").addEventListener("input", fitInput);
$("input").addEventListener("keydown", (event) => {
  // While an input method composes, Enter chooses a word.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send($("input").value);
});
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send($("input").value);
});
$("stop").addEventListener("click", () => {
  chat.stop();
  focusInput();
});
$("new").addEventListener("click", newChat);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (chat.running) chat.stop();
  else openPanel(false);
});
for (const example of document.querySelectorAll(".example")) {
  example.addEventListener("click", () => send(example.textContent));
}

setUp();
poll();
focusInput();
