"""What the HTTP server does beside running an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from paceline.config.base import StrictModel
from paceline.errors import ConfigError

ReasoningParser = Literal["qwen3", "none"]
ToolCallParser = Literal["qwen3_coder", "qwen3_xml", "none"]


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What is looked for in a model's answers; see `ServerConfig.answer_format`."""

    reasoning: bool
    """A think block, which goes to `reasoning`."""
    tool_calls: bool
    """Calls in Qwen's XML form, where a request forces one."""
    auto_tool_choice: bool
    """Calls also where the model may choose."""


def _names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


class ServerConfig(StrictModel):
    """Where the server listens, what it calls its model, how it reads answers, and its limits."""

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 lets other machines in.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes any free one.")
    api_key: str | None = Field(
        None,
        min_length=1,
        description="Key that clients must send as a bearer token; absent: anybody may ask.",
    )
    served_model_name: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        (), description="Name of the model in the API; may be given several times. Absent: MODEL."
    )
    chat_template: str | None = Field(
        None, description="A file with a Jinja chat template, instead of the model's own."
    )
    reasoning_parser: ReasoningParser | None = Field(
        None,
        description="Splits an answer into `reasoning` and `content`; none: all of it is content. Absent: "
        "as the chat template writes reasoning.",
    )
    tool_call_parser: ToolCallParser | None = Field(
        None,
        description="Reads tool calls out of an answer; both names mean Qwen's XML form. Absent: as the chat "
        "template writes calls, and then `tool_choice: auto` is allowed.",
    )
    enable_auto_tool_choice: bool | None = Field(
        None,
        description="Let the model choose tools (`tool_choice: auto`). Absent: where the chat template "
        "writes calls, unless --tool-call-parser is given.",
    )
    generation_config: str = Field(
        "auto",
        description="Defaults of sampling: auto (the model's generation_config.json), vllm (none), "
        "or a folder with such a file.",
    )
    max_queued_requests: int = Field(
        256, ge=0, description="Choices that may wait for a place; beyond it the answer is 429."
    )
    max_body_mib: float = Field(
        16.0, gt=0, allow_inf_nan=False, description="Largest request body, in MiB; beyond it 413."
    )
    watchdog_s: float = Field(
        120.0,
        gt=0,
        allow_inf_nan=False,
        description="Silence of the engine, in seconds, after which /health turns 503; after twice as long "
        "it is killed, and on_engine_failure says what follows.",
    )
    drain_s: float = Field(
        30.0,
        ge=0,
        allow_inf_nan=False,
        description="Time that running requests get to end when the server is asked to stop, in seconds.",
    )
    on_engine_failure: Literal["exit", "restart"] = Field(
        "exit", description="When the engine dies: end with exit code 1, or start it anew."
    )

    def answer_format(self, template: str | None) -> AnswerFormat:
        """How answers are read. template: the model's chat template, which decides what was left open.

        Raises: ConfigError where the model shall choose tools whose calls cannot be read.
        """
        written = template or ""
        reasoning, tools = self.reasoning_parser, self.tool_call_parser
        reads = "<tool_call>" in written and "<function=" in written if tools is None else tools != "none"
        if self.enable_auto_tool_choice and not reads:
            raise ConfigError(
                "--enable-auto-tool-choice needs --tool-call-parser qwen3_coder: the chat template shows no "
                "form of calls that is known",
                key="tool_call_parser",
            )
        chosen = self.enable_auto_tool_choice
        return AnswerFormat(
            reasoning="</think>" in written if reasoning is None else reasoning != "none",
            tool_calls=reads,
            auto_tool_choice=tools is None and reads if chosen is None else chosen,
        )
