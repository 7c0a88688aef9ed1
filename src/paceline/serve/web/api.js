// Talks to the server. Paths are relative, so that the page also works behind a proxy that serves it below a path.

const KEY = "paceline-key";

/** An answer that is an error, or no answer at all (status 0). */
export class ServerError extends Error {
  constructor(message, status, retryAfter = 0) {
    super(message);
    this.status = status;
    /** Seconds that the server asks to wait. */
    this.retryAfter = retryAfter;
  }
}

let key = null;

/** The API key of this tab. */
export function apiKey() {
  if (key === null) {
    try {
      key = sessionStorage.getItem(KEY) ?? "";
    } catch {
      key = ""; // storage is switched off
    }
  }
  return key;
}

/** Keep a key for this tab: session storage is gone when the tab is. */
export function setApiKey(value) {
  key = value;
  try {
    sessionStorage.setItem(KEY, value);
  } catch {
    // kept in memory only
  }
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (apiKey()) headers.authorization = `Bearer ${apiKey()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer.", 0);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let message = "";
  try {
    message = (await response.json()).error.message;
  } catch {
    // not the server's own words: a proxy's, perhaps
  }
  const wait = Number(response.headers.get("retry-after")) || 0;
  return new ServerError(message || `The server answers with status ${response.status}.`, response.status, wait);
}

/** The first served model: {id, max_model_len, paceline: {chat, method, num_speculative_tokens}}. */
export async function model() {
  return (await (await ask("v1/models")).json()).data[0];
}

/** The text that Prometheus reads; empty while the engine loads. */
export async function metricsText() {
  return (await ask("metrics", { signal: AbortSignal.timeout(5000) })).text();
}

/** Raises ServerError (503) where the engine cannot generate now. */
export async function health() {
  await ask("health", { signal: AbortSignal.timeout(5000) });
}

/** Send a request and give each chunk of its stream to `take`. Ends with the stream; raises ServerError. */
export async function stream(path, body, signal, take) {
  const options = {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  };
  const reader = (await ask(path, options)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let whole = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.slice(event.indexOf("data:") + 5).trim();
        if (data === "[DONE]") whole = true;
        else takeChunk(JSON.parse(data), take);
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
    throw new ServerError("The connection broke off in the middle of the answer.", 0);
  }
  if (!whole) throw new ServerError("The stream ended in the middle of the answer.", 0);
}

function takeChunk(chunk, take) {
  if (chunk.error) throw new ServerError(chunk.error.message, chunk.error.code === "engine_failed" ? 503 : 500);
  take(chunk);
}
