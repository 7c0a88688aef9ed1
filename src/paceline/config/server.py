"""What the HTTP server does beside running an engine."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from paceline.config.base import StrictModel
from paceline.errors import ConfigError

ReasoningParser = Literal["qwen3"]
ToolCallParser = Literal["qwen3_coder", "qwen3_xml"]


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
        None, description="Splits an answer into `reasoning` and `content`; absent: all of it is content."
    )
    tool_call_parser: ToolCallParser | None = Field(
        None, description="Reads tool calls out of an answer; both names mean Qwen's XML form."
    )
    enable_auto_tool_choice: bool = Field(
        False, description="Let the model choose tools (`tool_choice: auto`); needs --tool-call-parser."
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

    @model_validator(mode="after")
    def _tools_agree(self) -> Self:
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            raise ConfigError(
                "--enable-auto-tool-choice needs --tool-call-parser qwen3_coder", key="tool_call_parser"
            )
        return self
