"""What the commands share once their input is read: the model, the sampling parameters, the way to print."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from paceline.cli.inputs import parse_json_option
from paceline.cli.options import DEFAULT_MAX_TOKENS
from paceline.cli.threads import threads_line
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline import LLM, SamplingParams


def notice(message: str) -> None:
    """Tell the person at the terminal; never part of the results."""
    print(f"paceline: {message}", file=sys.stderr, flush=True)


def emit(result: dict[str, Any]) -> None:
    """One result as one JSON line on stdout."""
    print(json.dumps(result, ensure_ascii=False, allow_nan=False), flush=True)


def open_llm(model: str, speculative: dict[str, Any] | None, **options: Any) -> LLM:
    """Load the model with the options that were given (None: not given, its default holds)."""
    from paceline import LLM

    return LLM(model, speculative_config=speculative, **{k: v for k, v in options.items() if v is not None})


def resolve_sampling(base: SamplingParams, sampling: str | None, flags: dict[str, Any]) -> SamplingParams:
    """The model's defaults, overridden by `--sampling`, overridden by the flags that were given."""
    length = {} if "max_tokens" in base.model_fields_set else {"max_tokens": DEFAULT_MAX_TOKENS}
    extra = {} if sampling is None else parse_json_option(sampling, "--sampling")
    given = {key: value for key, value in flags.items() if value is not None}
    return base.replace(**{**length, **extra, **given})


def wants_chat(llm: LLM, chat: bool | None) -> bool:
    """Whether prompts are chat messages: as asked for, else exactly where the model has a template."""
    if chat and not llm.has_chat_template:
        raise ConfigError("--chat: this model has no chat template; use --no-chat", key="chat")
    return llm.has_chat_template if chat is None else chat


def cost_line(determinism: dict[str, Any]) -> str:
    """What deterministic mode costs here, in words; `determinism` is `LLM.determinism()`."""
    if not determinism["on"]:
        return f"deterministic mode: off{threads_line()}"
    products, cost = determinism["products"], determinism["cost"]
    own = f"a product takes {cost:.2f}× the time of torch's own"
    return f"deterministic mode: on ({products}; {own}){threads_line()}"
