"""Answers of a given form: a grammar says which ids may come next, row by row inside a window.

The grammar reads what would have been written if the drafts before a row were accepted, so that a window's
rows are masked as plain decoding would mask them, one after the other; afterwards it takes in what was kept.
Needs xgrammar (the extra `structured`).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import torch

from paceline.errors import RequestError

if TYPE_CHECKING:
    from paceline.engine.detokenizer import TokenBytes

KEPT_GRAMMARS = 64
"""Compiled grammars that are kept for later requests of the same form."""
MOST_WHITESPACE = 40
"""Blanks and line ends between two marks of a JSON text. A form that allows any number of them lets a model
that likes them write nothing else until its tokens are used up."""
_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: (?:Check failed: .*? is false: )?")
"""Where in its own source the library has found a mistake."""
NEEDS_XGRAMMAR = "structured output needs xgrammar: pip install 'paceline[structured]'"


@dataclass(frozen=True, slots=True)
class Structure:
    """The form of an answer."""

    kind: Literal["json", "json_schema", "structural_tag"]
    text: str
    """The JSON schema, or xgrammar's structural tag, as JSON; empty for any JSON object."""
    param: str
    """The request's field that asks for it, for errors."""
    after: int | None = None
    """Token id behind which the form holds (the end of the reasoning); None: from the beginning."""


class Grammars:
    """Compiles the grammars of one tokenizer."""

    def __init__(self, table: TokenBytes, vocab_size: int, stop_ids: Iterable[int]):
        """`stop_ids` are those that may come once the form is complete."""
        self.vocab_size = vocab_size
        self._table = table
        self._stop_ids = [token for token in stop_ids if token < vocab_size]
        self._compiler: Any = None
        self._kept: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def start(self, structure: Structure) -> GrammarState:
        """A fresh state for one choice. Raises: RequestError for a form that cannot be compiled."""
        if find_spec("xgrammar") is None:
            raise RequestError(NEEDS_XGRAMMAR, param=structure.param)
        from xgrammar import GrammarMatcher

        key = (structure.kind, structure.text)
        compiled = self._kept.pop(key, None) or self._compile(structure)
        self._kept[key] = compiled
        if len(self._kept) > KEPT_GRAMMARS:
            self._kept.popitem(last=False)
        return GrammarState(GrammarMatcher(compiled), structure.after)

    def _compile(self, structure: Structure) -> Any:
        if self._compiler is None:
            self._compiler = self._make_compiler()
        try:
            if structure.kind != "structural_tag":
                text = structure.text if structure.kind == "json_schema" else '{"type": "object"}'
                return self._compiler.compile_json_schema(text, max_whitespace_cnt=MOST_WHITESPACE)
            return self._compiler.compile_structural_tag(structure.text)
        except Exception as error:  # the library raises its own kinds for bad schemas
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            reason = _PLACE.sub("", reason)[:300]
            raise RequestError(f"the form cannot be followed: {reason}", param=structure.param) from None

    def _make_compiler(self) -> Any:
        from xgrammar import GrammarCompiler, TokenizerInfo, VocabType

        # A special token has no text of its own: the grammar must never ask for one but to stop.
        special = self._table.special_ids
        words = [b"" if i in special else self._table[i] for i in range(self.vocab_size)]
        info = TokenizerInfo(words, VocabType.RAW, vocab_size=self.vocab_size, stop_token_ids=self._stop_ids)
        return GrammarCompiler(info, max_threads=1, cache_enabled=False)


class GrammarState:
    """Where one choice stands in its grammar."""

    def __init__(self, matcher: Any, after: int | None):
        self._matcher, self._after = matcher, after
        self._waiting = after is not None

    def fill(self, bitmask: torch.Tensor, row: int, drafts: Sequence[int]) -> None:
        """Write the masks of a window's rows: `row` on, the anchor's first. Leaves the state as it was.

        Rows behind a draft that the grammar does not allow, or that ends it, stay open: none is kept.
        """
        matcher, waiting, taken = self._matcher, self._waiting, 0
        for offset in range(len(drafts) + 1):
            if not waiting and not matcher.is_terminated():
                matcher.fill_next_token_bitmask(bitmask, row + offset)
            if offset == len(drafts):
                break
            token = drafts[offset]
            if waiting:
                waiting = token != self._after
            elif matcher.is_terminated() or not _has(bitmask[row + offset], token):
                break
            else:
                matcher.accept_token(token)
                taken += 1
        if taken:
            matcher.rollback(taken)

    def advance(self, tokens: Iterable[int]) -> bool:
        """Take in tokens that were kept; False where the form has come to a dead end.

        A row that allows nothing gives some token nevertheless: a small vocabulary may lack a letter.
        """
        for token in tokens:
            if self._waiting:
                self._waiting = token != self._after
            elif not self._matcher.is_terminated() and not self._matcher.accept_token(token):
                return False
        return True


def _has(mask: torch.Tensor, token: int) -> bool:
    """Whether a row's mask allows a token; an id beyond it is none of the tokenizer's (a draft may be)."""
    return token >> 5 < len(mask) and bool(int(mask[token >> 5]) >> (token & 31) & 1)


def allowed_ids(
    states: Sequence[GrammarState | None],
    drafts: Sequence[Sequence[int]],
    starts: Sequence[int],
    shape: tuple[int, int],
    device: torch.device,
) -> torch.Tensor | None:
    """[R, V] bool: ids that each row of a step may give; None where no sequence follows a grammar.

    states, drafts and starts: one a sequence; sequence i has the rows from `starts[i]` on. shape: (R, V).
    """
    if not any(states):
        return None
    from xgrammar import allocate_token_bitmask

    rows, vocab = shape
    bitmask = allocate_token_bitmask(rows, vocab)
    for state, drafted, start in zip(states, drafts, starts, strict=True):
        if state is not None:
            state.fill(bitmask, start, drafted)
    bits = bitmask.to(device)[:, :, None] >> torch.arange(32, device=device, dtype=torch.int32)
    return (bits & 1).bool().view(rows, -1)[:, :vocab]
