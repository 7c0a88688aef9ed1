"""A call's arguments as JSON text that grows and is never taken back.

The keys come in the order in which the model wrote them. Strings grow with the model's output; other values
are written when they are whole, because their type is known only then. A key that comes a second time is
ignored, for the first is out already and JSON with a key twice means different things to different readers.
"""

from __future__ import annotations

from paceline.serve.parsers.coerce import coerce, dumps
from paceline.serve.parsers.schema import ParameterKinds


class ArgumentsWriter:
    """Writes one object. Every method returns the JSON text that it adds, which may be none."""

    def __init__(self, kinds: ParameterKinds) -> None:
        self._kinds = kinds
        self._keys: set[str] = set()
        self._key: str | None = None  # None also while a key is ignored

    def expects(self, key: str) -> bool:
        """Whether the schema names this key and it has not come yet."""
        return self._kinds.knows(key) and key not in self._keys

    @property
    def streams(self) -> bool:
        """Whether the open value may be given in pieces."""
        return self._key is None or self._kinds[self._key].is_text

    def open(self, key: str) -> str:
        """A parameter begins."""
        if key in self._keys:
            self._key = None
            return ""
        head = f"{', ' if self._keys else '{'}{dumps(key)}: "
        self._keys.add(key)
        self._key = key
        return head + '"' if self.streams else head

    def grow(self, text: str) -> str:
        """More of a value that `streams`."""
        assert self.streams
        return "" if self._key is None else dumps(text)[1:-1]

    def close(self, text: str) -> str:
        """The parameter ends; `text` is the rest of a value that `streams`, else all of it."""
        key, streams = self._key, self.streams
        self._key = None
        if key is None:
            return ""
        return dumps(text)[1:] if streams else dumps(coerce(text, self._kinds[key]))

    def end(self) -> str:
        """The call ends."""
        return "}" if self._keys else "{}"
