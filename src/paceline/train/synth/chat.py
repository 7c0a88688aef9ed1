"""Small talk: greetings, thanks, what the model says about itself; and small requests that need no tool."""

from __future__ import annotations

from paceline.train.synth.blocks import blocks
from paceline.train.synth.dialogue import Dialogue, Draw, Split, assistant, opening, user
from paceline.train.synth.requests import REQUESTS
from paceline.train.synth.words import COUNTRIES

_REAL = COUNTRIES[:-3]  # the last ones are made up, for extraction
_TALK = tuple(
    (tuple(question.strip() for question in block[0].split("|")), block[1:]) for block in blocks("chat")
)


def chat(seed: int, index: int, split: Split) -> Dialogue:
    """One remark and its answer; facts: none. Both splits share the few remarks that there are."""
    draw = Draw(seed, index, split, "chat")
    if draw.chance(0.5):
        question, answer = draw.pick(REQUESTS)(draw)
        return Dialogue([*opening(draw), user(question), assistant(answer)], "chat")
    if draw.chance(0.25):
        question, answer = _capital(draw)
    else:
        questions, answers = draw.pick(_TALK)
        question, answer = draw.pick(questions), draw.pick(answers)
    thinking = draw.chance(0.2)
    reply = assistant(answer, "A short and friendly answer will do." if thinking else None)
    return Dialogue([*opening(draw), user(question), reply], "chat", thinking)


def _capital(draw: Draw) -> tuple[str, str]:
    country, capital, language = draw.pick(_REAL)
    return draw.pick((
        (f"What is the capital of {country}?", f"The capital of {country} is {capital}."),
        (f"Which language do people speak in {country}?", f"People in {country} speak {language}."),
        (f"{capital} is the capital of which country?", f"{capital} is the capital of {country}."),
        (f"Name the capital of {country}.", f"{capital}."),
    ))  # fmt: skip
