"""Text to ids and the chat template, through transformers, which is the reference for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.errors import ModelError, RequestError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "tokenizer.model")


class TextTokenizer:
    """A checkpoint's tokenizer.

    `backend` is the fast tokenizer (of the `tokenizers` library) for incremental decoding; `size` counts
    the ids that have a text: sampling masks all beyond it.
    """

    def __init__(self, folder: Path):
        from transformers import AutoTokenizer

        self.folder = folder
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        except Exception as error:  # whatever the library raises, the folder's tokenizer is unusable
            raise ModelError(f"{folder}: the tokenizer cannot be read ({_first_line(error)})") from error
        self.backend: Any = getattr(self._tokenizer, "backend_tokenizer", None)
        if self.backend is None:
            raise ModelError(f"{folder}: only fast tokenizers (tokenizer.json) are supported")
        self.size = len(self._tokenizer)

    @property
    def has_chat_template(self) -> bool:
        """Whether prompts can be put into the model's chat format."""
        return bool(self._tokenizer.chat_template)

    @property
    def chat_template(self) -> str | None:
        """The chat format's Jinja source; None where there is none, or several."""
        template = self._tokenizer.chat_template
        return template if isinstance(template, str) else None

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, with whatever the tokenizer itself adds."""
        return self._ids(text, special=True)

    def encode_bare(self, text: str) -> list[int]:
        """Ids of a piece of text, without what the tokenizer adds to a whole one."""
        return self._ids(text, special=False)

    def _ids(self, text: str, special: bool) -> list[int]:
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise RequestError("the text holds half a surrogate pair, which is no character", param="prompt")
        # Not verbose: a text that is too long is refused by `check_prompt`, in paceline's own words.
        encoded = self._tokenizer(
            text, add_special_tokens=special, return_attention_mask=False, verbose=False
        )
        return list(encoded["input_ids"])

    def encode_chat(self, text: str) -> list[int]:
        """Ids of one user turn in the model's chat format, ready for the answer."""
        if not self.has_chat_template:
            raise RequestError(f"{self.folder.name} has no chat template: use --no-chat", param="chat")
        rendered = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        return self.encode_bare(rendered)

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Messages in the model's chat format, as text; `encode_bare` gives its ids.

        template: Jinja source instead of the model's own; it runs in transformers' sandbox. variables: what
        else the template may ask for, such as `enable_thinking`.

        Raises: RequestError for messages that the template refuses, or where there is no template.
        """
        if template is None and not self.has_chat_template:
            raise RequestError(f"{self.folder.name} has no chat template: use completions", param="messages")
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages,
                    tools=tools,
                    chat_template=template,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    tokenize=False,
                    **variables,
                )
            )
        except Exception as error:  # a template may raise whatever it likes about the messages
            raise RequestError(f"the chat template: {_first_line(error)}", param="messages") from error

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, special tokens included."""
        return str(self.backend.decode(ids, skip_special_tokens=False))


def load_tokenizer(folder: Path) -> TextTokenizer | None:
    """The folder's tokenizer; None where there is none (then prompts must be token ids and no text comes
    back)."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    return TextTokenizer(folder)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
