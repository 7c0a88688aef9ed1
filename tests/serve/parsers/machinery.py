"""A tokenizer that is small but real, and the ways in which an output can reach a parser."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from paceline import SamplingParams
from paceline.engine.detokenizer import TokenBytes, token_to_bytes
from paceline.engine.output import OutputProcessor
from paceline.serve.parsers import Event, Message, ParserOptions, TagTokens, assemble
from paceline.serve.parsers.qwen3 import Qwen3Parser
from paceline.serve.parsers.tags import TAGS, TURN

EOS = "<|im_end|>"
PIECES = ["parameter", "function", "tool_call", "think", "\n\n", "</", ">\n", "=city", " the", "Paris"]


class Plain(str):
    """Text whose tags are spelled with ordinary tokens."""


Output = Sequence[str]
"""What a model wrote: parts in which tags are tokens, and `Plain` ones."""


@cache
def tokenizer() -> Tokenizer:
    """All bytes, a few longer pieces, the four tags (not special), the turn and end tokens (special)."""
    char = {token_to_bytes(char)[0]: char for char in pre_tokenizers.ByteLevel.alphabet()}
    words = [char[byte] for byte in range(256)]
    words += ["".join(char[byte] for byte in piece.encode()) for piece in PIECES]
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([EOS, TURN])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS.values()])
    return made


@cache
def table() -> TokenBytes:
    return TokenBytes(tokenizer())


@cache
def tags() -> TagTokens:
    return TagTokens.of(tokenizer(), table())


def encode(output: Output, piece_at: Callable[[int], bool] = lambda i: True) -> list[int]:
    """Ids of an output; `piece_at(i)` says whether the i-th chance to use a longer piece is taken."""
    ids: list[int] = []
    chances = itertools.count()
    for part in output:
        known = [*PIECES, *(() if isinstance(part, Plain) else (*TAGS.values(), EOS, TURN))]
        at = 0
        while at < len(part):
            word = next((w for w in reversed(known) if part.startswith(w, at)), None)
            if word is not None and (word not in PIECES or piece_at(next(chances))):
                ids.append(_id(word))
                at += len(word)
            else:
                ids += list(part[at].encode())
                at += 1
    return ids


def _id(word: str) -> int:
    return 256 + PIECES.index(word) if word in PIECES else tokenizer().token_to_id(word)


def increments(
    ids: Sequence[int], sizes: Iterable[int], params: SamplingParams
) -> Iterator[tuple[list[int], str]]:
    """What the engine's own output processor makes of ids that come `sizes` at a time."""
    processor = OutputProcessor(params, eos_ids=[_id(EOS)], table=table())
    rest, sizes = list(ids), iter(sizes)
    while rest:
        size = max(1, next(sizes, len(rest)))
        delta = processor.push(rest[:size])
        rest = rest[size:]
        yield delta.token_ids, delta.text
    if processor.finish_reason is None:
        delta = processor.abort()
        yield delta.token_ids, delta.text


def new_parser(options: ParserOptions, *, ids: bool = True, **kwargs: bool) -> Qwen3Parser:
    """A parser whose call ids count up."""
    counter = itertools.count()
    return Qwen3Parser(options, tags() if ids else None, make_id=lambda: f"call_{next(counter)}", **kwargs)


def run(parser: Qwen3Parser, pieces: Iterable[tuple[Sequence[int], str]]) -> list[Event]:
    """All events of one output."""
    events = [event for ids, text in pieces for event in parser.feed(ids, text)]
    return events + parser.finish()


def read(
    output: Output, options: ParserOptions, sizes: Iterable[int] = (), params: SamplingParams | None = None
) -> Message:
    """The message of an output, whose tokens come `sizes` at a time (then all the rest at once)."""
    params = SamplingParams(max_tokens=None) if params is None else params
    return assemble(run(new_parser(options), increments(encode(output), sizes, params)))


def read_text(text: str, options: ParserOptions, sizes: Iterable[int] = ()) -> Message:
    """The message of an output without ids, whose characters come `sizes` at a time."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(((), text[at : at + size]))
        at += size
    return assemble(run(new_parser(options, ids=False), [*pieces, ((), text[at:])]))
