"""Writes docs/reference/ from the configuration models and the command line; `make docs` runs it.

Usage: python docs/generate_reference.py [--check]. With --check nothing is written, and exit code 1
tells that a page is out of date.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from paceline.cli.main import app
from paceline.config import CacheConfig, EngineConfig, ModelConfig, SamplingParams, SpeculativeConfig
from paceline.config.recipes import RecipeFlags
from paceline.config.server import ServerConfig
from paceline.train.settings.data import AnswerSettings, DataSettings, FilterSettings, GeneratorSettings
from paceline.train.settings.drafter import (
    AcceptanceSettings,
    DrafterSettings,
    DrafterShape,
    ExportSettings,
    FeatureSettings,
    LongContextSettings,
    LossSettings,
    SampleSettings,
)
from paceline.train.settings.evaluate import EvaluateSettings, ServingSettings, SkillSettings, TextSettings
from paceline.train.settings.head import HeadExportSettings, HeadSettings
from paceline.train.settings.optim import OptimSettings
from paceline.train.settings.target import (
    AnswerSource,
    DialogueSource,
    Distillation,
    HeldOut,
    ModelShape,
    NewTokenizer,
    SynthSource,
    TargetSettings,
    TextSource,
)

FOLDER = Path(__file__).resolve().parent / "reference"
NOTE = "<!-- Written by docs/generate_reference.py (`make docs`); edit the code instead. -->\n"

MODELS: dict[type[BaseModel], str] = {
    SpeculativeConfig: "`--speculative-config JSON`, `LLM(speculative_config=...)`",
    SamplingParams: "`--sampling JSON`, `SamplingParams(...)`; some have a flag of their own",
    ModelConfig: "keyword arguments of `LLM(...)`; flags of the commands",
    CacheConfig: "keyword arguments of `LLM(...)`, the two dtypes aside",
    ServerConfig: "flags of `paceline serve`, keys of its `paceline.yaml`",
    RecipeFlags: "flags of `paceline serve`, by vLLM's names",
    EngineConfig: "what the layers above are put into; its own keys are keyword arguments of `LLM(...)`",
}

TRAINING: dict[type[BaseModel], str] = {
    DataSettings: "the file of `paceline train data`",
    AnswerSettings: "its section `sampling`",
    GeneratorSettings: "its section `engine`",
    FilterSettings: "its section `filters`",
    DrafterSettings: "the file of `paceline train drafter`",
    DrafterShape: "its section `drafter`",
    LossSettings: "its section `loss`, and that of `paceline train mtp`",
    SampleSettings: "its sections `data` and `long_context.data`, and `data` of `paceline train mtp`",
    FeatureSettings: "its section `features`",
    AcceptanceSettings: "its section `evaluate`, and that of `paceline train mtp`",
    ExportSettings: "its section `export`",
    LongContextSettings: "its section `long_context`",
    OptimSettings: "the section `optim` of every command that trains",
    HeadSettings: "the file of `paceline train mtp`",
    HeadExportSettings: "its section `export`",
    TargetSettings: "the file of `paceline train target`",
    ModelShape: "its section `model`",
    NewTokenizer: "its section `tokenizer`, where that is no folder",
    TextSource: "an entry of its list `text`",
    DialogueSource: "an entry of its list `dialogues`",
    AnswerSource: "an entry of its list `answers`",
    SynthSource: "an entry of its list `synth`",
    HeldOut: "its section `held_out`",
    Distillation: "its section `distill`",
    EvaluateSettings: "the file of `paceline train eval`",
    TextSettings: "its section `answers`",
    SkillSettings: "its sections `arithmetic`, `tools`, `extraction`, `word_problems` and `puzzles`",
    ServingSettings: "its section `acceptance`",
}

STRICT = "An unknown key is an error that suggests the nearest; a value out of range names what is allowed."

BOUNDS = (
    (annotated_types.Ge, "ge", "≥"),
    (annotated_types.Gt, "gt", ">"),
    (annotated_types.Le, "le", "≤"),
    (annotated_types.Lt, "lt", "<"),
    (annotated_types.MultipleOf, "multiple_of", "multiple of"),
)


def pages() -> dict[str, str]:
    """Every generated page by file name."""
    return {
        "command-line.md": "\n".join(command_line()) + "\n",
        "configuration.md": "\n".join(configuration()) + "\n",
        "training.md": "\n".join(training()) + "\n",
    }


def command_line() -> Iterator[str]:
    """The page of commands, options and exit codes."""
    yield from ("# Command line", "", NOTE)
    yield "Results go to stdout, the rest to stderr. Errors are one line; `--debug` adds the traceback."
    yield from ("", "| exit code | meaning |", "|---|---|")
    yield from (f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    for name, command in commands(app):
        yield from command_section(name, command)


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command by the words that call it, those of groups included."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


EXIT_CODES = {
    0: "done",
    1: "checked and failed: `verify` found a divergence, `demo` a changed text, `inspect` what will not load",
    2: "bad input or usage",
    3: "`verify` alone: nothing proven, as no draft was accepted or none was rejected",
    70: "a fault in paceline itself; please report it",
    130: "interrupted",
}


def command_section(name: str, command: click.Command) -> Iterator[str]:
    """One command: usage, what it does, its options."""
    arguments = [str(p.metavar) for p in command.params if isinstance(p, click.Argument)]
    yield from (
        "",
        f"## paceline {name}",
        "",
        f"`{' '.join(['paceline', name, *arguments, '[OPTIONS]'])}`",
        "",
    )
    yield inspect.cleandoc(command.help or "")
    yield from ("", "| option | |", "|---|---|")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield f"| `{signature(parameter)}` | {cell(option_help(parameter))} |"


def signature(option: click.Option) -> str:
    """`--flag METAVAR` or `--flag / --no-flag`."""
    flags = " / ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return flags
    if isinstance(option.type, click.Choice):
        return f"{flags} {' or '.join(option.type.choices)}"
    return f"{flags} {option.metavar}"


def option_help(option: click.Option) -> str:
    """The option's help, with its default where that is not told in the text."""
    required = " Required." if option.required else ""
    default = f" Default: {option.default}." if option.show_default else ""
    return f"{option.help}{required}{default}"


def configuration() -> Iterator[str]:
    """The page of configuration keys."""
    yield from ("# Configuration", "", NOTE)
    yield STRICT
    yield from tables(MODELS)


def training() -> Iterator[str]:
    """The page of training settings: the YAML files of `paceline train`."""
    yield from ("# Training settings", "", NOTE)
    yield f"{STRICT} Paths are taken from where the command runs."
    yield from tables(TRAINING)


def tables(models: dict[type[BaseModel], str]) -> Iterator[str]:
    """A section a model, with a line a key."""
    for model, where in models.items():
        summary = (model.__doc__ or "").strip().splitlines()[0].replace("``", "`")
        yield from ("", f"## {model.__name__}", "", f"{summary} Given as: {where}.", "")
        yield from ("| key | type | default | |", "|---|---|---|---|")
        for name, field in model.model_fields.items():
            kind = ", ".join([type_name(field.annotation), *bounds(field)])
            yield f"| `{name}` | {kind} | {default_name(field)} | {cell(field.description or '')} |"


def type_name(annotation: Any) -> str:
    """A type in words, such as `list of str or null`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(parts[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in parts)
    if origin in (Union, UnionType):
        return " or ".join(type_name(part) for part in parts)
    if origin is tuple:
        return f"list of {type_name(parts[0])}"
    if origin is dict:
        return f"object of {type_name(parts[0])}: {type_name(parts[1])}"
    return "null" if annotation is type(None) else annotation.__name__


def bounds(field: FieldInfo) -> list[str]:
    """The constraints of a number, as signs."""
    return [
        f"{sign} {getattr(constraint, attribute)}"
        for constraint in field.metadata
        for kind, attribute, sign in BOUNDS
        if isinstance(constraint, kind)
    ]


def default_name(field: FieldInfo) -> str:
    """The default as JSON; words where there is none."""
    if field.is_required():
        return "required"
    if isinstance(field.default, BaseModel):
        return "its own defaults"
    absent = field.default is None or field.default is PydanticUndefined
    return "absent" if absent else f"`{json.dumps(field.default)}`"


def cell(text: str) -> str:
    """Text that does not break its table."""
    return " ".join(text.replace(" | ", " or ").replace("|", "\\|").split())


def main() -> int:
    """Write the pages, or check them."""
    check = "--check" in sys.argv[1:]
    stale = []
    for name, text in pages().items():
        path = FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    print(f"{'out of date' if check else 'written'}: {', '.join(stale) or 'nothing'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
