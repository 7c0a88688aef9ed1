"""Says of each token of a stream where it came from, and what text it brought."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from paceline.engine.detokenizer import Detokenizer

if TYPE_CHECKING:
    from paceline.engine.detokenizer import TokenBytes
    from paceline.engine.results import StreamEvent


class Tracer:
    """Traces the choices of one answer."""

    def __init__(self, table: TokenBytes):
        self._texts: defaultdict[tuple[str, int], Detokenizer] = defaultdict(lambda: Detokenizer(table))

    def trace(self, event: StreamEvent) -> dict[str, Any]:
        """The `paceline` object of an event's chunk.

        `tokens` has each token's id, its source (an accepted draft, the bonus behind drafts, or plain: no
        drafts were tried) and its text. A character that spans tokens belongs to the token that completes
        it, so that the texts put together are the choice's text before stop strings and parsers take their
        share; half a character at the very end belongs to none. `drafted` is how many drafts the verification
        held.
        """
        behind = "bonus" if event.drafted else "plain"
        text = self._texts[event.id, event.index]
        tokens = [
            {"id": token, "source": "draft" if i < event.accepted else behind, "text": text.push(token)}
            for i, token in enumerate(event.token_ids)
        ]
        return {"tokens": tokens, "drafted": event.drafted}
