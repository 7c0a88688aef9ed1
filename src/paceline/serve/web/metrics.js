// Reads what /metrics says. It needs no key and tells nothing of any request.

/** Sums of every metric in Prometheus' text, by name. */
export function parse(text) {
  const sums = new Map();
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const name = line.slice(0, line.search(/[{ ]/));
    sums.set(name, (sums.get(name) ?? 0) + Number(line.slice(line.lastIndexOf(" ") + 1)));
  }
  return sums;
}

/** Remembers the last reading, because speeds are differences of two. */
export class ServerFigures {
  #before = null;

  /** Figures of a reading at `now` (milliseconds): null while the engine loads. */
  take(text, now) {
    const sums = parse(text);
    if (!sums.size) return null;
    const tokens = sums.get("vllm:generation_tokens_total") ?? 0;
    const before = this.#before;
    this.#before = { tokens, now };
    const drafts = sums.get("vllm:spec_decode_num_drafts_total") ?? 0;
    return {
      running: sums.get("vllm:num_requests_running") ?? 0,
      waiting: sums.get("vllm:num_requests_waiting") ?? 0,
      // An engine that was restarted counts on, a server that was restarted counts from 0.
      speed: before && tokens >= before.tokens ? ((tokens - before.tokens) * 1000) / (now - before.now) : null,
      acceptance: drafts ? 1 + sums.get("vllm:spec_decode_num_accepted_tokens_total") / drafts : null,
      blocks: [sums.get("paceline:kv_blocks_used") ?? 0, sums.get("paceline:kv_blocks_total") ?? 0],
      slots: [sums.get("paceline:recurrent_slots_used") ?? 0, sums.get("paceline:recurrent_slots_total") ?? 0],
    };
  }
}
