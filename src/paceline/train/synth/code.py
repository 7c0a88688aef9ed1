"""Python tasks: complete, write, explain, run and mend short functions; a few words in other languages."""

from __future__ import annotations

import re
from collections.abc import Callable

from paceline.train.synth.blocks import blocks
from paceline.train.synth.dialogue import Dialogue, Draw, Split, assistant, opening, user
from paceline.train.synth.docstrings import exercise
from paceline.train.synth.functions import FAMILIES, Function, function

_COMPLETE = (
    "Complete this Python function. Return only code.\n\n```python\n{head}\n```",
    "Complete this Python function. Return only code.\n\n```python\n{head}\n```",
    "Complete this Python function. Return only code.\n\n```python\n\n\n{head}\n```",
    "Complete this Python function. Return only code.\n\n```python\n\n{head}\n```",
    "Complete the following function. Only code, please.\n\n```python\n{head}\n```",
    "Finish this function:\n\n```python\n{head}\n```",
    "```python\n{head}\n```\n\nWrite the body of this function.",
    "Fill in the missing body.\n\n```python\n{head}\n```",
    "Implement the function below so that its examples hold.\n\n```python\n{head}\n```",
    "{head}\n\nComplete the code.",
    "Please write the rest of this function. No explanation.\n\n```python\n{head}\n```",
    "Read the docstring and complete the code:\n```python\n{head}\n```",
)
_WRITE = (
    "Write a Python function called {name} that does this: {task}",
    "Write a Python function. {task}",
    "Implement a function `{name}` in Python. {task}",
    "How can I do this in Python? {task}",
    "I need a short Python function: {task}",
    "{task} Write Python code for it.",
    "Write a function to {low}.",
    "Implement a function to {low}.",
    "Write a Python program to {low}.",
    "Develop a Python function named {name}. It should {low}.",
    "Can you write code that will {low}? Use Python.",
    "Python: {low}.",
    "Create a function in Python to {low}, and give an example.",
    "Give me a Python function to {low}.",
    "Show how to {low} in Python.",
    "I want to {low}. What would the Python code look like?",
    "Solve this with Python: {task}",
)
_EXPLAIN = (
    "What does this function do?\n\n```python\n{code}\n```",
    "Explain this code:\n\n```python\n{code}\n```",
    "```python\n{code}\n```\n\nExplain in one or two sentences what this does.",
    "Describe the purpose of this Python code.\n```\n{code}\n```",
    "Can you tell me what the following does?\n\n{code}",
)
_RUN = (
    "What does `{call}` return?\n\n```python\n{code}\n```",
    "```python\n{code}\n```\n\nWhat is the result of {call}?",
    "Given this code, what is the value of {call}?\n\n```python\n{code}\n```",
    "Predict the output of print({call}).\n\n```python\n{code}\n```",
)
_MEND = (
    "Find the bug in this function. It should do this: {task}\n\n```python\n{code}\n```",
    "This function has a bug. {task}\n\n```python\n{code}\n```\n\nCan you fix it?",
    "Can you find and fix the mistake?\n\n```python\n{documented}\n```",
    "Here is a function to {low}. Is there a bug in it?\n\n```\n{code}\n```",
    "The code below is meant to {low}, but it gives wrong results. What is wrong?\n\n```python\n{code}\n```",
    "Please review this Python function and point out any error.\n\n```\n{documented}\n```",
    "Identify the mistake in this code, which should {low}:\n```python\n{code}\n```",
    "Why does this not work? It should {low}.\n\n{code}",
    "Debug this function: {task}\n\n```python\n{code}\n```",
)
_CHANGES = (
    (r" \+= ", " -= "), (r" > ", " < "), (r" < ", " > "), (r" <= ", " < "), (r" == ", " != "),
    (r"range\(1, ", "range(0, "), (r" \+ 1\)", ")"), (r" - 1\)", ")"), (r"return True", "return False"),
    (r"% 2 == 0", "% 2 == 1"), (r" not in ", " in "), (r"\[::-1\]", "[::1]"), (r" \* ", " + "),
    (r" // ", " / "),
    (r"max\(", "min("), (r"min\(", "max("), (r"= 0$", "= 1"), (r"sorted\(", "list("), (r" \+ ", " - "),
)  # fmt: skip


def _code(made: Function, documented: bool, example: bool = False) -> str:
    return f"{made.head(example) if documented else made.signature}\n{made.body}"


def _complete(draw: Draw, made: Function) -> tuple[str, str]:
    head = exercise(draw, made) if draw.chance(0.65) else made.head(draw.chance(0.7))
    return draw.pick(_COMPLETE).format(head=head), f"```python\n{head}\n{made.body}\n```"


def _low(task: str) -> str:
    """The task as the end of a sentence: 'return the sum of all numbers in x'."""
    return task[0].lower() + task[1:].rstrip(".")


def _write(draw: Draw, made: Function) -> tuple[str, str]:
    question = draw.pick(_WRITE).format(name=made.name, task=made.task, low=_low(made.task))
    answer = f"```python\n{_code(made, draw.chance(0.5))}\n```"
    if draw.chance(0.6):
        answer += f"\n\nFor example, `{made.call}` returns `{made.result!r}`."
    return question, answer


def _explain(draw: Draw, made: Function) -> tuple[str, str]:
    parameters = made.signature[made.signature.index("(") :].split(")")[0].strip("(")
    names = [part.split(":")[0] for part in re.split(r", (?=\w+(?::|$|,))", parameters)]
    takes = " and ".join(f"`{name}`" for name in names)
    answer = f"The function `{made.name}` takes {takes}. {_third_person(made.task)} {_style(made)}"
    answer += f" For example, `{made.call}` returns `{made.result!r}`."
    return draw.pick(_EXPLAIN).format(code=_code(made, False)), answer


def _third_person(task: str) -> str:
    verb, rest = task.split(" ", 1)
    ending = "es" if verb.endswith(("s", "sh", "ch", "x")) else "s"
    verb = f"{verb[:-1]}ies" if verb.endswith("y") and verb[-2] not in "aeiou" else verb + ending
    return f"It {verb.lower()} {rest}" if ";" not in rest else f"It {verb.lower()} {rest.split(';')[0]}."


def _style(made: Function) -> str:
    if f"{made.name}(" in made.body:
        return "It calls itself until the simplest case is reached."
    if "\n    while " in f"\n{made.body}":
        return "It uses a while loop."
    if "\n    for " in f"\n{made.body}":
        return "It goes through the values in a loop."
    if " for " in made.body:
        return "It does so with a comprehension."
    return "It needs only one expression." if made.body.count("\n") == 0 else "It works step by step."


def _run(draw: Draw, made: Function) -> tuple[str, str]:
    question = draw.pick(_RUN).format(call=made.call, code=_code(made, False))
    return question, f"{_third_person(made.task)} So `{made.call}` returns `{made.result!r}`."


def _mend(draw: Draw, made: Function) -> tuple[str, str]:
    """One line is changed; the answer names it and gives the sound function."""
    lines = made.body.split("\n")
    spots = [
        (at, pattern, change) for at, line in enumerate(lines) for pattern, change in _CHANGES
        if re.search(pattern, line)
    ]  # fmt: skip
    if not spots:
        return _explain(draw, made)
    at, pattern, change = draw.pick(spots)
    sound, broken = lines[at].strip(), re.sub(pattern, change, lines[at], count=1)
    bad = "\n".join([*lines[:at], broken, *lines[at + 1 :]])
    question = draw.pick(_MEND).format(
        task=made.task, low=_low(made.task), code=f"{made.signature}\n{bad}",
        documented=f"{made.head(False)}\n{bad}",
    )  # fmt: skip
    found = f"The bug is in the line `{broken.strip()}`. It should be `{sound}`."
    answer = f"{found}\n\n```python\n{_code(made, False)}\n```"
    return question, answer


def _program(draw: Draw, _: Function) -> tuple[str, str]:
    """A short program in another language, with a name and a number put in."""
    title, language, *lines = draw.pick(blocks("programs") + blocks("programs_more"))
    fill = {"NAME": draw.pick(("main", "demo", "test", "work")), "NUM": str(draw.between(2, 20))}
    body = "\n".join("" if line == "~" else line for line in lines)
    for token, value in fill.items():
        body = body.replace(token, value)
        title = title.replace(token, value)
    kind, fence = language.split(" ")
    ask = draw.pick(("Write {k} code to {t}.", "Write a {k} program to {t}.", "How do I {t} in {k}?",
                     "Show me how to {t} in {k}.", "Write a simple {k} program: {t}.", "{k}: {t}",
                     "Can you {t} with {k}?", "I need {k} code that can {t}."))  # fmt: skip
    return ask.format(k=kind, t=title), f"```{fence}\n{body}\n```"


_DECK: tuple[Callable[[Draw, Function], tuple[str, str]], ...] = (
    (_complete,) * 6 + (_write,) * 5 + (_explain,) * 2 + (_run,) * 2 + (_mend,) * 3 + (_program,) * 3
)


def code(seed: int, index: int, split: Split) -> Dialogue:
    """One task; facts: `name` of the function and its example `call` with `result` (as source)."""
    draw = Draw(seed, index, split, "code")
    made = function(draw, draw.pick(FAMILIES))
    question, answer = draw.pick(_DECK)(draw, made)
    thinking = draw.chance(0.08)
    reasoning = f"The task: {made.task} {_style(made)}" if thinking else None
    if thinking and "```" in answer and made.name not in answer:  # a program in another language
        reasoning = "A short program will do."
    facts = {"name": made.name, "call": made.call, "result": repr(made.result)}
    return Dialogue(
        [*opening(draw), user(question), assistant(answer, reasoning)], "coding", thinking, facts=facts
    )
