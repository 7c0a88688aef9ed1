// The panel: what a request asks for, and what the figures say.

import { shown } from "./figures.js";
import { make } from "./render.js";

const $ = (id) => document.getElementById(id);

const EXAMPLE_TOOL = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather of a city now.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

/** Wire the controls up. */
export function setUp() {
  $("length").addEventListener("input", showLength);
  $("speculation").addEventListener("change", showLength);
  $("temperature").addEventListener("input", showTemperature);
  $("colours").addEventListener("change", () => document.body.classList.toggle("bare", !$("colours").checked));
  $("tools").addEventListener("input", checkTools);
  $("tools-example").addEventListener("click", () => {
    $("tools").value = JSON.stringify(EXAMPLE_TOOL, null, 2);
    checkTools();
  });
  $("panel-toggle").addEventListener("click", () => openPanel(!document.body.classList.contains("panel-open")));
  showTemperature();
}

/** Show or hide the panel where the screen has no room for both. */
export function openPanel(open) {
  document.body.classList.toggle("panel-open", open);
  $("panel-toggle").setAttribute("aria-expanded", String(open));
}

/** Fit the controls to the served model. */
export function fit(abilities) {
  const most = abilities.num_speculative_tokens;
  $("length").max = Math.max(1, most); // before the value, which is cut to it
  $("length").value = $("length").max;
  $("speculation").checked = most > 0;
  $("speculation").disabled = most === 0;
  $("no-drafter").hidden = most > 0;
  $("thinking").disabled = !abilities.chat;
  showLength();
}

function showLength() {
  const on = $("speculation").checked;
  $("length").disabled = !on || $("length").max === "1";
  $("length-value").textContent = on ? $("length").value : "off";
}

const ownTemperature = () => Number($("temperature").value) < 0;

function showTemperature() {
  const text = ownTemperature() ? "model’s own" : Number($("temperature").value).toFixed(2);
  $("temperature-value").textContent = text;
  $("temperature").setAttribute("aria-valuetext", text);
}

function readTools() {
  const text = $("tools").value.trim();
  if (!text) return undefined;
  const tools = JSON.parse(text);
  if (!Array.isArray(tools)) throw new SyntaxError("the tools must be a JSON list");
  return tools.length ? tools : undefined;
}

function checkTools() {
  let wrong = "";
  try {
    readTools();
  } catch (error) {
    wrong = error.message;
  }
  $("tools-wrong").textContent = wrong;
  $("tools-wrong").hidden = !wrong;
  $("tools").setAttribute("aria-invalid", String(Boolean(wrong)));
  return !wrong;
}

/** A request's fields as the controls stand, and `system`; tools that cannot be read are left out, and said so. */
export function settings() {
  const fields = { system: $("system").value.trim() };
  if (!$("speculation").disabled) {
    fields.speculation = { enabled: $("speculation").checked, num_speculative_tokens: Number($("length").value) };
  }
  if (!ownTemperature()) fields.temperature = Number($("temperature").value);
  if (Number($("most").value) >= 1) fields.max_tokens = Math.floor(Number($("most").value));
  if (!$("thinking").checked) fields.chat_template_kwargs = { enable_thinking: false };
  if (checkTools()) fields.tools = readTools();
  return fields;
}

/** Show the figures of an answer. */
export function showAnswer(figures) {
  $("f-speed").textContent = shown(figures.speed);
  $("f-acceptance").textContent = shown(figures.acceptanceLength, 2);
  const strip = figures.speed ? [`${shown(figures.speed)} tokens/s`] : [];
  if (figures.acceptanceLength) strip.push(`× ${figures.acceptanceLength.toFixed(2)}`);
  $("strip").textContent = strip.join("  ");
  showBars(figures.byPosition);
}

function showBars(shares) {
  const bars = $("bars");
  while (bars.children.length > shares.length) bars.lastChild.remove();
  while (bars.children.length < shares.length) {
    const number = bars.children.length + 1;
    bars.append(make("div", "bar-column", make("span", "column", make("span", "value"), make("span", "level")), make("span", "at", String(number))));
  }
  shares.forEach((share, i) => {
    const column = bars.children[i];
    column.querySelector(".level").style.height = `${share * 100}%`;
    column.querySelector(".value").textContent = Math.round(share * 100);
  });
  const said = shares.map((share, i) => `position ${i + 1} ${Math.round(share * 100)} %`).join(", ");
  bars.setAttribute("aria-label", `Acceptance by position: ${said || "nothing was drafted"}`);
}

/** Show the server's figures; null while the engine loads. */
export function showServer(figures) {
  $("s-running").textContent = figures ? figures.running : "–";
  $("s-waiting").textContent = figures ? figures.waiting : "–";
  $("s-speed").textContent = shown(figures?.speed);
  $("s-acceptance").textContent = shown(figures?.acceptance, 2);
  showShare("kv", figures?.blocks);
  showShare("slots", figures?.slots);
}

function showShare(name, pair) {
  const [used, total] = pair ?? [0, 0];
  $(`s-${name}`).textContent = total ? `${used} of ${total}` : "–";
  $(`m-${name}`).style.width = `${total ? (100 * used) / total : 0}%`;
}
