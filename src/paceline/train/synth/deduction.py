"""What follows from statements: syllogisms, comparisons of three things, propositional logic."""

from __future__ import annotations

from functools import cache
from itertools import permutations, product

from paceline.train.synth import words
from paceline.train.synth.dialogue import Draw, joined
from paceline.train.synth.puzzles import Puzzle

_PLURALS = words.split(
    "cats birds painters robots singers farmers bakers teachers doctors pilots sailors dancers lawyers poets "
    "nurses drivers swimmers climbers judges actors parents children artists engineers gardeners hunters "
    "tigers horses whales mammals insects plants trees lamps toys boats tables books songs flowers kings "
    "tailors runners butchers librarians cooks waiters clowns soldiers grandmothers"
)
_STATED = {
    "All": "All {x} are {y}", "No": "No {x} are {y}", "Some": "Some {x} are {y}",
    "Not": "Some {x} are not {y}",
}  # fmt: skip
_OPPOSITE = {"All": "Not", "No": "Some", "Some": "No", "Not": "All"}
_MEMBERS = tuple(product((True, False), repeat=3))
"""Kinds of things there may be: whether one is an a, a b, a c."""
Statement = tuple[str, int, int]
"""(quantifier, subject, predicate)."""


def _true(statement: Statement, members: tuple[tuple[bool, ...], ...]) -> bool:
    form, x, y = statement
    both = any(m[x] and m[y] for m in members)
    apart = any(m[x] and not m[y] for m in members)
    return {"All": not apart, "No": not both, "Some": both, "Not": apart}[form]


@cache
def _worlds() -> tuple[tuple[tuple[bool, ...], ...], ...]:
    """All worlds in which there is one of each kind at least, those with few sorts of things first."""
    found = [tuple(m for m, there in zip(_MEMBERS, world, strict=True) if there)
             for world in product((True, False), repeat=8)]  # fmt: skip
    whole = [w for w in found if all(any(m[i] for m in w) for i in range(3))]
    return tuple(sorted(whole, key=len))


@cache
def _arguments() -> dict[bool, tuple[tuple[Statement, Statement, Statement], ...]]:
    """(first, second, conclusion), by whether the conclusion follows."""
    holds = {(form, x, y): frozenset(i for i, w in enumerate(_worlds()) if _true((form, x, y), w))
             for form in _STATED for x, y in permutations(range(3), 2)}  # fmt: skip
    found: dict[bool, list[tuple[Statement, Statement, Statement]]] = {True: [], False: []}
    for first, second, claim in product(holds, repeat=3):
        if {*first[1:]} == {0, 1} and {*second[1:]} == {1, 2} and {*claim[1:]} == {0, 2}:
            both = holds[first] & holds[second]
            if both:
                found[both <= holds[claim]].append((first, second, claim))
    return {follows: tuple(rows) for follows, rows in found.items()}


_FOLLOWS = (
    "Look at these statements:\n1. {a}\n2. {b}\n\nDoes it follow that {c}?{f}",
    "{a}. {b}. Can we conclude that {c}?{f}",
    "Premise 1: {a}.\nPremise 2: {b}.\nConclusion: {C}.\n\nIs the conclusion valid?{f}",
    "Given that {al} and that {bl}, is it certain that {c}?{f}",
    "Two facts are known:\n- {a}\n- {b}\nMust it be true that {c}?{f}",
    "Suppose that {al}. Suppose also that {bl}. Does this mean that {c}?{f}",
    "a) {a}\nb) {b}\n\nDo these statements imply the following?\n{C}{f}",
    "{a}. {b}. Therefore {c}. Is this argument correct?{f}",
    "Assume:\n1) {a}.\n2) {b}.\nIs it logically true that {c}?{f}",
)
_YES_NO = (
    "",
    "",
    " (Answer Yes or No)",
    "\n(Yes or No)",
    " Answer with yes or no.",
    " Answer yes or no and say why.",
)


def follows(draw: Draw) -> Puzzle:
    """Whether a conclusion follows from two statements about kinds of things, none of them empty."""
    valid = draw.chance(0.5)
    first, second, claim = draw.pick(_arguments()[valid])
    kinds = draw.sample(_PLURALS, 3)
    a, b, c = (_STATED[form].format(x=kinds[x], y=kinds[y]) for form, x, y in (first, second, claim))
    if valid:
        opposite = _STATED[_OPPOSITE[claim[0]]].format(x=kinds[claim[1]], y=kinds[claim[2]])
        why = f"If it were not so, then {_low(opposite)}. That does not fit with the two statements."
    else:
        why = f"It need not be so: {_counterexample(first, second, claim, kinds)}"
    if draw.chance(0.5):
        a, b = b, a
    question = draw.pick(_FOLLOWS).format(
        a=a, b=b, c=_low(c), C=c, al=_low(a), bl=_low(b), f=draw.pick(_YES_NO)
    )
    return Puzzle(question, why, "Yes" if valid else "No")


def _low(text: str) -> str:
    return text[0].lower() + text[1:]


def _counterexample(first: Statement, second: Statement, claim: Statement, kinds: list[str]) -> str:
    world = next(w for w in _worlds() if _true(first, w) and _true(second, w) and not _true(claim, w))
    parts = []
    for member in world:
        have = [kind for kind, there in zip(kinds, member, strict=True) if there]
        parts.append(f"things that are {'only ' if len(have) == 1 else ''}{joined(have)}")
    return f"there may be just {joined(parts)}. Both statements hold then, but the conclusion does not."


_SCALES = (
    ("{x} cost more than {y}", "{x} cost less than {y}", "apples pears plums lemons oranges bananas cherries "
     "grapes melons peaches onions carrots"),
    ("{x} is taller than {y}", "{x} is shorter than {y}", ""),
    ("{x} is older than {y}", "{x} is younger than {y}", ""),
    ("{x} runs faster than {y}", "{x} runs slower than {y}", ""),
    ("{x} earns more than {y}", "{x} earns less than {y}", ""),
    ("{x} lives farther north than {y}", "{x} lives farther south than {y}", ""),
    ("{x} are heavier than {y}", "{x} are lighter than {y}", "stones bricks books lamps chairs boxes"),
)  # fmt: skip
_THIRD = (
    "{p1}\n{p2}\n{p3}\nIf the first two statements are true, is the third one true, false or uncertain?",
    "Read three statements. Judge the last by the others: is it true, false or uncertain?\n{p1}\n{p2}\n{p3}",
    "{s1} {s2} {s3} Given that the first two sentences are true, the third is",
    "Take the first two statements as facts.\n{p1}\n{p2}\nAnd this one: true, false or uncertain?\n{p3}",
    "We know: {s1} {s2} Is it true, false or uncertain that {l3}",
    "Say whether the third statement is true, false, or uncertain, if 1 and 2 are true.\n{p1}\n{p2}\n{p3}",
    "{s1} {s2}\n\nStatement: {s3}\nAnswer with true, false or uncertain.",
)


def third_statement(draw: Draw) -> Puzzle:
    """Whether a third comparison is true, false or uncertain, by all orders that the first two allow."""
    more, less, things = draw.pick(_SCALES)
    names = draw.sample(things.split(), 3) if things else words.first_names(draw, 3)
    x, y, z = names
    facts = draw.pick((((x, y), (y, z)), ((x, y), (y, z)), ((x, y), (x, z)), ((x, z), (y, z))))
    orders = [o for o in permutations(names) if all(o.index(a) < o.index(b) for a, b in facts)]
    claims = draw.sample([(a, b) for a in names for b in names if a != b], draw.pick((1, 1, 1, 2)))

    def told(high: str, low: str) -> str:
        text = more.format(x=high, y=low) if draw.chance(0.55) else less.format(x=low, y=high)
        return text[0].upper() + text[1:]

    found = [{o.index(a) < o.index(b) for o in orders} for a, b in claims]
    every = {all(o.index(a) < o.index(b) for a, b in claims) for o in orders}
    verdict = "uncertain" if len(every) == 2 else "true" if True in every else "false"
    said = [told(*facts[0]), told(*facts[1])]
    draw.shuffle(said)
    parts = [told(*claim) for claim in claims]
    said.append(" and ".join([parts[0], *(p if not things else _low(p) for p in parts[1:])]))
    mark = draw.pick(("{i}. ", "{i}) ", "({i}) "))
    question = draw.pick(_THIRD).format(
        **{f"p{i}": f"{mark.format(i=i)}{s}." for i, s in enumerate(said, 1)},
        **{f"s{i}": f"{s}." for i, s in enumerate(said, 1)},
        l3=(_low(said[2]) if things else said[2]) + "?",
    )
    chain = " > ".join(orders[0]) if len(orders) == 1 else "open, since two of them are not compared"
    results = [f'"{p}" is {"open" if len(f) == 2 else "right" if True in f else "wrong"}.' for p, f in
               zip(parts, found, strict=True)]  # fmt: skip
    return Puzzle(question, f"The order is {chain}. {' '.join(results)}", verdict)


_SIGNS = {"or": "∨", "and": "∧", "implies": "→", "iff": "↔", "not ": "¬"}
_INFERENCES = (
    (("{x} implies {y}", "{x}"), "{y}", "{x} holds, so {y} holds too"),
    (("{x} implies {y}", "not {y}"), "not {x}", "if {x} held, {y} would hold, but it does not"),
    (("{x} or {y}", "not {x}"), "{y}", "one of both holds, and it is not {x}"),
    (("{x} or {y}", "not {y}"), "{x}", "one of both holds, and it is not {y}"),
    (("{x} implies {y}", "{y} implies {z}"), "{x} implies {z}", "{x} leads to {y}, and {y} leads to {z}"),
    (("{x}", "{y}"), "{x} and {y}", "both hold"),
    (("{x} and {y}", "{y} implies {z}"), "{z}", "{y} holds, so {z} holds too"),
    (("{x} iff {y}", "{x}"), "{y}", "{x} and {y} hold together"),
    (("{x} iff {y}", "not {y}"), "not {x}", "{x} and {y} hold together or not at all"),
    (("not {x}", "{y}"), "not {x} and {y}", "both hold"),
    (("{x} implies {y}", "{y} implies {z}", "{x}"), "{z}", "{x} leads to {y}, and {y} leads to {z}"),
)
_LOGIC = (
    "What can be concluded from these premises?\n{l}",
    "Premises:\n{l}\nConclusion?",
    "Here are some statements of propositional logic. Which statement follows?\n{l}",
    "{l}\n\nWhat follows from the above?",
    "This is a task in propositional logic. Infer a correct conclusion from the premises.\n\nGiven:\n{l}",
    "Assume that the following hold:\n{l}\nGive one conclusion.",
)
_NOTATION = ("", "", "\n\nUse the symbols ∨ (or), ∧ (and), → (implies), ↔ (iff) and ¬ (not).",
             "\n\nFormat: write OR as ∨, AND as ∧, IMPLIES as →, IFF as ↔, NOT as ¬.")  # fmt: skip


def propositions(draw: Draw) -> Puzzle:
    """A conclusion from one to three premises in letters."""
    premises, conclusion, why = draw.pick(_INFERENCES)
    letters = dict(zip("xyz", draw.sample("PQRSTUABC", 3), strict=True))
    notation = draw.pick(_NOTATION)
    symbols = bool(notation) or draw.chance(0.5)

    def written(text: str) -> str:
        text = text.format(**letters)
        for word, sign in _SIGNS.items():
            text = text.replace(word, sign) if symbols else text
        return text

    rows = [written(premise) for premise in premises]
    if draw.chance(0.5):
        rows.reverse()
    mark = draw.pick(("{i}. ", "{i}) ", "- "))
    listed = "\n".join(mark.format(i=i) + row for i, row in enumerate(rows, 1))
    question = draw.pick(_LOGIC).format(l=listed) + notation
    steps = why.format(**letters)
    return Puzzle(question, f"{steps[0].upper()}{steps[1:]}.", written(conclusion))
