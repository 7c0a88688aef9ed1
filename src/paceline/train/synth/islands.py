"""Truth tellers and liars: two or three people of two kinds, what each says, and the one world that fits."""

from __future__ import annotations

from itertools import product

from paceline.train.synth import words
from paceline.train.synth.dialogue import Draw
from paceline.train.synth.puzzles import Puzzle

_KINDS = (
    ("knight", "knave"), ("pioneer", "laggard"), ("giver", "robber"), ("angel", "devil"), ("saint", "sinner"),
    ("altruist", "egoist"), ("judge", "burglar"), ("monk", "pirate"), ("gnome", "goblin"), ("scout", "spy"),
    ("scholar", "trickster"), ("prince", "beggar"), ("ranger", "rascal"), ("truth-teller", "liar"),
    ("wizard", "jester"), ("captain", "smuggler"), ("healer", "cheat"), ("friend", "rogue"),
)  # fmt: skip
_SCENES = (
    "Only {g}s and {b}s live on a remote island. {G}s always tell the truth, {b}s always lie. You meet {n}.",
    "In a strange village everyone is either {ag} or {ab}. {G}s never lie and {b}s never tell the truth. "
    "You talk to {n}.",
    "A certain island has just two kinds of people: {g}s, who always tell the truth, and {b}s, who always "
    "lie. Today you come across {n}.",
    "There is a town of {g}s and {b}s. Every {g} tells the truth, every {b} lies. You meet {c} of them: {n}.",
    "{G}s always tell the truth, and {b}s always lie. Each of {n} is one or the other.",
    "You are visiting a country of {g}s (who only say what is true) and {b}s (who only say what is false). "
    "{n} greet you.",
    "All inhabitants of a special valley are {g}s or {b}s. {G}s speak the truth, and {b}s always lie. "
    "You meet {c} inhabitants: {n}.",
)
_SAYS = (
    '{n} says: "{s}".', '{n} said, "{s}".', '{n} told you that {s}.', '"{s}," {n} claimed.',
    '{n} claims: "{s}".',
    'In the words of {n}: "{s}".', '{n} remarks, "{s}".', '{n} stated, "{s}".', 'According to {n}, "{s}".',
    '{n} mentions that {s}.', '"{s}" - {n}.', '{n} asserted: "{s}".', '{n} commented, "{s}".',
)  # fmt: skip
_ASKS = (
    "Who is {ag} and who is {ab}?", "So who is {ag}, and who is {ab}?", "Which of them are {g}s?",
    "What is each of them?", "Find out what everyone is.", "Determine who is {ag} and who is {ab}.",
    "Can you tell who is what?",
)  # fmt: skip
_FORMS = ("", "", ' (Write your answer as "{f}".)', ' (Format: "{f}")', ' Answer in the form "{f}".',
          ' (Please answer like this: "{f}")')  # fmt: skip
_COUNTS = ("", "", "two", "three")
World = tuple[bool, ...]
Claim = tuple[str, int, bool, int, bool]
"""(form, first person, whether good, second person, whether good)."""


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeio" else f"a {noun}"


def _claim(draw: Draw, speaker: int, count: int) -> Claim:
    form = draw.pick(("is", "is", "is", "not", "and", "or", "if", "iff"))
    first, second = draw.sample(range(count), 2)
    if form in ("is", "not") and first == speaker:
        first = second
    return form, first, draw.chance(0.5), second, draw.chance(0.5)


def _holds(claim: Claim, world: World) -> bool:
    form, first, good, second, other = claim
    left, right = world[first] == good, world[second] == other
    match form:
        case "is":
            return left
        case "not":
            return not left
        case "and":
            return left and right
        case "or":
            return left or right
        case "if":
            return not left or right
    return left == right


def _said(claim: Claim, names: list[str], kinds: tuple[str, str]) -> str:
    form, first, good, second, other = claim
    one = f"{names[first]} is {_a(kinds[not good])}"
    two = f"{names[second]} is {_a(kinds[not other])}"
    return {
        "is": one, "not": one.replace(" is ", " is not "), "and": f"{one} and {two}", "or": f"{one} or {two}",
        "if": f"if {one} then {two}", "iff": f"{one} if and only if {two}",
    }[form]  # fmt: skip


def _listing(parts: list[str]) -> str:
    return f"{', '.join(parts[:-1])}{',' if len(parts) > 2 else ''} and {parts[-1]}"


def _state(names: list[str], world: World, kinds: tuple[str, str]) -> str:
    return _listing([f"{n} is {_a(kinds[not good])}" for n, good in zip(names, world, strict=True)])


def islanders(draw: Draw) -> Puzzle:
    """Who always tells the truth and who always lies."""
    kinds, count = draw.pick(_KINDS), draw.pick((2, 2, 2, 3))
    names = words.first_names(draw, count)
    worlds = list(product((True, False), repeat=count))
    while True:
        claims = [_claim(draw, i, count) for i in range(count)]
        wrong = [[i for i in range(count) if _holds(claims[i], w) != w[i]] for w in worlds]
        if sum(not w for w in wrong) == 1:
            break
    steps = []
    for world, misfits in zip(worlds, wrong, strict=True):
        fits = f"then what {names[misfits[0]]} says does not fit" if misfits else "everything fits"
        steps.append(f"If {_state(names, world, kinds)}, {fits}.")
        if not misfits:
            break
    told = " ".join(
        draw.pick(_SAYS).format(n=name, s=_said(claim, names, kinds))
        for name, claim in zip(names, claims, strict=True)
    )
    good, bad = kinds
    form = ", and ".join(f"{name} is a {good}/{bad}" for name in names)
    ask = draw.pick(_SCENES) + " {t} " + draw.pick(_ASKS) + draw.pick(_FORMS)
    question = ask.format(
        g=good, b=bad, G=good.capitalize(), ag=_a(good), ab=_a(bad), n=_listing(names), c=_COUNTS[count],
        t=told, f=form,
    )  # fmt: skip
    return Puzzle(question, "\n".join(steps), f"{_state(names, world, kinds)}.")
