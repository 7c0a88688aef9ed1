"""The one output processor, for offline use and for the server: text, stops and limits, token by token.

A verification window emits several tokens at once, yet every rule here is applied to one token after the
other, so that the outcome does not depend on how tokens were grouped. For each token, in this order:

1. an end id (EOS unless `ignore_eos`, or one of `stop_token_ids`) ends the sequence. It stays in `token_ids`;
   its text is left out unless `include_stop_str_in_output`;
2. its text may complete a stop string. Of several, the one whose last character comes first wins, and of
   those that end at the same character the longest. The text ends before the stop string, or after it with
   `include_stop_str_in_output`;
3. `max_tokens` is reached: "length".

The first `min_tokens` tokens can end nothing by 1 or 2 (as in vLLM, where a stop may come after them). All
that follows the ending token is dropped from text, ids and log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.config.sampling import SamplingParams
from paceline.engine.detokenizer import Detokenizer, TokenBytes
from paceline.engine.results import TokenLogprobs
from paceline.errors import RequestError

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one push added to a sequence."""

    text: str
    """New text; what might be the beginning of a stop string waits until it is settled."""
    token_ids: list[int]
    """Tokens that were kept: fewer than pushed if the sequence ended among them."""
    logprobs: list[TokenLogprobs] | None
    """One entry for each kept token, if the push had any."""
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    """The stop string or stop id that ended the sequence; None for EOS and length."""


class StopStrings:
    """Finds stop strings in text that arrives in pieces; keeps no more text than a stop string is long."""

    def __init__(self, stops: Iterable[str], *, include: bool) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._include = include
        self._longest = max((len(s) for s in self._stops), default=0)
        # Text that is a proper prefix of some stop string. A stop string can begin nowhere before it.
        self._held = ""

    def feed(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Text that is now settled, and the stop string that `text` completes (never one if not `armed`)."""
        if not self._stops:
            return text, None
        window = self._held + text
        found = self._earliest(window, len(self._held)) if armed else None
        if found is not None:
            stop, begin = found
            self._held = ""
            return window[: begin + len(stop) if self._include else begin], stop
        keep = self._partial(window)
        self._held = window[len(window) - keep :]
        return window[: len(window) - keep], None

    def release(self) -> str:
        """The held text: the sequence has ended otherwise."""
        held, self._held = self._held, ""
        return held

    def _earliest(self, window: str, old: int) -> tuple[str, int] | None:
        """(stop, begin) of the first to end behind the first `old` characters; on equal ends the longest."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            begin = window.find(stop, max(0, old - len(stop) + 1))
            if begin >= 0 and (best is None or (begin + len(stop), begin) < best[:2]):
                best = (begin + len(stop), begin, stop)
        return None if best is None else (best[2], best[1])

    def _partial(self, window: str) -> int:
        """Length of the longest suffix of `window` that is a proper prefix of a stop string."""
        for size in range(min(self._longest - 1, len(window)), 0, -1):
            tail = window[-size:]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stops):
                return size
        return 0


class OutputProcessor:
    """Text, ids and end of one sequence. `push` what the engine emits; it keeps what is the answer's."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        eos_ids: Iterable[int],
        table: TokenBytes | None,
        max_tokens: int | None = None,
    ) -> None:
        """`max_tokens` is the engine's own limit (what the context holds) on top of the request's.

        `table` is None for a model without a tokenizer: the text stays empty, and a request with stop strings
        raises `RequestError`.
        """
        if table is None and params.stop:
            raise RequestError("stop needs a tokenizer, which this model does not have", param="stop")
        limits = [limit for limit in (params.max_tokens, max_tokens) if limit is not None]
        self._max_tokens = min(limits, default=None)
        assert self._max_tokens is None or self._max_tokens > 0
        self._params = params
        self._eos_ids = frozenset() if params.ignore_eos else frozenset(eos_ids)
        self._end_ids = self._eos_ids | frozenset(params.stop_token_ids)
        self._detokenizer = (
            None if table is None else Detokenizer(table, skip_special_tokens=params.skip_special_tokens)
        )
        self._stops = StopStrings(params.stop, include=params.include_stop_str_in_output)
        self._pieces: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        """All text so far without what is held back; the final text once `finish_reason` is set."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def push(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None = None) -> Delta:
        """Take in emitted tokens, in order, up to the one that ends the sequence.

        `logprobs`, if given, has one entry a token. After the end nothing is taken in.
        """
        assert logprobs is None or len(logprobs) == len(token_ids)
        before, text = len(self.token_ids), []
        for token_id in token_ids:
            if self.finish_reason is not None:
                break
            text.append(self._take(token_id))
        kept = len(self.token_ids) - before
        if logprobs is not None:
            self.logprobs.extend(logprobs[:kept])
        return self._delta("".join(text), kept, logprobs)

    def abort(self) -> Delta:
        """End the sequence from outside; text that was held back comes out."""
        if self.finish_reason is not None:
            return self._delta("", 0, None)
        return self._delta(self._end("abort", None), 0, None)

    def _delta(self, text: str, kept: int, logprobs: Sequence[TokenLogprobs] | None) -> Delta:
        if text:
            self._pieces.append(text)
        ids = self.token_ids[len(self.token_ids) - kept :]
        entries = None if logprobs is None else list(logprobs[:kept])
        return Delta(text, ids, entries, self.finish_reason, self.stop_reason)

    def _take(self, token_id: int) -> str:
        """Apply the rules to one token; returns the text that it settles."""
        self.token_ids.append(token_id)
        armed = len(self.token_ids) > self._params.min_tokens
        if armed and token_id in self._end_ids:
            shown = self._params.include_stop_str_in_output
            reason = None if token_id in self._eos_ids else token_id
            return self._end("stop", reason, self._decode(token_id) if shown else "")
        text, stop = self._stops.feed(self._decode(token_id), armed=armed)
        if stop is not None:
            self.finish_reason, self.stop_reason = "stop", stop
        elif len(self.token_ids) == self._max_tokens:
            text += self._end("length", None)
        return text

    def _decode(self, token_id: int) -> str:
        return "" if self._detokenizer is None else self._detokenizer.push(token_id)

    def _end(self, reason: FinishReason, stop_reason: str | int | None, last: str = "") -> str:
        """Set the end and return the text that was still held, `last` and half a character included."""
        self.finish_reason, self.stop_reason = reason, stop_reason
        rest = "" if self._detokenizer is None else self._detokenizer.flush()
        return self._stops.release() + last + rest
