"""Strict sections and the YAML reader: a key that nobody knows is an error that names the nearest one."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from paceline.errors import ConfigError

SectionT = TypeVar("SectionT", bound="Section")


_TEXT = "constrained-str"
"""How pydantic calls the member `Text` of a union in the place of an error."""
_OTHER_MEMBER = ("string_type", "model_type")
"""Faults that a value has which is meant for the other member of a union of a text and a section."""


class Section(BaseModel):
    """Base of every section: frozen, strict types, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class _Loader(yaml.SafeLoader):
    """YAML 1.2's floats (``6e-4`` is a number) and no key twice; dates stay text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            fault = f"key {key!r} is no text" if not isinstance(key, str) else f"key {key} stands there twice"
            if not isinstance(key, str) or key in seen:
                raise yaml.constructor.ConstructorError(None, None, fault, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\.inf|\.nan", re.I)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if not tag.endswith((":timestamp", ":float"))]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"^(?:{_FLOAT.pattern})$", re.I), list("-+0123456789.")
)


def load_yaml(path: str | Path, cls: type[SectionT]) -> SectionT:
    """Read a file of settings. Raises ConfigError that names the file, the key and what to write instead."""
    try:
        raw = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(f"cannot read {path}: {' '.join(str(exc).split())}") from exc
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: settings are `key: value` lines; known keys: {_listed(cls.model_fields)}")
    try:
        # Through JSON, because strict mode takes no list for a tuple except from JSON.
        return cls.model_validate_json(json.dumps(raw))
    except ValidationError as exc:
        raise _explained(exc, path, cls) from exc


def with_flags(settings: SectionT, **flags: Any) -> SectionT:
    """`settings` with what the command line says instead of the file, held to the same bounds: `model_copy`
    would take any value. Raises ConfigError that names the flag."""
    try:
        return type(settings).model_validate({**settings.model_dump(exclude_unset=True), **flags})
    except ValidationError as exc:
        first = exc.errors()[0]
        flag = f"--{first['loc'][0]}".replace("_", "-") if first["loc"] else "the command line"
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{flag}: {message}", key=flag.removeprefix("--")) from exc


def _explained(error: ValidationError, path: str | Path, cls: type[BaseModel]) -> ConfigError:
    # A misspelt key is also a missing one; the misspelling is what helps. Of a key that may be a text or a
    # section, what is wrong inside helps more than that it is not the other one.
    first = min(
        error.errors(), key=lambda entry: (entry["type"] != "extra_forbidden", entry["type"] in _OTHER_MEMBER)
    )
    location = first["loc"]
    key = ".".join(_named(cls, location))
    if first["type"] == "extra_forbidden":
        known = _known_keys(cls, location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known keys: {_listed(known)}"
        return ConfigError(f"{path}: unknown key {key}: {hint}", key=key)
    message = first["msg"].removeprefix("Value error, ")
    return ConfigError(f"{path}: {key}: {message}" if key else f"{path}: {message}", key=key or None)


def _named(cls: type[BaseModel], location: Iterable[str | int]) -> Iterator[str]:
    """The parts of `location` that stand in the file: not the tags of a union's members."""
    sections: list[type[BaseModel]] = [cls]
    for part in location:
        found = [s.model_fields[part] for s in sections if isinstance(part, str) and part in s.model_fields]
        tag = part == _TEXT or part in [section.__name__ for section in sections]
        sections = [section for field in found for section in _sections(field.annotation)] or sections
        if found or not tag:
            yield str(part)


def _known_keys(cls: type[BaseModel], location: Iterable[str | int]) -> list[str]:
    """Keys of the section at `location`; positions of a list and tags of a union lead to no other section."""
    sections = [cls]
    for part in location:
        found = [s.model_fields[part] for s in sections if isinstance(part, str) and part in s.model_fields]
        sections = [section for field in found for section in _sections(field.annotation)] or sections
    return sorted({name for section in sections for name in section.model_fields})


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for inner in get_args(annotation) for section in _sections(inner)]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
