"""Prompts: read from JSON lines, put into the model's chat format with reasoning on or off."""

from __future__ import annotations

import hashlib
import json
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.config.lines import json_lines
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.engine.tokenizer import TextTokenizer

Thinking = Literal["on", "off", "both", "asked"]
_MODES: dict[str, tuple[bool, ...]] = {"on": (True,), "off": (False,), "both": (True, False)}
_PROBE = [{"role": "user", "content": "?"}]


@dataclass(frozen=True)
class Prompt:
    """A conversation that waits for an answer."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    category: str | None = None
    name: str = ""
    """The `id` of its line, if it has one."""
    thinking: bool = False
    """What its line says of `thinking`; counts where the settings leave it to the lines."""

    @cached_property
    def question(self) -> str:
        """What the user says: the part that is compared with held-out prompts."""
        said = [_text(m) for m in self.messages if m["role"] == "user"] or [_text(m) for m in self.messages]
        return "\n".join(said)

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that equal prompts share: case, kinds of spaces and Unicode forms aside."""
        parts = [f"{m['role']}: {_text(m)} {m.get('tool_calls', '')}" for m in self.messages]
        whole = "\n".join([*parts, json.dumps(self.tools, sort_keys=True) if self.tools else ""])
        return hashlib.blake2b(normalised(whole).encode(), digest_size=16).digest()

    @property
    def key(self) -> str:
        """What answers are named by: the line's id, and a digest that is the prompt's own."""
        return f"{self.name}.{self.digest.hex()[:12]}" if self.name else self.digest.hex()[:16]


def normalised(text: str) -> str:
    """Text without what does not make a prompt another one: case, spacing, Unicode form."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def prompt_files(paths: Sequence[str], key: str) -> list[Path]:
    """The JSON-lines files that `paths` name; of a folder, all of its `*.jsonl` in order of their names.

    `key` is the setting that names them. Raises ConfigError for a path without any.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not found or not all(file.is_file() for file in found):
            raise ConfigError(f"{key}: {path} is no file and no folder of *.jsonl files", key=key)
        files += found
    return files


def read_prompts(paths: Sequence[str], key: str = "prompts") -> Iterator[Prompt]:
    """Every prompt of files and folders, in order, one line after the other; blank lines are skipped.

    Raises ConfigError that names file and line where something is no prompt.
    """
    for path in prompt_files(paths, key):
        for where, row in json_lines(path, key):
            yield _parse(row, where, key)


class PromptEncoder:
    """Turns prompts into token ids: with the chat template where `chat` says so (None: where there is one).

    `modes` says for which settings of reasoning each prompt is encoded; None: for the one that its line asks
    for. A template that takes no notice of `enable_thinking` has one mode, and asking it for reasoning warns.
    """

    def __init__(self, tokenizer: TextTokenizer | None, chat: bool | None, thinking: Thinking) -> None:
        if tokenizer is None:
            raise ConfigError("the model has no tokenizer, so it cannot read prompts", key="model")
        if chat and not tokenizer.has_chat_template:
            raise ConfigError("chat: the model has no chat template; set `chat: false`", key="chat")
        self.chat = tokenizer.has_chat_template if chat is None else chat
        self._tokenizer = tokenizer
        self.modes: tuple[bool, ...] | None = _MODES.get(thinking)
        if thinking != "off" and not self._heeds_thinking():
            warnings.warn(
                f"thinking: {thinking} has no effect: this model's prompts have no such switch", stacklevel=2
            )
            self.modes = (False,)

    @property
    def answers_each(self) -> int:
        """In how many modes a prompt is answered."""
        return 1 if self.modes is None else len(self.modes)

    def modes_of(self, prompt: Prompt) -> tuple[bool, ...]:
        """The modes in which `prompt` is answered."""
        return (prompt.thinking,) if self.modes is None else self.modes

    def encode(self, prompt: Prompt, thinking: bool) -> list[int]:
        """Ids of a prompt, ready for the answer.

        Raises RequestError where the template refuses the messages, ConfigError for a conversation without
        a template.
        """
        if not self.chat:
            if len(prompt.messages) > 1 or prompt.tools:
                raise ConfigError("conversations and tools need a chat template (`chat: true`)", key="chat")
            return self._tokenizer.encode(_text(prompt.messages[0]))
        return self._tokenizer.encode_bare(self._render(prompt.messages, prompt.tools, thinking))

    def _render(self, messages: list[dict[str, Any]], tools: Any, thinking: bool) -> str:
        return self._tokenizer.render_chat(messages, tools=tools, enable_thinking=thinking)

    def _heeds_thinking(self) -> bool:
        return self.chat and self._render(_PROBE, None, True) != self._render(_PROBE, None, False)


def _text(message: dict[str, Any]) -> str:
    return message["content"] or ""


def _parse(row: dict[str, Any], where: str, key: str) -> Prompt:
    if ("prompt" in row) == ("messages" in row):
        raise ConfigError(f"{where}: needs either `prompt` or `messages`", key=key)
    messages = row["messages"] if "messages" in row else [{"role": "user", "content": row["prompt"]}]
    try:
        if not isinstance(row.get("prompt", ""), str):
            raise ValueError("`prompt` must be a text")
        messages = _waiting([_message(message) for message in messages])
        tools = row.get("tools") or None
        if not (tools is None or (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools))):
            raise ValueError("`tools` must be a list of objects")
    except (TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"{where}: `messages` must be a list of objects with `role` and `content`", key=key
        ) from None
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", key=key) from None
    category, name = row.get("category"), row.get("id")
    return Prompt(
        messages,
        tools,
        category if isinstance(category, str) else None,
        "" if name is None else str(name),
        row.get("thinking") is True,
    )


def _waiting(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation up to the turn that the model has to answer: an answer that a data set brings along
    is not the target's own and is cut off."""
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages or messages[-1]["role"] == "system" or not any(_text(m).strip() for m in messages):
        raise ValueError("there is nothing to answer")
    return messages


def _message(raw: dict[str, Any]) -> dict[str, Any]:
    message = {**raw, "role": raw["role"], "content": raw.get("content")}
    if not isinstance(message["role"], str) or not isinstance(message["content"], str | None):
        raise ValueError("`role` and `content` must be texts")
    for text in (message["role"], message["content"] or ""):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise ValueError("half a surrogate pair is no text")
    if message.get("tool_calls"):
        message["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return message


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """A tool call whose arguments are an object, as templates want them; OpenAI's are JSON text."""
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        function["arguments"] = json.loads(function["arguments"])
    return {**call, "function": function}
