"""Tool calls: which of the tools on offer was meant, and with which arguments; or that none was."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from paceline.train.synth.catalog import single_tool
from paceline.train.synth.dialogue import Dialogue, Draw, Message, Split, assistant, opening, user
from paceline.train.synth.tool_names import VERBS, ToolName, name_of, names
from paceline.train.synth.tool_parameters import Parameter, parameters
from paceline.train.synth.words import code, first_names


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool on offer."""

    name: ToolName
    spelled: str
    parameters: tuple[Parameter, ...]
    required: int
    """So many of the parameters, from the first, must be given."""
    description: str
    kind: str = "object"
    """What the schema calls an object."""

    def schema(self) -> dict[str, Any]:
        """The tool as a request offers it."""
        return {
            "type": "function",
            "function": {
                "name": self.spelled,
                "description": self.description,
                "parameters": {
                    "type": self.kind,
                    "properties": {p.name: p.schema for p in self.parameters},
                    "required": [p.name for p in self.parameters[: self.required]],
                },
            },
        }


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked of one tool."""

    tool: Tool
    text: str
    arguments: dict[str, Any]


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeio" else f"a {noun}"


_DESCRIPTIONS = ("{v} {a}", "{v} {a}", "{v} the {n}", "{v} {a} for the user", "{v} {a} with the given values")


def _tool(draw: Draw, name: ToolName, style: str, most: int) -> Tool:
    kinds = parameters(draw)[:most]
    told = draw.pick(_DESCRIPTIONS).format(v=VERBS[name.verb][0], n=name.noun, a=_a(name.noun))
    kind = "dict" if style == "dotted" and draw.chance(0.5) else "object"
    return Tool(name, name.spelled(style), tuple(kinds), draw.between(1, len(kinds)), told, kind)


_STYLES = ("snake",) * 6 + ("camel",) * 2 + ("dotted",) * 2


def _offer(draw: Draw, least: int, most: int) -> list[Tool]:
    """Tools in one style of naming. The more there are the fewer parameters has each: prompts stay short."""
    style, count = draw.pick(_STYLES), draw.between(least, most)
    room = 4 if count < 4 else 3 if count < 6 else 2
    return [_tool(draw, name, style, room) for name in names(draw, count)]


_LOOKS = ("get", "fetch", "check", "find")
"""Verbs of tools that a plain question may mean."""


def _wish(draw: Draw, tool: Tool, question: bool = False) -> Wish:
    """A request, or a question, that gives all required parameters and some of the others."""
    given = {p: p.value(draw) for i, p in enumerate(tool.parameters) if i < tool.required or draw.chance(0.5)}
    order = draw.sample(list(given), len(given)) if draw.chance(0.3) else list(given)
    said = [p.said(draw, given[p]) for p in order]
    said.sort(key=lambda phrase: phrase.startswith("and "))  # clauses behind phrases
    arguments = {p.name: v for p, v in given.items()}
    if question:
        return Wish(
            tool, " ".join([draw.pick(("what is", "what's")), "the", tool.name.noun, *said]), arguments
        )
    ask = draw.pick(VERBS[tool.name.verb][1])
    noun = draw.pick(("the {n}", "the {n}", "{a}")).format(n=tool.name.noun, a=_a(tool.name.noun))
    return Wish(tool, " ".join([ask, noun, *said]), arguments)


_ASKS = ("Please {w}.", "{W}.", "Can you {w}?", "Could you {w}?", "I want you to {w}.", "I need you to {w}.",
         "{W}, please.", "Would you {w}?", "Help me: {w}.", "I would like to {w}.")  # fmt: skip


def _asked(draw: Draw, text: str) -> str:
    return draw.pick(_ASKS).format(w=text, W=text[0].upper() + text[1:])


def _thought(wish: Wish) -> str:
    given = ", ".join(f"{key} = {_plain(value)}" for key, value in wish.arguments.items())
    return f"The user wants to {wish.tool.name.verb} the {wish.tool.name.noun}. " \
           f"The tool is {wish.tool.spelled} with {given}."  # fmt: skip


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _facts(offered: list[Tool], wishes: list[Wish]) -> dict[str, Any]:
    return {
        "calls": [(wish.tool.spelled, wish.arguments) for wish in wishes],
        "unseen": [tool.spelled for tool in offered if tool.name.held_out],
    }


def _one_call(draw: Draw, offered: list[Tool], thinking: bool) -> Dialogue:
    tool = draw.pick(offered)
    alone = sum(other.name.noun == tool.name.noun for other in offered) == 1
    plain = tool.name.verb in _LOOKS and all(p.type != "boolean" for p in tool.parameters)
    question = alone and plain and draw.chance(0.5)
    wish = _wish(draw, tool, question)
    text = f"{wish.text[0].upper()}{wish.text[1:]}?" if question else _asked(draw, wish.text)
    answer = assistant("", _thought(wish) if thinking else None, [(tool.spelled, wish.arguments)])
    return _dialogue(draw, offered, [user(text), answer], [wish], thinking)


def _dialogue(
    draw: Draw, offered: list[Tool], messages: list[Message], wishes: list[Wish], thinking: bool
) -> Dialogue:
    schemas = [tool.schema() for tool in offered]
    return Dialogue([*opening(draw), *messages], "tools", thinking, schemas, _facts(offered, wishes))


def _two_calls(draw: Draw, offered: list[Tool], thinking: bool) -> Dialogue:
    """Two wishes in one request: of two tools, or of one tool twice."""
    first = _wish(draw, draw.pick(offered))
    second = _wish(draw, first.tool if draw.chance(0.4) else draw.pick(offered))
    word = draw.pick((" and also ", ", and then ", "; also "))
    calls = [(wish.tool.spelled, wish.arguments) for wish in (first, second)]
    reasoning = f"{_thought(first)}\n{_thought(second)}" if thinking else None
    messages = [user(_asked(draw, first.text + word + second.text)), assistant("", reasoning, calls)]
    return _dialogue(draw, offered, messages, [first, second], thinking)


_NONE = (
    "I have no tool that can {w}. I can only {o}.",
    "Sorry, none of my tools can {w}. What I can do is {o}.",
    "I cannot {w} with the tools that I have. They let me {o}.",
)


def _no_call(draw: Draw, offered: list[Tool], thinking: bool) -> Dialogue:
    """A wish that no tool on offer fulfils."""
    have = [tool.name for tool in offered]
    while (missing := name_of(draw, draw.split == "held_out" and draw.chance(0.5))) in have:
        pass
    wish = f"{missing.verb} the {missing.noun}"
    able = " or ".join(f"{tool.name.verb} the {tool.name.noun}" for tool in offered[:2])
    text = draw.pick(_NONE).format(w=wish, o=able)
    reasoning = f"The user wants to {wish}. No tool does that." if thinking else None
    return _dialogue(draw, offered, [user(_asked(draw, wish)), assistant(text, reasoning)], [], thinking)


def _small_talk(draw: Draw, offered: list[Tool], thinking: bool) -> Dialogue:
    """A question that needs no tool."""
    name = draw.pick(first_names(draw, 3))
    a, b = draw.between(1, 9), draw.between(1, 9)
    question, answer = draw.pick((
        (f"Hello, I am {name}.", f"Hello {name}! How can I help you?"),
        (f"What is {a} + {b}?", f"{a} + {b} = {a + b}"),
        ("Thank you, that is all.", "You are welcome!"),
        ("What can you do?", f"I can {offered[0].name.verb} the {offered[0].name.noun}, for example."),
        (f"Good morning, {name} here.", f"Good morning, {name}! What can I do for you?"),
    ))  # fmt: skip
    reasoning = "This needs no tool." if thinking else None
    return _dialogue(draw, offered, [user(question), assistant(answer, reasoning)], [], thinking)


_RESULTS = {
    "status": lambda draw: draw.pick(("ok", "done", "pending", "accepted")),
    "id": code,
    "total": lambda draw: draw.between(2, 900),
    "minutes": lambda draw: draw.between(2, 90),
    "price": lambda draw: draw.between(4, 400) + 0.5,
    "owner": lambda draw: draw.pick(first_names(draw, 2)),
}


def _answered(draw: Draw, offered: list[Tool], thinking: bool) -> Dialogue:
    """The call has been made; its result is told in words."""
    wish = _wish(draw, draw.pick(offered))
    keys = draw.sample(list(_RESULTS), draw.between(1, 3))
    result = {key: _RESULTS[key](draw) for key in keys}
    noun = wish.tool.name.noun
    if draw.chance(0.12):
        result = {"error": draw.pick((f"no such {noun}", "not allowed", "the service is busy"))}
        told = f"That did not work: {result['error']}."
    else:
        parts = [f"the {key} is {value}" for key, value in result.items()]
        told = f"Done. For the {noun} {' and '.join(parts)}."
    call = assistant("", _thought(wish) if thinking else None, [(wish.tool.spelled, wish.arguments)])
    reasoning = "The tool has answered. Tell the user." if thinking else None
    messages = [user(_asked(draw, wish.text)), call, {"role": "tool", "content": json.dumps(result)},
                assistant(told, reasoning)]  # fmt: skip
    return _dialogue(draw, offered, messages, [], thinking)


_KINDS = (_one_call,) * 12 + (_two_calls,) * 2 + (_no_call,) * 2 + (_small_talk,) + (_answered,) * 3


def tools(seed: int, index: int, split: Split) -> Dialogue:
    """One request with 1-8 tools on offer; facts: `calls` [(name, arguments)], `unseen` names on offer."""
    draw = Draw(seed, index, split, "tools")
    if draw.chance(0.25):
        return single_tool(draw, draw.chance(0.2))
    most = draw.pick((1, 4, 5, 6, 8))
    offered = _offer(draw, min(most, draw.pick((1, 2, 4))), most)
    return draw.pick(_KINDS)(draw, offered, draw.chance(0.2))


def four_tools(seed: int, index: int, split: Split) -> Dialogue:
    """One call with 4-8 tools on offer, not to be thought about: what the bar is measured on."""
    draw = Draw(seed, index, split, "four_tools")
    return _one_call(draw, _offer(draw, 4, 8), False)
