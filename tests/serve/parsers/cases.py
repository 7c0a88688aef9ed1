"""What a recorded text is, and the tools that the texts were recorded with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from paceline.serve.parsers import ParserOptions, ToolSpec
from tests.serve.parsers.machinery import Output


@dataclass(frozen=True)
class Call:
    """An expected call; a string of arguments is the exact JSON text."""

    name: str
    arguments: dict[str, Any] | str
    complete: bool = True

    @property
    def text(self) -> str:
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class Case:
    """One recorded output and what it means."""

    id: str
    output: Output
    content: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    options: ParserOptions = field(default_factory=lambda: OFF)


def schema(**properties: Any) -> dict[str, Any]:
    """An object schema; a string stands for a type."""
    full = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    return {"type": "object", "properties": full}


TOOLS = (
    ToolSpec("get_weather", schema(city="string", days="integer")),
    ToolSpec("write_file", schema(path="string", content="string")),
    ToolSpec(
        "set",
        schema(
            n="integer", x="number", on="boolean", o="object", a="array", z="null", s="string", any={},
            ns={"type": ["integer", "null"]}, sn={"anyOf": [{"type": "string"}, {"type": "null"}]},
            e={"enum": ["1", "2"]}, num_e={"enum": [1, 2]}, r={"$ref": "#/$defs/Level"},
            one={"oneOf": [{"type": "integer"}, {"type": "string"}]},
            all={"allOf": [{"$ref": "#/$defs/Level"}, {"description": "how much"}]},
        )
        | {"$defs": {"Level": {"type": "integer"}}},
    ),
    ToolSpec("ping"),
)  # fmt: skip

OFF = ParserOptions(tools=TOOLS)
"""Thinking off: the prompt holds a closed think block."""
ON = ParserOptions(in_reasoning=True, tools=TOOLS)
"""Thinking on: the prompt ends with an open think block."""
NO_TOOLS = ParserOptions()
NO_TOOLS_ON = ParserOptions(in_reasoning=True)
ONE_CALL = ParserOptions(tools=TOOLS, parallel_tool_calls=False)
UNPARSED = ParserOptions(reasoning=False, in_reasoning=True)


def call(name: str, **parameters: str) -> str:
    """A call as the template writes it."""
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


PARIS = call("get_weather", city="Paris")
IN_PARIS = Call("get_weather", {"city": "Paris"})
