"""Puzzles of logic: orderings, families, syllogisms, truth tellers and liars, rules."""

from __future__ import annotations

from itertools import pairwise, product

from paceline.train.synth import words
from paceline.train.synth.dialogue import Draw, joined
from paceline.train.synth.puzzles import Puzzle

# Relation, its opposite, superlatives of both.
_SCALES = (
    ("taller than", "shorter than", "tallest", "shortest"),
    ("older than", "younger than", "oldest", "youngest"),
    ("faster than", "slower than", "fastest", "slowest"),
    ("heavier than", "lighter than", "heaviest", "lightest"),
    ("richer than", "poorer than", "richest", "poorest"),
    ("stronger than", "weaker than", "strongest", "weakest"),
)


def ordering(draw: Draw) -> Puzzle:
    """Who is first or last in an order that pairs of statements give."""
    more, less, most, least = draw.pick(_SCALES)
    names = words.first_names(draw, draw.between(3, 4))
    facts = [f"{a} is {more} {b}." if draw.chance(0.6) else f"{b} is {less} {a}." for a, b in pairwise(names)]
    draw.shuffle(facts)
    top = draw.chance(0.5)
    ask = draw.pick((
        "{t} Who is the {w}?", "{t} Which of them is the {w}?", "{t} Name the {w}.", "{t} The {w} is ...",
        "Who is the {w}? {t}", "{t}\nQuestion: who is the {w}?",
    ))  # fmt: skip
    question = ask.format(t=" ".join(facts), w=most if top else least)
    chain = " > ".join(names)
    answer = names[0] if top else names[-1]
    return Puzzle(
        question, f"From most to least: {chain}. So the {most if top else least} is {answer}.", answer
    )


_PRICES = words.split("apples pears plums lemons oranges bananas cherries grapes melons peaches")


def uncertain(draw: Draw) -> Puzzle:
    """Whether a third comparison is true, false or uncertain."""
    a, b, c = draw.sample(_PRICES, 3)
    kind = draw.pick(("true", "false", "uncertain"))
    if kind == "uncertain":
        facts = draw.pick((((a, b), (a, c)), ((b, a), (c, a))))  # both above, or both below, one and the same
        claim = draw.pick(((b, c), (c, b)))
        why = f"We know how {b} and {c} compare with {a}, but not how they compare with each other."
    else:
        facts = ((a, b), (b, c))
        claim = (a, c) if kind == "true" else (c, a)
        why = f"{a.capitalize()} cost more than {b}, and {b} cost more than {c}, so {a} cost more than {c}."
    told = [f"{x.capitalize()} cost more than {y}." if draw.chance(0.6)
            else f"{y.capitalize()} cost less than {x}." for x, y in facts]  # fmt: skip
    draw.shuffle(told)
    x, y = claim
    question = draw.pick((
        f"{told[0]} {told[1]} Is it true, false or uncertain that {x} cost more than {y}?",
        f"1. {told[0]}\n2. {told[1]}\n3. {x.capitalize()} cost more than {y}.\nIf the first two statements "
        "are true, is the third true, false or uncertain?",
    ))  # fmt: skip
    return Puzzle(question, why, kind)


# Two steps of kinship: (first, second) -> what the first person is to the third. Sex: of the first person.
_KIN = {
    ("father", "father"): "grandfather", ("father", "mother"): "grandfather",
    ("mother", "father"): "grandmother", ("mother", "mother"): "grandmother",
    ("brother", "father"): "uncle", ("brother", "mother"): "uncle",
    ("sister", "father"): "aunt", ("sister", "mother"): "aunt",
    ("son", "son"): "grandson", ("son", "daughter"): "grandson",
    ("daughter", "son"): "granddaughter", ("daughter", "daughter"): "granddaughter",
    ("son", "brother"): "nephew", ("son", "sister"): "nephew",
    ("daughter", "brother"): "niece", ("daughter", "sister"): "niece",
    ("father", "brother"): "father", ("father", "sister"): "father",
    ("mother", "brother"): "mother", ("mother", "sister"): "mother",
}  # fmt: skip
_MALE = {"father", "brother", "son"}


def family(draw: Draw) -> Puzzle:
    """What one person is to another, over a third."""
    while True:
        first, second = draw.pick(tuple(_KIN))
        if (first, second) != ("father", "father"):  # the form that a bench prompt asks about letters
            break
    a, b = (draw.pick(words.MALE if kin in _MALE else words.FEMALE) for kin in (first, second))
    c = draw.pick(words.FEMALE + words.MALE)
    if len({a, b, c}) < 3:
        return family(draw)
    relation = _KIN[first, second]
    question = draw.pick((
        f"{a} is the {first} of {b}. {b} is the {second} of {c}. What is {a} to {c}?",
        f"{a} is {b}'s {first} and {b} is {c}'s {second}. How is {a} related to {c}?",
    ))  # fmt: skip
    why = f"{b} is {c}'s {second}. The {first} of someone's {second} is the {relation}."
    return Puzzle(question, why, f"{a} is {c}'s {relation}.")


_KINDS = words.split(
    "cats birds roses painters robots singers lamps rivers farmers stones clouds books bakers"
)


def syllogism(draw: Draw) -> Puzzle:
    """Whether a conclusion follows from two statements about kinds of things."""
    a, b, c = draw.sample(_KINDS, 3)
    first, second, claim, follows, why = draw.pick((
        (f"All {a} are {b}", f"All {b} are {c}", f"All {a} are {c}", True,
         f"Every one of the {a} is among the {b}, and those are all {c}"),
        (f"All {a} are {b}", f"No {b} are {c}", f"No {a} are {c}", True,
         f"The {a} are among the {b}, and none of those are {c}"),
        (f"All {a} are {b}", f"Some {a} are {c}", f"Some {b} are {c}", True,
         f"The {a} that are {c} are {b} too"),
        (f"Some {a} are {b}", f"All {b} are {c}", f"Some {a} are {c}", True,
         f"The {a} that are {b} are {c} as well"),
        (f"No {a} are {b}", f"Some {c} are {a}", f"Some {c} are not {b}", True,
         f"The {c} that are {a} cannot be {b}"),
        (f"All {a} are {b}", f"All {c} are {b}", f"All {a} are {c}", False,
         f"Both are among the {b}, but that does not make {a} into {c}"),
        (f"All {a} are {b}", f"Some {b} are {c}", f"Some {a} are {c}", False,
         f"The {b} that are {c} need not be {a}"),
        (f"No {a} are {b}", f"No {b} are {c}", f"No {a} are {c}", False,
         f"Nothing is said about {a} and {c} together"),
        (f"Some {a} are {b}", f"Some {b} are {c}", f"Some {a} are {c}", False,
         f"The {b} that are {a} may be others than those that are {c}"),
        (f"All {a} are {b}", f"No {a} are {c}", f"No {b} are {c}", False,
         f"There may be {b} that are not {a}, and those may be {c}"),
    ))  # fmt: skip
    question = draw.pick((
        f"{first}. {second}. Does it follow that {claim[0].lower()}{claim[1:]}? Answer yes or no.",
        f"Statement 1: {first}.\nStatement 2: {second}.\nConclusion: {claim}.\nIs the conclusion valid?",
        f"If {first[0].lower()}{first[1:]} and {second[0].lower()}{second[1:]}, can we conclude that "
        f"{claim[0].lower()}{claim[1:]}?",
    ))  # fmt: skip
    return Puzzle(question, f"{why}.", "Yes" if follows else "No")


_ROLES = (("knight", "liar"), ("saint", "rogue"), ("angel", "devil"), ("friend", "trickster"))


def truth_tellers(draw: Draw) -> Puzzle:
    """Two people who always tell the truth or always lie, and one statement of each."""
    good, bad = draw.pick(_ROLES)
    a, b = words.first_names(draw, 2)
    while True:
        says = [draw.between(0, 3), draw.between(0, 3)]
        fits = [
            w for w in product((True, False), repeat=2) if all(_claims(says[i], i, w) == w[i] for i in (0, 1))
        ]
        if len(fits) == 1:
            break
    names, (world,) = (a, b), fits
    told = [_stated(says[i], i, names, good, bad) for i in (0, 1)]
    steps = []
    for guess in product((True, False), repeat=2):
        wrong = [i for i in (0, 1) if _claims(says[i], i, guess) != guess[i]]
        state = joined([f"{n} is a {good if g else bad}" for n, g in zip(names, guess, strict=True)])
        result = f"then what {names[wrong[0]]} says does not fit" if wrong else "everything fits"
        steps.append(f"If {state}, {result}.")
        if not wrong:
            break
    answer = joined([f"{n} is a {good if g else bad}" for n, g in zip(names, world, strict=True)])
    question = (
        f"On an island {good}s always tell the truth and {bad}s always lie. You meet {a} and {b}. "
        f'{a} says: "{told[0]}" {b} says: "{told[1]}" Who is a {good} and who is a {bad}?'
    )
    return Puzzle(question, " ".join(steps), f"{answer}.")


def _claims(kind: int, speaker: int, world: tuple[bool, ...]) -> bool:
    """Whether what the speaker says is true in a world; the kinds are those of `_stated`."""
    me, other = world[speaker], world[1 - speaker]
    return (other, not other, me and other, me == other)[kind]


def _stated(kind: int, speaker: int, names: tuple[str, str], good: str, bad: str) -> str:
    other = names[1 - speaker]
    return (
        f"{other} is a {good}.", f"{other} is a {bad}.", f"We are both {good}s.",
        f"{other} and I are of the same kind.",
    )[kind]  # fmt: skip


_EVENTS = (
    ("it rains", "the street is wet"), ("the bell rings", "the lesson ends"),
    ("the light is red", "the cars stop"),
    ("the alarm sounds", "everyone leaves"), ("the door is open", "the cat goes out"),
    ("the sun shines", "the children play outside"), ("the battery is empty", "the phone is off"),
    ("it is Sunday", "the shop is closed"), ("the water boils", "the kettle whistles"),
    ("the train is late", "Tom waits"), ("the ice is thin", "nobody skates"),
    ("the dog barks", "the baby wakes up"),
)  # fmt: skip


def rules(draw: Draw) -> Puzzle:
    """What follows from an if-then rule and one fact."""
    cause, effect = draw.pick(_EVENTS)
    fact, ask, answer, why = draw.pick((
        (cause, effect, "Yes", f"the rule says that then {effect}"),
        (f"it is not true that {effect}", cause, "No", f"if {cause}, then {effect}, and that is not so"),
        (effect, cause, "Not certain", "the effect may have another reason"),
        (f"it is not true that {cause}", effect, "Not certain",
         f"the rule says nothing about when it is not so that {cause}"),
    ))  # fmt: skip
    question = draw.pick((
        f"If {cause}, then {effect}. We know: {fact}. Is it certain that {ask}?",
        f"Rule: if {cause}, then {effect}.\nFact: {fact}.\nIs it so that {ask}? Yes, no, or not certain?",
        f"Whenever {cause}, {effect}. Now {fact}. Does that mean that {ask}? (Yes, No or Not certain)",
        f"Suppose that {effect} each time when {cause}. We learn: {fact}. Can we be sure that {ask}?",
        f"1. If {cause}, {effect}.\n2. Today: {fact}.\nMust it be that {ask}?",
        f"Always when {cause}, then {effect}. What we see: {fact}. Is it then certain that {ask}? Explain.",
    ))  # fmt: skip
    return Puzzle(question, f"The rule is: if {cause}, then {effect}. The fact is: {fact}. So {why}.", answer)


_LIKES = ("likes", "loves", "enjoys", "adores")
_DISLIKES = ("dislikes", "hates", "cannot stand", "avoids")
_HOBBIES = words.split(
    "chess,painting,swimming,cooking,tennis,gardening,dancing,hiking,singing,fishing,reading", ","
)


def tally(draw: Draw) -> Puzzle:
    """How many people like something, in a list of likes and dislikes."""
    names = words.first_names(draw, draw.between(4, 7))
    likes = [draw.chance(0.5) for _ in names]
    told = " ".join(
        f"{name} {draw.pick(_LIKES if like else _DISLIKES)} {draw.pick(_HOBBIES)}."
        for name, like in zip(names, likes, strict=True)
    )
    wanted = draw.chance(0.6)
    found = [name for name, like in zip(names, likes, strict=True) if like == wanted]
    word = "people like something" if wanted else "people dislike something"
    ask = "How many people like something?" if wanted else "How many people dislike something?"
    listed = f"These {word}: {joined(found)}. That makes {len(found)}." if found else "There are none."
    return Puzzle(f"{told} {ask}", listed, str(len(found)))
