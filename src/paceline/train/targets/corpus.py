"""Texts and dialogues as they are read, and which of them are held out."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from paceline.config.lines import json_lines
from paceline.errors import ConfigError
from paceline.train.settings.target import AnswerSource, DialogueSource, SynthSource, TargetSettings
from paceline.train.synth.dialogue import Dialogue, Split, assistant, user
from paceline.train.synth.mix import WEIGHTS, Mix
from paceline.train.synth.prose import Continuations
from paceline.train.synth.render import Piece, pieces

PROMPTS = "prompts.jsonl"
END_OF_TEXT = "<|endoftext|>"
_LARGEST = 1 << 16
"""Characters of a document; longer ones are cut, so that a part of them can be held out and packed."""


@dataclass(frozen=True)
class Passage:
    """One document or dialogue: text in pieces, and what it belongs to."""

    pieces: tuple[Piece, ...]
    kind: str
    split: Split
    repeat: int = 1

    @cached_property
    def text(self) -> str:
        """All of it."""
        return "".join(piece.text for piece in self.pieces)


def passages(settings: TargetSettings) -> Iterator[Passage]:
    """Every document and dialogue of the sources, in the order in which they are configured.

    Raises ConfigError that names what cannot be read.
    """
    share = settings.held_out.share
    for text in settings.text:
        for document in _documents(Path(text.path)):
            # A text ends with a token that says so, which the model learns to write.
            piece = Piece(document + END_OF_TEXT, True)
            yield Passage((piece,), text.kind, split_of(document, share), text.repeat)
    for chats in settings.dialogues:
        yield from _spoken(read_dialogues(chats), chats.kind, chats.repeat, share)
    for answers in settings.answers:
        yield from _spoken(_answers(answers), answers.kind, answers.repeat, share)
    for made in settings.synth:
        yield from _made(made, "train", made.count, share)
        yield from _made(made, "held_out", made.held_out, share)


def split_of(text: str, share: float) -> Split:
    """Where a text belongs, by a hash of it: the same wherever it stands and whatever stands beside it."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return "held_out" if int.from_bytes(digest, "big") < share * 2**64 else "train"


def _documents(path: Path) -> Iterator[str]:
    """Texts of at most twice `_LARGEST` characters, without blank lines around them."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"text: {path} is an empty folder", key="text")
    for file in files:
        for text in _read(file).split(f"{END_OF_TEXT}\n"):
            for part in _cut(text.replace(END_OF_TEXT, "").strip("\n")):
                if part.strip():
                    yield part


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode("utf-8")
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as exc:
        raise ConfigError(f"text: cannot read {path}: {exc}", key="text") from exc


def _cut(text: str) -> Iterator[str]:
    """A very long text in parts that end at blank lines where there are any."""
    while len(text) > 2 * _LARGEST:
        at = text.find("\n\n", _LARGEST, 2 * _LARGEST)
        at = at if at > 0 else _LARGEST
        yield text[:at]
        text = text[at:].lstrip("\n")
    yield text


def _spoken(dialogues: Iterable[Dialogue], kind: str, repeat: int, share: float) -> Iterator[Passage]:
    for dialogue in dialogues:
        said = tuple(pieces(dialogue))
        yield Passage(said, kind, split_of("".join(p.text for p in said), share), repeat)


def read_dialogues(source: DialogueSource) -> Iterator[Dialogue]:
    """Its lines. Raises: ConfigError that names the file, and the line where one is no dialogue."""
    for where, row in json_lines(Path(source.path), "dialogues"):
        try:
            found = Dialogue(row["messages"], source.kind, bool(row.get("thinking")), row.get("tools"))
            roles = [message["role"] for message in found.messages]
            if roles[-1] != "assistant" or "user" not in roles:
                raise ValueError("a dialogue has a question and ends with an answer")
        except (ValueError, KeyError, TypeError, IndexError) as exc:
            raise ConfigError(f"{where}: {exc!r}", key="dialogues") from exc
        yield found


def _answers(source: AnswerSource) -> Iterator[Dialogue]:
    """Questions of prompts.jsonl with the answers of PART.npz, ids of another tokenizer, as text."""
    folder = Path(source.folder)
    try:
        tokenizer = Tokenizer.from_file(str(Path(source.tokenizer) / "tokenizer.json"))
        lines = (folder / PROMPTS).read_text(encoding="utf-8-sig").splitlines()
        with np.load(folder / f"{source.part}.npz") as file:
            numbers, offsets, ids = (file[name] for name in ("number", "offsets", "ids"))
    except Exception as exc:  # tokenizers raises nothing narrower
        raise ConfigError(f"answers: cannot read {folder}: {exc}", key="answers") from exc
    asked = [_question(line, f"{folder / PROMPTS}, line {at}") for at, line in enumerate(lines, start=1)]
    if len(numbers) != len(offsets) - 1 or not all(0 <= number < len(asked) for number in numbers):
        raise ConfigError(
            f"answers: {folder / source.part}.npz does not belong to the {len(asked)} lines of {PROMPTS}: "
            "make both anew",
            key="answers",
        )
    texts = tokenizer.decode_batch(
        [ids[a:b].tolist() for a, b in pairwise(offsets)], skip_special_tokens=True
    )
    for number, text in zip(numbers.tolist(), texts, strict=True):
        yield Dialogue([user(asked[number]), assistant(text)], source.kind)


def _question(line: str, where: str) -> str:
    try:
        question = json.loads(line)["prompt"]
        if isinstance(question, str):
            return question
    except (ValueError, KeyError, TypeError):
        pass
    raise ConfigError(f'answers: {where}: needs {{"prompt": "a text"}}', key="answers")


def _made(source: SynthSource, split: Split, count: int, share: float) -> Iterator[Passage]:
    """Generated dialogues. Nothing of them is taken from documents that are held out as texts."""
    extra = {}
    if source.novels:
        known = (text for novel in source.novels for text in _documents(Path(novel)))
        extra["prose"] = Continuations([text for text in known if split_of(text, share) == "train"])
    mix = Mix(source.seed, source.weights or WEIGHTS, split, extra)
    for index in range(count):
        yield Passage(tuple(pieces(mix.at(index))), source.kind, split)
