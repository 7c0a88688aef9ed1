"""From a request's fields to `SamplingParams` and an engine `Request`."""

from __future__ import annotations

from typing import Any

from paceline.config.sampling import SamplingParams
from paceline.engine.grammar import Structure
from paceline.engine.messages import EngineInfo
from paceline.engine.request import Request, check_prompt, draw_seed
from paceline.errors import RequestError
from paceline.serve.errors import ApiError, as_api_error
from paceline.serve.protocol import ChatRequest, CompletionRequest, Generate

COMPLETION_TOKENS = 16
"""Tokens of a completion that says nothing of its length, as in OpenAI's API."""

_SAMPLING = (
    "n", "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "stop",
    "stop_token_ids", "ignore_eos", "bad_words", "allowed_token_ids", "logit_bias", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "include_stop_str_in_output", "skip_special_tokens",
)  # fmt: skip


def sampling_params(body: Generate, defaults: SamplingParams) -> SamplingParams:
    """The model's defaults with the request's fields on top. Raises `ApiError` that names the field."""
    values = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    if isinstance(body, ChatRequest):
        values |= _chat_values(body, defaults)
    elif isinstance(body, CompletionRequest):
        if "max_tokens" not in defaults.model_fields_set:
            values.setdefault("max_tokens", COMPLETION_TOKENS)
        if body.logprobs is not None:
            values["logprobs"] = body.logprobs
    try:
        return defaults.replace(**values)
    except RequestError as error:
        found = as_api_error(error)
        if found.param == "max_tokens" and getattr(body, "max_completion_tokens", None) is not None:
            found.param = "max_completion_tokens"
        raise found from None


def _chat_values(body: ChatRequest, defaults: SamplingParams) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if body.max_completion_tokens is not None:
        values["max_tokens"] = body.max_completion_tokens
    elif body.max_tokens is None and "max_tokens" not in defaults.model_fields_set:
        values["max_tokens"] = None  # as many as the context holds
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
    if body.logprobs:
        values["logprobs"] = body.top_logprobs or 0
    return values


def engine_request(
    name: str,
    token_ids: list[int],
    params: SamplingParams,
    body: Generate,
    info: EngineInfo,
    *,
    seed: int | None,
    prompt_param: str,
    structure: Structure | None = None,
) -> Request:
    """A request for the engine, checked as `paceline generate` checks one.

    seed: the server's, for requests that bring none. prompt_param: the field that the prompt came from.
    structure: the form of the answer.
    Raises: ApiError.
    """
    try:
        check_prompt(token_ids, info.vocab_size, info.max_model_len)
        params.check_vocab(info.vocab_size)
    except RequestError as error:
        param = prompt_param if error.param == "prompt" else error.param
        code = "context_length_exceeded" if len(token_ids) >= info.max_model_len else None
        raise ApiError(str(error), param=param, code=code) from None
    chosen = params.seed if params.seed is not None else seed
    return Request(
        name,
        token_ids,
        params,
        draw_seed() if chosen is None else chosen,
        max_drafts=max_drafts(body, info),
        structure=structure,
    )


def max_drafts(body: Generate, info: EngineInfo) -> int | None:
    """Drafts of a verification that the request allows; None: as many as the engine makes."""
    wish = body.speculation
    if wish is None:
        return None
    if wish.enabled is False:
        return 0
    most = wish.num_speculative_tokens
    if most is not None and most > info.num_drafts:
        raise ApiError(
            f"num_speculative_tokens = {most}: this server drafts at most {info.num_drafts} tokens",
            param="speculation.num_speculative_tokens",
        )
    return most
