"""Token ids to text, one token at a time, for byte-level tokenizers.

The text of a sequence is the concatenation of its tokens' bytes, decoded as UTF-8 with U+FFFD for what is
invalid: the same as decoding all ids at once. A token may end inside a character; its bytes then wait for the
next token, so that a stream never shows half a character. Work per token is proportional to the token,
however long the text is.
"""

from __future__ import annotations

import codecs
import json
from typing import Any

from paceline.errors import UnsupportedModelError


def _byte_of_char() -> dict[str, int]:
    """Inverse of the byte-level alphabet: printable Latin-1 is itself, other bytes sit at U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in own}
    others = [b for b in range(256) if b not in set(own)]
    table.update({chr(0x100 + i): b for i, b in enumerate(others)})
    return table


_BYTE_OF_CHAR = _byte_of_char()


def token_to_bytes(token: str) -> bytes:
    """Bytes that a vocabulary entry stands for; one outside the byte alphabet stands for its own UTF-8."""
    try:
        return bytes(_BYTE_OF_CHAR[c] for c in token)
    except KeyError:
        return token.encode()


class TokenBytes:
    """Bytes of each token id of one tokenizer; shared by all requests."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a `tokenizers.Tokenizer` or a transformers tokenizer that wraps one.

        Raises `UnsupportedModelError` if it is not byte-level.
        """
        self._tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        kind = _decoder_kind(self._tokenizer)
        if kind != "ByteLevel":
            raise UnsupportedModelError(
                f"tokenizer.json: the decoder is {kind}, paceline reads byte-level tokenizers (ByteLevel)"
            )
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._known: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """Bytes of a token; an id that the tokenizer does not know has none."""
        found = self._known.get(token_id)
        if found is None:
            token = self._tokenizer.id_to_token(token_id)
            found = self._known[token_id] = b"" if token is None else token_to_bytes(token)
        return found

    def text(self, token_id: int) -> str | None:
        """What a token stands for between whole characters; None where its bytes are none by themselves."""
        if token_id not in self._texts:
            try:
                self._texts[token_id] = self[token_id].decode()
            except UnicodeDecodeError:
                self._texts[token_id] = None
        return self._texts[token_id]


def _decoder_kind(backend: Any) -> str:
    if backend.decoder is None:
        return "absent"
    state = json.loads(backend.decoder.__getstate__())
    if state["type"] == "Sequence" and len(state["decoders"]) == 1:
        state = state["decoders"][0]
    return str(state["type"])


class Detokenizer:
    """The text of one sequence, as it comes."""

    def __init__(self, table: TokenBytes, *, skip_special_tokens: bool = True) -> None:
        self._table = table
        self._skipped = table.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._half = False  # whether bytes of an unfinished character wait in the decoder

    def push(self, token_id: int) -> str:
        """Text that is settled by this token: whole characters only."""
        if token_id in self._skipped:
            return ""
        text = None if self._half else self._table.text(token_id)
        if text is None:
            text = self._decoder.decode(self._table[token_id])
            self._half = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, else nothing."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._half = False
        return text
