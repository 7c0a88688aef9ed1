"""Everything that the demo learns from, as folders of samples in its own token ids.

    python -m paceline.train.synth.samples SETTINGS.yaml OUT --tokenizer DIR --dialogues DIR --corpus DIR

Four kinds: `dialogues` (written by a small instruction model, see `dialogues`), `synth` (the generators of
this package), `prose` (continuations of novels) and `text` (plain documents). OUT/<kind> receives the
training part, OUT/held_out/<kind> a part that nothing is trained on, OUT/prompts.jsonl the questions for
on-policy answers. Dialogues whose question stands in the benchmark are left out.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer

from paceline.train.data.filters import repeated_share
from paceline.train.data.held_out import HeldOut
from paceline.train.data.shards import Sample, ShardWriter
from paceline.train.settings.base import Section, load_yaml
from paceline.train.synth.dialogue import Dialogue, Split, assistant, is_held_out, user
from paceline.train.synth.mix import Mix
from paceline.train.synth.prose import Continuations
from paceline.train.synth.render import pieces

BENCH = Path(__file__).parents[2] / "bench" / "prompts.jsonl"
_CHUNK = 512
Kind = Literal["dialogues", "synth", "prose", "text"]


class TextFile(Section):
    """One file of plain documents."""

    file: str
    tokens: int
    """How many of its tokens are taken, documents in a random order."""


class SampleSettings(Section):
    """What goes in, and how much of it."""

    seed: int = 0
    length: int = 1024
    """Longest sample; documents are cut into pieces of this many tokens."""
    dialogues: tuple[str, ...] = ("brief", "own")
    """Parts of the dialogues folder."""
    max_answer_tokens: int = 260
    """Longer answers are left out: the demo is to be brief."""
    synth: int = 100_000
    synth_weights: dict[str, float] | None = None
    prose: int = 10_000
    prose_files: tuple[str, ...] = ()
    texts: tuple[TextFile, ...] = ()
    held_out_synth: int = 600
    prompts: int = 120_000
    """Questions for on-policy answers: from dialogues, generators and novels, in that order of number."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where everything lies."""

    settings: SampleSettings
    tokenizer: Path
    dialogues: Path
    corpus: Path


def sample_of(dialogue: Dialogue, tokenizer: Tokenizer, name: str) -> Sample | None:
    """A dialogue in token ids; what stands before the last stretch that is to be learnt is its prompt.

    None where an answer was already over before another one began to be asked for (nothing to learn)."""
    parts = pieces(dialogue)
    last = max((i for i, piece in enumerate(parts) if piece.learn), default=-1)
    if last < 0:
        return None
    prompt = "".join(piece.text for piece in parts[:last])
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in (prompt, parts[last].text)]
    return Sample(name, dialogue.category, dialogue.thinking, ids[0], ids[1], "stop")


def _spoken(sources: Sources, part: str) -> Iterator[Dialogue]:
    """The dialogues of one part whose answer ended by itself, did not loop and is not too long."""
    from transformers import AutoTokenizer  # reads the writer's own tokenizer

    asked = [json.loads(line) for line in (sources.dialogues / "prompts.jsonl").open(encoding="utf-8")]
    writer: Any = AutoTokenizer.from_pretrained(sources.dialogues)
    with np.load(sources.dialogues / f"{part}.npz") as made:
        numbers, stopped, offsets, ids = (made[n] for n in ("number", "stopped", "offsets", "ids"))
    for i, number in enumerate(numbers.tolist()):
        answer = ids[offsets[i] : offsets[i + 1]].tolist()
        if not stopped[i] or len(answer) > 224 or repeated_share(answer) > 0.1:
            continue
        question, text = asked[number], writer.decode(answer[:-1]).strip()
        if text and "<|" not in text:
            messages = [user(question["prompt"]), assistant(text)]
            if part == "own":
                messages.insert(0, {"role": "system", "content": "Answer in detail."})
            yield Dialogue(messages, question["category"])


def _novels(sources: Sources) -> Continuations:
    return Continuations([_read(sources.corpus / name) for name in sources.settings.prose_files])


def _read(path: Path) -> str:
    raw = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    return raw.decode("utf-8", "replace")


def _documents(sources: Sources, source: TextFile, tokenizer: Tokenizer) -> Iterator[Sample]:
    """Pieces of documents up to the wanted number of tokens."""
    documents = _read(sources.corpus / source.file).split("<|endoftext|>")
    random.Random(sources.settings.seed).shuffle(documents)
    taken, length = 0, sources.settings.length
    for number, document in enumerate(d.strip() for d in documents):
        if len(document) < 200:
            continue
        ids = [*tokenizer.encode(document[: 40 * length], add_special_tokens=False).ids, 0]
        for start in range(0, len(ids), length):
            name = f"{source.file}:{number}:{start}"
            yield Sample(name, "text", False, [], ids[start : start + length], "stop")
        taken += len(ids)
        if taken >= source.tokens:
            return


class Maker:
    """Makes the samples of one slice of one kind, in a worker process."""

    def __init__(self, sources: Sources) -> None:
        self.sources, self.settings = sources, sources.settings
        self.tokenizer = Tokenizer.from_file(str(sources.tokenizer / "tokenizer.json"))

    def generated(self, kind: Kind, split: Split, start: int, count: int) -> Iterator[Sample]:
        """Samples start .. start + count of the generators or the novels."""
        at: Callable[[int], Dialogue]
        if kind == "prose":
            novels = _novels(self.sources)
            at = partial(_numbered, novels, self.settings.seed, split)
        else:
            weights = self.settings.synth_weights
            mix = Mix(self.settings.seed, weights, split) if weights else Mix(self.settings.seed, split=split)
            at = mix.at
        for index in range(start, start + count):
            yield from self._kept(at(index), f"{kind}:{split}:{index}")

    def _kept(self, dialogue: Dialogue, name: str) -> Iterator[Sample]:
        sample = sample_of(dialogue, self.tokenizer, name)
        if sample and len(sample.prompt_ids) + len(sample.answer_ids) <= self.settings.length:
            yield sample

    def spoken(self, part: str) -> Iterator[Sample]:
        """The dialogues of one part that the benchmark does not hold."""
        bench = HeldOut((json.loads(line)["prompt"] for line in BENCH.open(encoding="utf-8")), 0.3)
        for number, dialogue in enumerate(_spoken(self.sources, part)):
            if bench.refuses(str(dialogue.messages[-2]["content"])) is None:
                for sample in self._kept(dialogue, f"{part}:{number}"):
                    if len(sample.answer_ids) <= self.settings.max_answer_tokens:
                        yield sample

    def texts(self, source: TextFile) -> Iterator[Sample]:
        """Plain documents."""
        return _documents(self.sources, source, self.tokenizer)


def _numbered(novels: Continuations, seed: int, split: Split, index: int) -> Dialogue:
    return novels(seed, index, split)


def _work(sources: Sources, method: str, arguments: tuple[Any, ...]) -> list[Sample]:
    return list(getattr(Maker(sources), method)(*arguments))


def jobs(settings: SampleSettings) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """(folder, method of `Maker`, its arguments) that cover everything."""
    for kind, count in (("synth", settings.synth), ("prose", settings.prose)):
        if kind == "synth" or settings.prose_files:
            for start in range(0, count, 16 * _CHUNK):
                yield kind, "generated", (kind, "train", start, min(16 * _CHUNK, count - start))
            held = settings.held_out_synth if kind == "synth" else settings.held_out_synth // 6
            yield f"held_out/{kind}", "generated", (kind, "held_out", 0, held)
    for part in settings.dialogues:
        yield "dialogues", "spoken", (part,)
    for source in settings.texts:
        yield "text", "texts", (source,)


def write(sources: Sources, out: Path, workers: int) -> dict[str, int]:
    """Write every folder; returns tokens by folder."""
    meta = {"vocab_size": Tokenizer.from_file(str(sources.tokenizer / "tokenizer.json")).get_vocab_size(),
            "settings": sources.settings.model_dump(mode="json")}  # fmt: skip
    writers: dict[str, ShardWriter] = {}
    tokens: dict[str, int] = {}
    with ProcessPoolExecutor(workers) as pool:
        running = [(f, pool.submit(_work, sources, m, a)) for f, m, a in jobs(sources.settings)]
        for folder, future in running:
            for sample in future.result():
                held = folder in ("dialogues", "text") and is_held_out("sample", sample.id, one_in=200)
                name = f"held_out/{folder}" if held else folder
                if name not in writers:
                    writers[name] = ShardWriter(out / name, meta)
                writers[name].write(sample)
                tokens[name] = tokens.get(name, 0) + len(sample.prompt_ids) + len(sample.answer_ids)
    for writer in writers.values():
        writer.close()
    return tokens


def questions(sources: Sources) -> Iterator[dict[str, Any]]:
    """Questions for on-policy answers, other generated ones than those that were trained on: lines for
    `paceline train data`."""
    settings = sources.settings
    bench = HeldOut((json.loads(line)["prompt"] for line in BENCH.open(encoding="utf-8")), 0.3)
    asked = (json.loads(line) for line in (sources.dialogues / "prompts.jsonl").open(encoding="utf-8"))
    spoken: Iterable[dict[str, Any]] = (
        {"messages": [user(a["prompt"])], "category": a["category"]}
        for a in asked
        if bench.refuses(a["prompt"]) is None
    )
    mix = Mix(settings.seed + 1, settings.synth_weights) if settings.synth_weights else Mix(settings.seed + 1)
    generated = (_question(d) for d in mix.stream())
    novels = _novels(sources) if settings.prose_files else None
    for index, line in enumerate(islice(_in_turn(spoken, generated), settings.prompts)):
        yield line
        if novels and index % 12 == 0:
            yield _question(novels(settings.seed + 1, index, "train"))


def _question(dialogue: Dialogue) -> dict[str, Any]:
    tools = {"tools": dialogue.tools} if dialogue.tools else {}
    return {"messages": dialogue.prompt, "category": dialogue.category, "thinking": dialogue.thinking, **tools}


def _in_turn(first: Iterable[Any], second: Iterator[Any]) -> Iterator[Any]:
    """One of each in turn; the second alone when the first is over."""
    for one in first:
        yield one
        yield next(second)
    yield from second


def main(argv: list[str] | None = None) -> None:
    """Write all folders and the questions."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("settings", type=Path)
    p.add_argument("out", type=Path)
    for name in ("tokenizer", "dialogues", "corpus"):
        p.add_argument(f"--{name}", type=Path, required=True, metavar="DIR")
    p.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    a = p.parse_args(argv)
    sources = Sources(load_yaml(a.settings, SampleSettings), a.tokenizer, a.dialogues, a.corpus)
    a.out.mkdir(parents=True, exist_ok=True)
    for folder, count in write(sources, a.out, a.workers).items():
        print(f"{folder}: {count} tokens", flush=True)
    with (a.out / "prompts.jsonl").open("w", encoding="utf-8") as file:
        for line in questions(sources):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
