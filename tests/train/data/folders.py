"""Files that tests of training data read: prompts, settings, a chat template with a switch for reasoning."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

THINKING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n{% if not enable_thinking %}{{ '\n</think>\n\n' }}{% endif %}"
)


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    """A file of JSON lines; a text among `rows` is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def set_template(folder: Path, template: str) -> None:
    """Give a folder's tokenizer another chat template; an empty one: none at all."""
    jinja, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    values = json.loads(config.read_text())
    values.pop("chat_template", None)
    config.write_text(json.dumps(values))
    jinja.write_text(template)
    if not template:
        jinja.unlink()
