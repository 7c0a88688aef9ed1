"""Classification of several items at once: reviews to scores or moods, questions to subjects."""

from __future__ import annotations

import json
from collections.abc import Callable

from paceline.train.synth import words
from paceline.train.synth.blocks import blocks
from paceline.train.synth.dialogue import Draw, joined

_REVIEWS = {int(block[0]): block[1:] for block in blocks("reviews")}
_SUBJECTS = {block[0]: block[1:] for block in blocks("questions")}
_OBJECTS = words.split(
    "movie,film,book,novel,phone,hotel,restaurant,video game,camera,course,show,album,car,play,concert,app,"
    "vacuum cleaner,pair of headphones,museum,podcast,laptop,coffee machine,tent,board game",
    ",",
)
_EXTRAS = (
    "I bought it in {m} {y}.",
    "It came out in {m} {y}.",
    "My sister gave it to me in {m}.",
    "I was there with {p}.",
    "{p} had told me about it.",
    "I have thought about it for a week.",
    "It has been around since {y}.",
    "I saw it in {c}.",
    "We had been waiting for it since {m}.",
    "That is my opinion, at least.",
)
MARKS = ("{i}. ", "{i}) ", "- ", "{a}) ", "({a}) ", "{A}. ", "* ", "#{i}: ")


def listed(draw: Draw, lines: list[str], between: str = "\n") -> str:
    """Lines with one kind of mark in front of each."""
    mark = draw.pick(MARKS)
    return between.join(
        mark.format(i=i, a="abcdefghij"[i - 1], A="ABCDEFGHIJ"[i - 1]) + line
        for i, line in enumerate(lines, 1)
    )


def _review(draw: Draw, stars: int, thing: str) -> str:
    parts = [text.format(o=thing) for text in draw.sample(_REVIEWS[stars], draw.pick((1, 1, 2, 2, 3)))]
    if draw.chance(0.4):
        extra = draw.pick(_EXTRAS).format(
            m=draw.pick(words.MONTHS),
            y=draw.between(1990, 2026),
            p=words.person(draw).full,
            c=draw.pick(words.CITIES),
        )
        parts.insert(draw.between(0, len(parts)), extra)
    return " ".join(parts)


_SCALES = ("", "", ", with 1 for very bad and 5 for very good", ", where 1 is awful and 5 is excellent",
           " (1: terrible, 3: neutral, 5: perfect)", ", 5 being the best")  # fmt: skip
_RATE = (
    "Give every one of these {o} reviews a score from 1 to 5{s}.",
    "Read the {o} reviews and rate them from 1 to 5{s}.",
    "How many stars, from 1 to 5, does each of the reviews give{s}?",
    "Score the reviews below between 1 and 5{s}.",
    "Judge how positive the following {o} reviews are on a scale of 1 to 5{s}.",
    "Assign a rating to each review, on a scale from 1 to 5{s}.",
    "What rating from 1 to 5 fits each opinion{s}?",
    "Here are some opinions about a {o}. Turn each into a number from 1 to 5{s}.",
)
_AS_JSON = (
    "Return a JSON array of integers.",
    "Answer with a JSON list of numbers.",
    "Give the result as a list of integers.",
    "The output should be a JSON array.",
    "Only return the list of scores.",
    "Write the scores as [a, b, ...].",
)


def scores(draw: Draw) -> tuple[str, str]:
    """Three to seven reviews of one thing, each to a number."""
    stars = [draw.between(1, 5) for _ in range(draw.between(3, 7))]
    thing = draw.pick(_OBJECTS)
    text = listed(draw, [_review(draw, n, thing) for n in stars])
    ask = draw.pick(_RATE).format(o=thing, s=draw.pick(_SCALES))
    if draw.chance(0.6):
        form = draw.pick(_AS_JSON)
        question = draw.pick(
            (f"{ask}\n{text}\n{form}", f"{ask} {form}\n\n{text}", f"{ask}\n\n{text}\n\n{form}")
        )
        return question, json.dumps(stars)
    question = draw.pick((f"{ask}\n{text}", f"{ask}\n\n{text}", f"{text}\n\n{ask}"))
    return question, "\n".join(f"{i}. {n}" for i, n in enumerate(stars, 1))


_MOODS = ("negative", "negative", "neutral", "positive", "positive")
_MOOD_ASKS = (
    "Label each of these reviews as positive, negative or neutral.",
    "What is the sentiment of every line: positive, neutral or negative?",
    "Decide for each opinion whether it is positive, negative or neutral.",
    "Classify the following texts by sentiment (positive, negative, neutral).",
    "Are these opinions positive, negative or neutral?",
    "Find the mood of each review: negative, neutral, positive.",
)


def moods(draw: Draw) -> tuple[str, str]:
    """Several reviews, each to a mood, as lines or JSON."""
    stars = [draw.between(1, 5) for _ in range(draw.between(3, 8))]
    found = [_MOODS[n - 1] for n in stars]
    text = listed(draw, [_review(draw, n, draw.pick(_OBJECTS)) for n in stars])
    ask = draw.pick(_MOOD_ASKS)
    form = draw.between(0, 2)
    if form == 0:
        return f"{ask} Answer with a JSON list.\n{text}", json.dumps(found)
    if form == 1:
        return f"{ask} One word per line.\n\n{text}", "\n".join(found)
    return f"{ask}\n{text}", "\n".join(f"{i}. {mood}" for i, mood in enumerate(found, 1))


_PHONES = words.split("Nordic One,Vela 5,Pluto X,Aster,Corvo Mini,Terra 9,Lumo,Zephyr,Kite Pro,Onyx 3", ",")
_SOURCES = words.split(
    "Daily Gadget,The Tester,Home Lab,Pocket News,Review Weekly,The Notebook,City Paper", ","
)
_OVERALL = (
    "Read what different magazines say about these {o}s and give each an overall rating from 1 to 10.",
    "Rate each {o} from 1 to 10 according to the reviews.",
    "Which rating from 1 to 10 does each {o} deserve?",
    "From the reviews below, derive one score between 1 and 10 for every {o}.",
    "Summarize the opinions of the press in one number from 1 to 10 per {o}.",
    "Here are reviews of several {o}s. Give a rating (1 to 10) for each of them.",
)


def overall(draw: Draw) -> tuple[str, str]:
    """Two or three products with one or two reviews each, to a rating out of ten."""
    thing = draw.pick(("phone", "camera", "laptop", "car", "tablet", "speaker", "watch"))
    lines, ratings = [], []
    for name in draw.sample(_PHONES, draw.between(2, 3)):
        stars = [draw.between(1, 5)]
        if draw.chance(0.5):
            stars.append(min(5, max(1, stars[0] + draw.between(-1, 1))))
        lines += [f"{draw.pick(_SOURCES)} about the {name}: {_review(draw, n, thing)}" for n in stars]
        ratings.append((name, round(2 * sum(stars) / len(stars))))
    ask = draw.pick(_OVERALL).format(o=thing)
    text = listed(draw, lines)
    if draw.chance(0.4):
        return f"{ask} Return JSON.\n{text}", json.dumps(dict(ratings))
    return f"{ask}\n{text}", "\n".join(f"{name}: {rating}/10" for name, rating in ratings)


_SORT = (
    "Sort these questions into the categories {c}. Write only the category, one per line.",
    "For each question choose one of {c}. Use one line for each answer and add nothing else.",
    "There are the categories {c}. Tell for each task which one it belongs to, line by line.",
    "Assign a subject ({o}) to every question below. No other words.",
    "Which of the subjects {c} do the following questions come from? One subject per line.",
    "Label the questions with {o}. Give the labels line by line, without comments.",
    "Categories: {k}.\nPut each of these into one category and list the categories in order.",
    "Given the topics {c}, match every question with its topic. Answer line by line.",
)  # fmt: skip


def subjects(draw: Draw) -> tuple[str, str]:
    """Three to seven longer questions, each to one of some subjects."""
    topics = draw.sample(sorted(_SUBJECTS), draw.between(3, 6))
    chosen = [draw.pick(topics) for _ in range(draw.between(3, 7))]
    tasks = [draw.sample(_SUBJECTS[topic], draw.pick((1, 1, 2))) for topic in chosen]
    text = listed(draw, [" ".join(task) for task in tasks])
    ask = draw.pick(_SORT).format(c=joined(topics), o=joined(topics, "or"), k=", ".join(topics))
    if "line" not in ask and draw.chance(0.3):
        return f"{ask} Return a JSON list.\n{text}", json.dumps(chosen)
    question = draw.pick((f"{ask}\n{text}", f"{ask}\n\n{text}", f"{text}\n\n{ask}"))
    return question, "\n".join(chosen)


SURVEYS: tuple[Callable[[Draw], tuple[str, str]], ...] = (scores, scores, moods, overall, subjects, subjects)
"""Makers of (question, answer)."""
