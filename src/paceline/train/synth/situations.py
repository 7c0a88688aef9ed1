"""Puzzles told as small scenes: choices, reasons, kinship, orders, directions, races, siblings."""

from __future__ import annotations

from itertools import pairwise

from paceline.train.synth import words
from paceline.train.synth.blocks import blocks
from paceline.train.synth.dialogue import Draw, joined
from paceline.train.synth.puzzles import GROUPS, Puzzle

_MARKS = (("a) ", "b) ", "c) ", "d) "), ("A. ", "B. ", "C. ", "D. "), ("(a) ", "(b) ", "(c) ", "(d) "),
          ("1. ", "2. ", "3. ", "4. "))  # fmt: skip
_ASKS = ("", "", " Choose one answer.", " Answer with the letter and the text.", " Explain your choice.")


def _options(draw: Draw, right: str, wrong: list[str]) -> tuple[str, str]:
    """The options as lines, and the right one with its mark."""
    rows = [right, *wrong]
    draw.shuffle(rows)
    marks = draw.pick(_MARKS)
    lines = [mark + row for mark, row in zip(marks, rows, strict=False)]
    return "\n".join(lines), lines[rows.index(right)]


def choice(draw: Draw) -> Puzzle:
    """One of four options: a situation that needs attention, or a word of a sort."""
    if draw.chance(0.55):
        scene, *lines = draw.pick(blocks("situations"))
        right = draw.pick([line[2:] for line in lines if line[0] == "!"])
        harmless = draw.sample([line[2:] for line in lines if line[0] == "-"], 3)
        listed, answer = _options(draw, right, harmless)
        return Puzzle(
            f"{scene}\n{listed}", "This is the only one that is serious. The others are harmless.", answer
        )
    group, *others = draw.sample(sorted(GROUPS), 4)
    words_ = [draw.pick(GROUPS[other].split()) for other in (group, *others)]
    listed, answer = _options(draw, words_[0], words_[1:])
    question = draw.pick((
        f"Which of these belongs to the {group}?", f"Which one is among the {group}?",
        f"Pick the word that names one of the {group}.", f"Only one of these fits with {group}. Which?",
        f"Select the right answer: which of them is one of the {group}?",
        f"Multiple choice: find the one of the {group}.",
    ))  # fmt: skip
    why = f"{words_[0].capitalize()} is one of the {group}. The others are not."
    return Puzzle(f"{question}{draw.pick(_ASKS)}\n{listed}", why, answer)


_WHY = (
    "{s} What could be the reasons?", "{s} Why could that be?", "{s} What might explain this?",
    "{s} Give possible reasons.", "{s} How can that be?", "{s} Name three possible causes.",
    "What are possible reasons for this? {s}", "{s} Can you think of an explanation?",
)  # fmt: skip


def reasons(draw: Draw) -> Puzzle:
    """What could be the reasons for something that seems odd."""
    scene, *causes = draw.pick(blocks("reasons"))
    p = words.person(draw)
    fill = {
        "p": p.first,
        "he": p.he,
        "him": p.him,
        "his": p.his,
        "He": p.he.capitalize(),
        "His": p.his.capitalize(),
    }
    draw.shuffle(causes)
    told = [cause.format(**fill) for cause in causes]
    listed = "\n".join(f"{i}. {cause}" for i, cause in enumerate(told, 1))
    question = draw.pick(_WHY).format(s=scene.format(**fill))
    return Puzzle(question, f"There may be several reasons:\n{listed}", f"Perhaps this: {told[0]}")


_KIN = {
    ("father", "father"): "grandfather", ("father", "mother"): "grandfather",
    ("mother", "father"): "grandmother", ("mother", "mother"): "grandmother",
    ("brother", "father"): "uncle", ("brother", "mother"): "uncle", ("sister", "father"): "aunt",
    ("sister", "mother"): "aunt", ("son", "son"): "grandson", ("son", "daughter"): "grandson",
    ("daughter", "son"): "granddaughter", ("daughter", "daughter"): "granddaughter",
    ("son", "brother"): "nephew", ("son", "sister"): "nephew", ("daughter", "brother"): "niece",
    ("daughter", "sister"): "niece", ("father", "wife"): "father-in-law", ("mother", "wife"): "mother-in-law",
    ("father", "husband"): "father-in-law", ("mother", "husband"): "mother-in-law",
    ("brother", "wife"): "brother-in-law", ("sister", "husband"): "sister-in-law",
    ("brother", "brother"): "brother", ("sister", "sister"): "sister", ("wife", "brother"): "sister-in-law",
    ("husband", "sister"): "brother-in-law", ("wife", "son"): "daughter-in-law",
    ("husband", "daughter"): "son-in-law", ("brother", "son"): "son", ("father", "brother"): "father",
}  # fmt: skip
_MALE = {"father", "brother", "son", "husband"}
_KIN_ASKS = (
    "{a} is the {f} of {b}, and {b} is the {s} of {c}. How are {a} and {c} related?",
    "{b} is the {s} of {c}. {a} is the {f} of {b}. What relation is {a} to {c}?",
    "{a} is {b}'s {f}. {b} is {c}'s {s}. What is the relationship between {a} and {c}?",
    "{c} has a {s} called {b}. The {f} of {b} is {a}. Who is {a} to {c}?",
    "If {a} is the {f} of {b} and {b} is the {s} of {c}, then {a} is the ... of {c}. Fill in the gap.",
    "Meet a family: {b} is {c}'s {s}, and {a} is {b}'s {f}. Which word says what {a} is to {c}?",
    "1. {a} is the {f} of {b}.\n2. {b} is the {s} of {c}.\nWhat is {a} to {c}?",
)


def kinship(draw: Draw) -> Puzzle:
    """What one person is to another, in many wordings, with names or letters."""
    first, second = draw.pick(tuple(_KIN))
    if draw.chance(0.3) and (first, second) != ("father", "father"):  # letters and fathers: held out
        a, b, c = draw.pick((("A", "B", "C"), ("X", "Y", "Z"), ("P", "Q", "R"), ("K", "L", "M")))
    else:
        a, b = (draw.pick(words.MALE if kin in _MALE else words.FEMALE) for kin in (first, second))
        owner = (
            words.MALE
            if second == "wife"
            else words.FEMALE
            if second == "husband"
            else words.FEMALE + words.MALE
        )
        c = draw.pick(owner)
    if len({a, b, c}) < 3:
        return kinship(draw)
    relation = _KIN[first, second]
    question = draw.pick(_KIN_ASKS).format(a=a, b=b, c=c, f=first, s=second)
    why = f"{b} is the {second} of {c}. The {first} of one's {second} is one's {relation}."
    return Puzzle(question, why, f"{a} is the {relation} of {c}.")


_SCALES = (
    ("{x} is taller than {y}", "{x} is shorter than {y}", "tallest", "shortest"),
    ("{x} is older than {y}", "{x} is younger than {y}", "oldest", "youngest"),
    ("{x} finished before {y}", "{x} finished after {y}", "first to finish", "last to finish"),
    ("{x} arrived earlier than {y}", "{x} arrived later than {y}", "first to arrive", "last to arrive"),
    ("{x} earns more than {y}", "{x} earns less than {y}", "best paid", "worst paid"),
    ("{x} jumped farther than {y}", "{y} was beaten by {x}", "best jumper", "worst jumper"),
    ("{x} has more books than {y}", "{x} has fewer books than {y}", "richest in books", "poorest in books"),
    ("{x} stands in front of {y}", "{x} stands behind {y}", "first in the line", "last in the line"),
)  # fmt: skip
_ORDER_ASKS = (
    "{t} Who is the {w}?", "{t} Which of them is the {w}?", "Find out who is the {w}. {t}",
    "{t} The {w} is ...", "{t} Tell me the name of the {w}.", "Read: {t}\nQuestion: who is the {w}?",
    "{l}\nWho is the {w}?", "{l}\n\nGive the {w}.",
)  # fmt: skip


def ranking(draw: Draw) -> Puzzle:
    """The first, the last, the second or the whole order of three to six people."""
    more, less, most, least = draw.pick(_SCALES)
    names = words.first_names(draw, draw.between(3, 6))
    facts = []
    for a, b in pairwise(names):
        other = less.format(x=a, y=b) if "beaten" in less else less.format(x=b, y=a)
        facts.append(f"{more.format(x=a, y=b) if draw.chance(0.6) else other}.")
    draw.shuffle(facts)
    chain = "\n".join(f"{i}. {name}" for i, name in enumerate(names, 1))
    told, lines = " ".join(facts), "\n".join(f"- {fact}" for fact in facts)
    kind = draw.between(0, 3)
    if kind == 0:
        ask = draw.pick(("List all of them, beginning with the {w}.", "Put them in order, the {w} first."))
        return Puzzle(f"{told} {ask.format(w=most)}", f"The order is:\n{chain}", ", ".join(names))
    answer, what = (names[0], most) if kind == 1 else (names[-1], least)
    if kind == 3:
        place = draw.between(2, len(names) - 1)
        answer = names[place - 1]
        what = f"one in place {place}, if the {most} is in place 1"
    return Puzzle(draw.pick(_ORDER_ASKS).format(t=told, l=lines, w=what), f"The order is:\n{chain}", answer)


_COMPASS = ("north", "east", "south", "west")
_SIDES = ("in front of", "to the right of", "behind", "to the left of")
_SHADOWS = (
    "It is {d}, and the sun is low. The shadow of {p} falls {s} {him}. Which direction is {p} facing?",
    "{p} goes out in the {d}. {His} shadow lies {s} {him}. Which way is {he} looking?",
    "Early one {d}, {p} sees {his} own shadow {s} {him}. In which direction is {he} looking?",
    "In the {d} sun {p}'s shadow is {s} {him}. Where does {he} look? Explain.",
    "{p} takes a picture in the {d}. The shadow of {his} head is {s} {him}. What direction does {he} face?",
    "One {d} {p} stands still and notes that {his} shadow points {s} {him}. Find where {he} looks.",
)


def shadow(draw: Draw) -> Puzzle:
    """Where someone looks, by the shadow in the morning or the evening."""
    p, morning, side = words.person(draw), draw.chance(0.5), draw.between(0, 3)
    falls = 3 if morning else 1
    facing = _COMPASS[(falls - side) % 4]
    day = "morning" if morning else "evening"
    question = draw.pick(_SHADOWS).format(
        d=day, p=p.first, him=p.him, his=p.his, he=p.he, His=p.his.capitalize(), s=_SIDES[side]
    )
    sun = _COMPASS[(falls + 2) % 4]
    why = f"In the {day} the sun is in the {sun}, so shadows fall to the {_COMPASS[falls]}. "
    return Puzzle(question, f"{why}The {_COMPASS[falls]} is {_SIDES[side]} {p.first}.", facing)


_WALKS = (
    "{p} walks {w}. Where is {he} now, seen from the start?",
    "{p} goes {w}. How far and in which direction is {he} from where {he} began?",
    "A robot moves {w}. Where does it end up?", "Start at the door and go {w}. Where are you then?",
    "{p} rides {w}. Say where {he} is in relation to the starting point.",
    "From home {p} walks {w}. How far from home is {he}, and in what direction?",
)  # fmt: skip


def walk(draw: Draw) -> Puzzle:
    """Where a walk along the compass ends: steps, then what is left of them each way."""
    p, unit = words.person(draw), draw.pick(("km", "miles", "meters", "steps", "blocks"))
    moves = [(draw.between(1, 12), draw.between(0, 3)) for _ in range(draw.between(2, 5))]
    net = [sum(n for n, d in moves if d == i) for i in range(4)]
    parts, why = [], []
    for a, b in ((0, 2), (1, 3)):
        if net[a] or net[b]:
            more, less = (a, b) if net[a] >= net[b] else (b, a)
            left = net[more] - net[less]
            why.append(
                f"{_COMPASS[more]} {net[more]}, {_COMPASS[less]} {net[less]}: "
                f"{net[more]} - {net[less]} = {left}"
            )
            parts += [f"{left} {unit} {_COMPASS[more]}"] * bool(left)
    told = ", then ".join(f"{n} {unit} {_COMPASS[d]}" for n, d in moves)
    question = draw.pick(_WALKS).format(p=p.first, he=p.he, w=told)
    reasoning = ". ".join(line[0].upper() + line[1:] for line in why)
    return Puzzle(question, f"{reasoning}.", joined(parts) if parts else "back at the start")


_TURNS = (
    "{p} looks {s}. {He} turns {t}. Where does {he} look now?",
    "Facing {s}, {p} turns {t}. Which way is {he} facing in the end?",
    "A ship sails {s}. It turns {t}. In which direction does it sail now?",
    "You are facing {s}. You turn {t}. What direction are you facing?",
    "{p} walks {s}, then turns {t}. In what direction is {he} walking?",
    "At first a robot points {s}. Then it turns {t}. Where does it point? (north, east, south or west)",
)


def turns(draw: Draw) -> Puzzle:
    """Where someone faces after turns by words or degrees."""
    p, at = words.person(draw), draw.between(0, 3)
    start, told, path = _COMPASS[at], [], []
    for _ in range(draw.between(1, 5)):
        step, names = draw.pick(((1, ("right", "90 degrees clockwise")), (3, ("left", "90 degrees left")),
                                 (2, ("around", "180 degrees"))))  # fmt: skip
        name = draw.pick(names)
        at = (at + step) % 4
        told.append(name)
        path.append(f"{name}: {_COMPASS[at]}")
    question = draw.pick(_TURNS).format(
        p=p.first, he=p.he, He=p.he.capitalize(), s=start, t=", then ".join(told)
    )
    return Puzzle(question, f"Start: {start}. {'. '.join(x[0].upper() + x[1:] for x in path)}.", _COMPASS[at])


_PLACES = words.split("first second third fourth fifth sixth seventh eighth ninth")


def race(draw: Draw) -> Puzzle:
    """Places after overtaking, and how many there are by places from both ends."""
    p, place = draw.pick(words.FEMALE + words.MALE), draw.between(2, 8)
    nth = _PLACES[place]
    if draw.chance(0.4):
        back = draw.between(2, 8)
        last = _PLACES[back]
        who = draw.pick(("children", "people", "cars", "students", "runners"))
        question = draw.pick((
            f"In a row of {who}, {p} is the {nth} from the left and the {last} from the right. "
            "How many are in the row?",
            f"{p} stands in a line of {who}: {nth} from the front, {last} from the back. "
            "How long is the line?",
        ))  # fmt: skip
        total = place + back + 1
        return Puzzle(
            question,
            f"Before {p} there are {place}, behind {back}. {place} + {back} + 1 = {total}.",
            str(total),
        )
    thing = draw.pick(("bicycle race", "swimming contest", "run", "ski race", "boat race"))
    question = draw.pick((
        f"In a {thing} {p} passes the one in {nth} place. Which place is {p} in now?",
        f"{p} takes part in a {thing} and overtakes whoever is {nth}. What is {p}'s position then?",
        f"Suppose {p} has just gone past the {nth} in a {thing}. What place does {p} hold?",
    ))  # fmt: skip
    why = f"{p} takes the place of the one who was passed, who was {nth}."
    return Puzzle(question, why, f"{nth} place")
