"""Puzzles over lists: opinions of many people, letters in texts, legs, things of one sort, odd ones."""

from __future__ import annotations

from typing import NamedTuple

from paceline.train.synth import words
from paceline.train.synth.dialogue import Draw, joined
from paceline.train.synth.puzzles import GROUPS, Puzzle

_LIKES = words.split(
    "likes,loves,enjoys,adores,is fond of,is keen on,values,praises,cherishes,admires,fancies,favors,"
    "is fascinated by,looks forward to,takes pleasure in,welcomes,appreciates,prefers,is crazy about",
    ",",
)
_DISLIKES = words.split(
    "dislikes,hates,cannot stand,avoids,detests,loathes,is bored by,complains about,is annoyed by,fears,"
    "despises,is tired of,has no time for,mocks,regrets,rejects,resents,shuns,grumbles about,is against",
    ",",
)
_VERBS = words.split("baking washing painting selling drawing repairing buying cleaning counting collecting")
_TARGETS = words.split("bread cups windows toys clocks bicycles maps carpets shells hats curtains stamps")
_HOBBIES = words.split(
    "chess,tennis,gardening,hiking,singing,fishing,reading,yoga,rugby,opera,physics,camping,sewing,rowing,"
    "the color green,the color pink,the color red,hot tea,cold soup,owls,foxes,cows,snails,bees,trains,"
    "old cars,sailing boats,poetry,crime novels,card games,long walks,snow,rain,hockey,ballet,jazz,pottery",
    ",",
)


def _topic(draw: Draw) -> str:
    return f"{draw.pick(_VERBS)} {draw.pick(_TARGETS)}" if draw.chance(0.4) else draw.pick(_HOBBIES)


class Opinion(NamedTuple):
    """One line of a list of opinions."""

    name: str
    verb: str
    topic: str
    likes: bool

    @property
    def text(self) -> str:
        """The line."""
        return f"{self.name} {self.verb} {self.topic}."


def _opinions(draw: Draw) -> list[Opinion]:
    found = []
    for name in words.first_names(draw, draw.pick((4, 6, 8, 12, 16, 24, 32))):
        likes = draw.chance(0.5)
        found.append(Opinion(name, draw.pick(_LIKES if likes else _DISLIKES), _topic(draw), likes))
    return found


_HOW_MANY = (
    "How many people {l} something?", "How many of them {l} something?", "How many {l} what is named?",
    "Count the people who {l} something.", "What is the number of people who {l} something?",
    "How many persons in this list {l} the thing that is said of them?",
)  # fmt: skip
_INTROS = ("", "", "", "Read the list. ", "Here is what some people think. ", "Look at these sentences:\n")


def opinions(draw: Draw) -> Puzzle:
    """A look-up or a count in a list of likes and dislikes, short or long."""
    rows = _opinions(draw)
    between = draw.pick((" ", " ", " ", "\n", "\n- "))
    listed = ("- " if between == "\n- " else "") + between.join(row.text for row in rows)
    one = draw.pick(rows)
    if draw.chance(0.45):
        likes = draw.chance(0.5)
        found = [row for row in rows if row.likes == likes]
        word = "like" if likes else "dislike"
        ask = draw.pick(_HOW_MANY).format(l=word)
        steps = "\n".join(f"{i}. {row.text}" for i, row in enumerate(found, 1)) or "There are none."
        why, answer = f"Those who {word} something:\n{steps}\nThat makes {len(found)}.", str(len(found))
    elif draw.chance(0.5):
        found = [row for row in rows if row.topic == one.topic and row.likes == one.likes]
        form = draw.pick(
            ("Who {v} {t}?", "Which person {v} {t}?", "{t}: who {v} it?", "Name everyone who {v} {t}.")
        )
        verb = draw.pick(("likes", "has a good word for") if one.likes else ("dislikes", "is not happy with"))
        ask = form.format(v=verb, t=one.topic)
        ask = ask[0].upper() + ask[1:]
        why, answer = " ".join(row.text for row in found), joined([row.name for row in found])
    else:
        ask = draw.pick((f"What does {one.name} think of {one.topic}?", f"Does {one.name} like {one.topic}?",
                         f"Is {one.name} for or against {one.topic}?"))  # fmt: skip
        answer = one.name + (" likes it" if one.likes else " does not like it")
        why = f'The list says: "{one.text}"'
    if draw.chance(0.3):
        return Puzzle(f"{ask}\n\n{listed}", why, answer)
    return Puzzle(f"{draw.pick(_INTROS)}{listed}{draw.pick((' ', chr(10), chr(10) * 2))}{ask}", why, answer)


_FILL = words.split(
    "and the of his her with three into from they when after slowly under then every minutes later machine "
    "walked opened table again looked small people under water never side house began light years carried "
    "morning two over between found letters room across turned quickly behind"
)
_LETTERS = (
    'How often does the letter "{c}" occur in this text: "{t}"?',
    'Count how many times "{c}" appears in: "{t}"',
    'How many times is the letter {c} used in the following words?\n{t}',
    'Text: "{t}"\nHow many letters {c} does it have?',
    'In the text "{t}", how many times can you find the letter "{c}"?',
    'Tell me the number of {c}\'s in "{t}".',
    'How many times does "{c}" appear in the following: {t}',
)  # fmt: skip


def letters_in_text(draw: Draw) -> Puzzle:
    """How often a letter stands in a text of many words."""
    chosen = [draw.pick(_FILL if draw.chance(0.6) else words.NOUNS) for _ in range(draw.between(3, 16))]
    text = " ".join(chosen)
    letter = draw.pick(text.replace(" ", ""))
    rows = [f"{word}: {'-'.join(word)}, {word.count(letter)}" for word in chosen]
    counts = [n for word in chosen if (n := word.count(letter))]
    total = sum(counts)
    sums = f" Together: {' + '.join(map(str, counts))} = {total}." if len(counts) > 1 else ""
    return Puzzle(draw.pick(_LETTERS).format(c=letter, t=text), f"{'; '.join(rows)}.{sums}", str(total))


_MORE_LEGS = (
    ("elephant", 4), ("giraffe", 4), ("deer", 4), ("frog", 4), ("squirrel", 4), ("camel", 4), ("donkey", 4),
    ("lobster", 10), ("shrimp", 10), ("cricket", 6), ("wasp", 6), ("firefly", 6), ("cockroach", 6),
    ("tarantula", 8), ("tick", 8), ("worm", 0), ("jellyfish", 0), ("eel", 0), ("ostrich", 2), ("eagle", 2),
    ("human", 2), ("woodlouse", 14), ("flamingo", 2), ("bear", 4), ("leech", 0), ("mosquito", 6),
)  # fmt: skip
_LEGS = (
    "How many legs are there if you have {g}?", "Add up the legs of {g}.",
    "Count the legs. You have {g}. How many legs is that altogether?",
    "Here is a list of animals: {g}. How many legs do they have in total?",
    "Someone keeps {g}. What is the total number of legs?",
    "If there are {g}, how many legs are there in total?",
    "Given these animals, tell me how many legs they have together.\n\n{g}",
    "The job is to count legs. How many are there in all for {g}?",
)  # fmt: skip
_PLURALS = {"firefly": "fireflies", "ostrich": "ostriches", "cockroach": "cockroaches", "leech": "leeches",
            "woodlouse": "woodlice", "mosquito": "mosquitoes", "goose": "geese", "wolf": "wolves",
            "fox": "foxes", "butterfly": "butterflies", "sheep": "sheep", "fish": "fish",
            "jellyfish": "jellyfish"}  # fmt: skip


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {_PLURALS.get(noun, noun + 's')}"


def more_legs(draw: Draw) -> Puzzle:
    """How many legs a list of animals has, with more animals and wordings."""
    chosen = draw.sample(words.ANIMALS + _MORE_LEGS, draw.between(2, 6))
    counts = [draw.between(1, 15) for _ in chosen]
    group = [_counted(n, animal) for n, (animal, _) in zip(counts, chosen, strict=True)]
    steps, running = [], 0
    for n, (animal, each) in zip(counts, chosen, strict=True):
        steps.append(f"{_counted(n, animal)} with {each} legs each: {n} * {each} = {n * each}.")
    for at, (n, (_, each)) in enumerate(zip(counts, chosen, strict=True)):
        if at:
            steps.append(f"{running} + {n * each} = {running + n * each}.")
        running += n * each
    text = joined(group) if draw.chance(0.6) else ", ".join(group)
    return Puzzle(draw.pick(_LEGS).format(g=text), "\n".join(steps), str(running))


_NUMBERS = words.split("no one two three four five six seven eight nine")
_OBJECTS = (
    "I have {g}. How many {s} do I have?", "On the table there are {g}. How many {s} are there?",
    "{p} owns {g}. How many {s} does {p} own?", "In a box lie {g}. Count the {s}.",
    "List: {g}. How many of these are {s}?", "{p} bought {g}. How many {s} did {p} buy in total?",
    "There are {g} in the room. Tell me the number of {s}.",
)  # fmt: skip


def things_of_a_sort(draw: Draw) -> Puzzle:
    """How many things of one sort are among others."""
    group, *others = draw.sample(sorted(set(GROUPS) - {"colors", "jobs"}), 3)
    mine = draw.sample(GROUPS[group].split(), draw.between(2, 4))
    rest = [draw.pick(GROUPS[other].split()) for other in others[: draw.between(1, 2)]]
    row = [(draw.pick((1, 1, 2, 3, 4)), thing) for thing in [*mine, *rest]]
    draw.shuffle(row)

    def told(n: int, thing: str) -> str:
        if n == 1:
            return f"{'an' if thing[0] in 'aeio' else 'a'} {thing}"
        return f"{_NUMBERS[n]} {plural(thing)}"

    found = [(n, thing) for n, thing in row if thing in mine]
    counts = [n for n, _ in found]
    total = sum(counts)
    named = joined([told(n, thing) for n, thing in found])
    why = f"The {group} are {named}: {' + '.join(map(str, counts))} = {total}."
    question = draw.pick(_OBJECTS).format(
        g=joined([told(n, t) for n, t in row]), s=group, p=draw.pick(words.FEMALE + words.MALE)
    )
    return Puzzle(question, why, str(total))


def plural(thing: str) -> str:
    """'cherries', 'boxes', 'cars'."""
    if thing.endswith("y") and thing[-2] not in "aeiou":
        return f"{thing[:-1]}ies"
    special = {"sheep": "sheep", "scarf": "scarves", "shelf": "shelves", "potato": "potatoes"}
    return special.get(thing, thing + ("es" if thing.endswith(("s", "x", "ch", "sh")) else "s"))


_ODD = (
    "Which of these is different from the others?\n{l}",
    "Which one does not belong in the group: {l}",
    "Pick the word that does not fit with the rest.\n{l}",
    "{l}\nThree of these go together. Which one does not?",
    "Odd one out: {l}. Explain why.",
    "Which item is the odd one out?\n{l}",
    "Look at the words {l}. Which of them is out of place?",
    "Choose the word that is not like the others:\n{l}",
)
_WHOLES = {
    "bicycle": "pedal saddle chain handlebar wheel", "house": "roof wall door chimney window",
    "tree": "root branch leaf trunk bark", "ship": "mast anchor sail deck rudder",
    "book": "page cover chapter spine title", "computer": "keyboard screen mouse processor disk",
    "face": "nose mouth chin cheek eye", "kitchen": "stove sink fridge oven cupboard",
    "flower": "petal stem leaf pollen seed", "plane": "wing cockpit tail propeller cabin",
}  # fmt: skip


def odd_item(draw: Draw) -> Puzzle:
    """Which word does not belong: one of another group, or a whole among its parts."""
    if draw.chance(0.4):
        odd = draw.pick(tuple(_WHOLES))
        rest = draw.sample(_WHOLES[odd].split(), 3)
        why = f"{joined(rest).capitalize()} are parts of a {odd}. The {odd} is the whole."
    else:
        group, other = draw.sample(sorted(GROUPS), 2)
        rest, odd = draw.sample(GROUPS[group].split(), 3), draw.pick(GROUPS[other].split())
        why = f"{joined(rest).capitalize()} are {group}. {odd.capitalize()} belongs to the {other}."
    row = [*rest, odd]
    draw.shuffle(row)
    lettered = "\n".join(f"{'abcd'[i]}) {w}" for i, w in enumerate(row))
    listed = draw.pick((", ".join(row), ", ".join(row), lettered, "\n".join(f"- {w}" for w in row)))
    form = draw.pick(_ODD if "\n" not in listed else [form for form in _ODD if "\n{l}" in form])
    return Puzzle(form.format(l=listed), why, odd)
