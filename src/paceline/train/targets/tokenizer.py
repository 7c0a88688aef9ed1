"""The tokenizer of a target that is trained: a given one, or a new byte-level BPE."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline.errors import ConfigError
from paceline.train.modules.vocabulary import MARKS, MASK
from paceline.train.settings.target import NewTokenizer
from paceline.train.targets.corpus import END_OF_TEXT

TURN, END_OF_TURN = "<|im_start|>", "<|im_end|>"
# Words with one leading space or sign, single digits, runs of signs, line ends, runs of blanks (indentation).
_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str], settings: NewTokenizer) -> Tokenizer:
    """Learn a BPE. There is no normaliser: decode(encode(x)) == x for every string.

    The first ids are the end of a text, the two marks of a turn, Qwen's marks of reasoning and tools, and
    the mask token that drafters need.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        special_tokens=[END_OF_TEXT, TURN, END_OF_TURN, *MARKS, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def read_tokenizer(folder: Path) -> Tokenizer:
    """tokenizer.json of a folder. Raises ConfigError if there is none, or it lacks the marks of turns."""
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as exc:  # tokenizers raises nothing narrower
        raise ConfigError(
            f"tokenizer: cannot read {folder / 'tokenizer.json'}: {exc}", key="tokenizer"
        ) from exc
    for mark in (END_OF_TEXT, TURN, END_OF_TURN):
        if tokenizer.token_to_id(mark) is None:
            raise ConfigError(f"tokenizer: {folder} has no token {mark}, which turns need", key="tokenizer")
    return tokenizer


def eos_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids that end a text: of a turn, and of a document."""
    found = [tokenizer.token_to_id(mark) for mark in (END_OF_TEXT, END_OF_TURN)]
    return tuple(sorted(i for i in found if i is not None))
