"""`paceline generate`: text for one prompt, streamed, or for a file of prompts, as one batch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from paceline.cli import options
from paceline.cli.inputs import BadLine, Prompt, parse_speculative, read_prompts
from paceline.cli.session import emit, notice, open_llm, resolve_sampling, wants_chat
from paceline.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from paceline import LLM, SamplingParams
    from paceline.engine.results import RequestOutput

SAMPLING_FLAGS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed")


@click.command(short_help="Generate text for one prompt or a file of prompts.")
@options.model_argument
@click.option("--prompt", metavar="TEXT", help="One prompt; its text is streamed.")
@options.prompts_option
@click.option("--chat/--no-chat", default=None, help="Absent: chat where the model has a template.")
@options.speculative_option(required=False)
@options.sampling_options
@options.engine_options
@options.json_option
@options.debug_option
def generate(
    model: str,
    prompt: str | None,
    prompts: str | None,
    chat: bool | None,
    speculative_config: str | None,
    sampling: str | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Generate text with MODEL: a folder in Hugging Face layout, a hub id, or `demo`.

    A bad line of --prompts is reported in its place, the others run, and the exit code is 2.
    """
    entries = _entries(prompt, prompts)
    speculative = None if speculative_config is None else parse_speculative(speculative_config)
    flags = {name: settings.pop(name) for name in SAMPLING_FLAGS}
    if not any(isinstance(entry, Prompt) for entry in entries):
        return _report(entries, {}, as_json)
    llm = open_llm(model, speculative, **settings)
    params = resolve_sampling(llm.default_sampling_params(), sampling, flags)
    use_chat = wants_chat(llm, chat)
    if prompt is not None and not as_json:
        return _stream(llm, llm.encode(prompt, params, chat=use_chat), params)
    entries, token_ids = _encode(llm, entries, params, use_chat, strict=prompt is not None)
    running = [entry for entry in entries if isinstance(entry, Prompt)]
    outputs = llm.generate(token_ids, params, ids=[str(entry.id) for entry in running]) if running else []
    results = {str(entry.id): output for entry, output in zip(running, outputs, strict=True)}
    return _report(entries, results, as_json)


def _entries(prompt: str | None, path: str | None) -> list[Prompt | BadLine]:
    if (prompt is None) == (path is None):
        raise ConfigError("give either --prompt TEXT or --prompts FILE.jsonl", key="prompt")
    return [Prompt("0", prompt)] if path is None and prompt is not None else read_prompts(str(path))


def _encode(
    llm: LLM, entries: list[Prompt | BadLine], params: SamplingParams, chat: bool, *, strict: bool
) -> tuple[list[Prompt | BadLine], list[list[int]]]:
    """Tokenise every prompt; one that cannot be served becomes a `BadLine`, or raises where `strict`."""
    kept: list[Prompt | BadLine] = []
    token_ids = []
    for entry in entries:
        try:
            if isinstance(entry, Prompt):
                token_ids.append(llm.encode(entry.text, params, chat=chat))
            kept.append(entry)
        except RequestError as error:
            if strict:
                raise
            kept.append(BadLine(entry.id, str(error)))
    return kept, token_ids


def _report(entries: list[Prompt | BadLine], results: dict[str, RequestOutput], as_json: bool) -> int:
    """Print every entry's result or error in the order of the file; returns the exit code."""
    for entry in entries:
        if isinstance(entry, BadLine):
            emit(entry.to_json()) if as_json else notice(f"prompt {entry.id}: {entry.error}")
        elif as_json:
            emit({**results[str(entry.id)].to_json(), "id": entry.id})
        else:
            print(f"[{entry.id}]\n{results[str(entry.id)].text}\n", flush=True)
    return 2 if any(isinstance(entry, BadLine) for entry in entries) else 0


def _stream(llm: LLM, token_ids: list[int], params: SamplingParams) -> int:
    """Print the text of one prompt as it is written, then one line of figures to stderr."""
    output = None
    for event in llm.stream([token_ids], params):
        if event.index == 0:
            sys.stdout.write(event.text)
            sys.stdout.flush()
        output = event.output or output
    print(flush=True)
    assert output is not None, "a stream ends with the finished request"
    for choice in output.outputs[1:]:
        print(f"[choice {choice.index}]\n{choice.text}", flush=True)
    notice(_summary(output))
    return 0


def _summary(output: RequestOutput) -> str:
    timing, speculation = output.timing, output.speculation
    parts = [f"{output.usage.completion_tokens} tokens", f"seed {output.seed}"]
    if timing.decode_tokens_per_s is not None:
        parts.append(f"{timing.decode_tokens_per_s:.1f} tokens/s")
    if speculation["acceptance_length"] is not None:
        parts.append(f"acceptance length {speculation['acceptance_length']:.2f}")
    return ", ".join(parts)
