"""What clients may send, as OpenAI's API names it, with vLLM's further fields.

Types are checked here; ranges of sampling values are `SamplingParams`' own. A field that is absent and one
that is null mean the same.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_LOGPROBS = 20


class Body(BaseModel):
    """A JSON object of a request. Fields that it does not name are kept in `model_extra`."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class StreamOptions(Body):
    """`stream_options`."""

    include_usage: bool | None = Field(None, description="Send usage in a last chunk.")


class Speculation(Body):
    """Whether and how far the server drafts for one request. The text is the same either way."""

    enabled: bool | None = None
    num_speculative_tokens: int | None = Field(None, ge=0, description="Drafts of a verification at most.")


class PacelineFields(Body):
    """What only this server understands."""

    trace: bool | None = Field(None, description="Say in each chunk where its tokens came from.")


class Generate(Body):
    """What completions and chat completions have in common."""

    model: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    logit_bias: dict[str, float] | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    user: str | None = None
    speculation: Speculation | None = None
    paceline: PacelineFields | None = None


class CompletionRequest(Generate):
    """`POST /v1/completions`."""

    prompt: str | list[int] | list[str | list[int]]
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_special_tokens: bool | None = None


class ChatTemplateFields(Body):
    """How messages become a prompt."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the chat template, such as enable_thinking."
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class NamedFunction(Body):
    """The function that a tool choice names."""

    name: str


class NamedTool(Body):
    """A tool choice that names a function."""

    type: Literal["function"]
    function: NamedFunction


class ResponseFormat(Body):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class ChatRequest(Generate, ChatTemplateFields):
    """`POST /v1/chat/completions`."""

    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    include_reasoning: bool | None = Field(None, description="false leaves the reasoning out of the answer.")


class TokenizePrompt(Body):
    """`POST /tokenize` of a text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChat(ChatTemplateFields):
    """`POST /tokenize` of messages."""

    model: str | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[int]


class ResponseTextFormat(Body):
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema_: dict[str, Any] | None = Field(None, alias="schema")
    name: str | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseText(Body):
    """`text`."""

    format: ResponseTextFormat | None = None


class ResponseReasoning(Body):
    """`reasoning`."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class ResponsesRequest(Generate):
    """`POST /v1/responses`. Nothing is stored: each request brings its whole conversation."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: ResponseText | None = None
    reasoning: ResponseReasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
