"""`paceline generate`: text for one prompt, streamed, or for a file of prompts, as one batch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from paceline.cli import options
from paceline.cli.inputs import BadLine, Prompt, is_text, parse_speculative, read_prompts
from paceline.cli.session import cost_line, emit, notice, open_llm, resolve_sampling, wants_chat
from paceline.errors import ConfigError, PacelineError, RequestError

if TYPE_CHECKING:
    from paceline import LLM, SamplingParams
    from paceline.engine.results import RequestOutput

    Results: TypeAlias = dict[str, RequestOutput | PacelineError]

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
    if prompt is not None:
        code = _one(llm, llm.encode(prompt, params, chat=use_chat), params, as_json)
    else:
        entries, token_ids = _encode(llm, entries, params, use_chat)
        code = _report(entries, _batch(llm, entries, token_ids, params), as_json)
    if code == 0 and not as_json:
        notice(cost_line(llm.determinism()))
    return code


def _entries(prompt: str | None, path: str | None) -> list[Prompt | BadLine]:
    if (prompt is None) == (path is None):
        raise ConfigError("give either --prompt TEXT or --prompts FILE.jsonl", key="prompt")
    if prompt is None:
        return read_prompts(str(path))
    if not is_text(prompt):
        raise ConfigError("--prompt is not UTF-8", key="prompt")
    return [Prompt("0", prompt)]


def _encode(
    llm: LLM, entries: list[Prompt | BadLine], params: SamplingParams, chat: bool
) -> tuple[list[Prompt | BadLine], list[list[int]]]:
    """Tokenise every prompt; one that cannot be served becomes a `BadLine` in its place."""
    kept: list[Prompt | BadLine] = []
    token_ids = []
    for entry in entries:
        try:
            if isinstance(entry, Prompt):
                token_ids.append(llm.encode(entry.text, params, chat=chat))
            kept.append(entry)
        except RequestError as error:
            kept.append(BadLine(entry.id, str(error)))
    return kept, token_ids


def _batch(
    llm: LLM, entries: list[Prompt | BadLine], token_ids: list[list[int]], params: SamplingParams
) -> Results:
    """Run all good prompts as one batch; by id, what came out of each, an error included."""
    names = [str(entry.id) for entry in entries if isinstance(entry, Prompt)]
    results: Results = {}
    for event in llm.stream(token_ids, params, ids=names) if names else ():
        outcome = event.output or event.error
        if outcome is not None:
            results[event.id] = outcome
    return results


def _report(entries: list[Prompt | BadLine], results: Results, as_json: bool) -> int:
    """Print every entry's result or error in the order of the file; returns the exit code."""
    failed = False
    for entry in entries:
        result = entry.error if isinstance(entry, BadLine) else results[str(entry.id)]
        if isinstance(result, str | PacelineError):
            failed = True
            named = str(result) if entry.id is None else f"{entry.id}: {result}"
            emit({"id": entry.id, "error": str(result)}) if as_json else notice(named)
        elif as_json:
            emit({**result.to_json(), "id": entry.id})
        else:
            print(f"[{entry.id}]\n{result.text}\n", flush=True)
    return 2 if failed else 0


def _one(llm: LLM, token_ids: list[int], params: SamplingParams, as_json: bool) -> int:
    """One prompt: as JSON, or its text as it is written and one line of figures on stderr."""
    output = None
    for event in llm.stream(token_ids, params):
        if event.error is not None:
            raise event.error
        if event.index == 0 and not as_json:
            sys.stdout.write(event.text)
            sys.stdout.flush()
        output = event.output or output
    assert output is not None, "a stream ends with the finished request"
    if as_json:
        emit(output.to_json())
        return 0
    print(flush=True)
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
