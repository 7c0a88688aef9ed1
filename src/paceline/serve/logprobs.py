"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.engine.detokenizer import TokenBytes
    from paceline.engine.results import TokenLogprobs


class LogprobsWriter:
    """Writes the tokens of one model."""

    def __init__(self, table: TokenBytes):
        self._table = table

    def chat(self, entries: list[TokenLogprobs]) -> dict[str, Any]:
        """The `logprobs` object of a chat choice."""
        content = [
            {
                **self._entry(entry.token_id, entry.logprob),
                "top_logprobs": [self._entry(token, value) for token, value in entry.top.items()],
            }
            for entry in entries
        ]
        return {"content": content, "refusal": None}

    def completion(self, entries: list[TokenLogprobs], offset: int) -> dict[str, Any]:
        """The `logprobs` object of a completion; `offset` is the length of the text before these tokens."""
        tokens = [self._text(entry.token_id) for entry in entries]
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [{self._text(t): v for t, v in entry.top.items()} for entry in entries],
            "text_offset": offsets,
        }

    def length(self, entries: list[TokenLogprobs]) -> int:
        """Characters of these tokens' texts."""
        return sum(len(self._text(entry.token_id)) for entry in entries)

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {"token": self._text(token_id), "logprob": logprob, "bytes": list(self._table[token_id])}

    def _text(self, token_id: int) -> str:
        return self._table[token_id].decode("utf-8", errors="replace")
