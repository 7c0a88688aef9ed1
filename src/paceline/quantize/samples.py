"""Calibration samples: conversations from a JSON-lines file, or a few built-in ones, as token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.config.lines import json_lines
from paceline.engine.tokenizer import TextTokenizer, load_tokenizer
from paceline.errors import ConfigError, RequestError

Message = dict[str, str]

_BUILT_IN = (
    ("Why is the sky blue?", "Air scatters short wavelengths of sunlight far more than long ones."),
    ("Write a Python function that reverses a list.", "def reverse(items):\n    return items[::-1]"),
    ("What is 17 * 24?", "17 * 24 = 17 * 20 + 17 * 4 = 340 + 68 = 408."),
    ("Translate to German: Good morning, how are you?", "Guten Morgen, wie geht es Ihnen?"),
    ("Summarise: The meeting was moved to Friday because the room was taken.", "Meeting now on Friday."),
    ("List three prime numbers above 100.", "101, 103 and 107."),
    ("Give me JSON with a name and an age.", '{"name": "Ada", "age": 36}'),
    ("Explain recursion to a child.", "It is a box that holds a smaller box, until a box holds a sweet."),
    ("SELECT the five newest orders from a table.", "SELECT * FROM orders ORDER BY created DESC LIMIT 5;"),
    ("Tell me a short story.", "The lamp went out. Then, far below, someone lit another one."),
    ("What does HTTP 404 mean?", "The server has nothing at this address."),
    ("Wie hoch ist der Brocken?", "Der Brocken ist 1141 Meter hoch."),
    ("Fix this: for i in range(10) print(i)", "for i in range(10):\n    print(i)"),
    ("Is 2^61 - 1 prime?", "Yes, it is a Mersenne prime: 2305843009213693951."),
    ("Name the capital of Australia.", "Canberra."),
    ("Write a commit message for a typo fix.", "docs: fix a typo in the installation guide"),
    ("Compare TCP and UDP in one line.", "TCP delivers in order and retries; UDP just sends."),
    ("法国的首都是哪里?", "法国的首都是巴黎。"),
    ("Prove that the sum of two even numbers is even.", "2a + 2b = 2(a + b), and that is even. □"),
    ("Write CSS that centres a box.", ".box { display: grid; place-items: center; }"),
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What activations are measured on."""

    file: Path | None = None
    """JSON lines with `messages`, `prompt` (one user turn) or `text` (taken as it is); None: the built-in
    conversations."""
    samples: int = 20
    """The first so many are used."""
    seq_len: int = 8192
    """Longer samples are cut to so many tokens."""
    device: str = "cpu"

    def summary(self) -> dict[str, Any]:
        """For the record of an export."""
        source = self.file.name if self.file else "built-in"
        return {"source": source, "samples": self.samples, "seq_len": self.seq_len}


def load_samples(model: Path, calibration: Calibration, max_position: int) -> list[list[int]]:
    """Token ids of the samples; at least one token each.

    Raises: ConfigError for a bad option or line, and for a sample longer than the model's context.
    """
    for option in ("samples", "seq_len"):
        if getattr(calibration, option) < 1:
            raise ConfigError(f"--{option.replace('_', '-')} must be at least 1", key=option)
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        raise ConfigError(
            f"{model} has no tokenizer, which calibration needs; add tokenizer.json, or use a recipe without "
            "activation scales (w4a16_nvfp4)",
            key="calibration",
        )
    samples = []
    for where, entry in _entries(calibration):
        ids = _encode(tokenizer, where, entry)[: calibration.seq_len]
        if len(ids) > max_position:
            raise ConfigError(
                f"{where}: {len(ids)} tokens, but the model's context is {max_position}; "
                f"give --seq-len {max_position} or less",
                key="seq_len",
            )
        samples.append(ids)
    return samples


def _entries(calibration: Calibration) -> list[tuple[str, Mapping[str, Any]]]:
    if calibration.file is None:
        talks = [[_message("user", asked), _message("assistant", said)] for asked, said in _BUILT_IN]
        found: list[tuple[str, Mapping[str, Any]]] = [
            (f"built-in sample {i}", {"messages": talk}) for i, talk in enumerate(talks)
        ]
        return found[: calibration.samples]
    found = list(islice(json_lines(calibration.file, "calibration"), calibration.samples))
    if not found:
        raise ConfigError(f"{calibration.file} holds no sample", key="calibration")
    return found


def _encode(tokenizer: TextTokenizer, where: str, entry: Mapping[str, Any]) -> list[int]:
    messages = _messages(where, entry)
    try:
        if messages is None:
            ids = tokenizer.encode(entry["text"])
        elif tokenizer.has_chat_template:
            ids = tokenizer.encode_bare(tokenizer.render_chat(messages, add_generation_prompt=False))
        else:
            ids = tokenizer.encode("\n".join(message["content"] for message in messages))
    except RequestError as error:
        raise ConfigError(f"{where}: {error}", key="calibration") from None
    if not ids:
        raise ConfigError(f"{where}: the sample is empty", key="calibration")
    return ids


def _messages(where: str, entry: Mapping[str, Any]) -> list[Message] | None:
    """The conversation of a line; None for plain text."""
    if isinstance(entry.get("text"), str):
        return None
    if isinstance(entry.get("prompt"), str):
        return [_message("user", entry["prompt"])]
    messages = entry.get("messages")
    if isinstance(messages, list) and messages and all(_is_message(message) for message in messages):
        return messages
    raise ConfigError(
        f"{where}: needs `messages` (a list of role and content), `prompt` or `text`", key="calibration"
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
