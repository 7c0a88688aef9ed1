"""Continuations of novels: a few paragraphs as the question, what follows them as the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paceline.errors import ConfigError
from paceline.train.synth.dialogue import Dialogue, Draw, Split, assistant, is_held_out, opening, user

_SEGMENT = 32
"""Paragraphs that are dealt to a split together: a passage never crosses into the other split."""
_HELD_OUT = 24
"""One segment in so many is held out."""
_LEAST, _MOST = 60, 120
"""Words of an answer."""
_CONTEXT = (25, 140)
"""Words of a question's passage."""
_ASKS = (
    "Continue this story in the same style:\n\n{t}",
    "Continue this story in the same style:\n\n{t}",
    "Continue the story:\n\n{t}",
    "Write the next paragraph of this story.\n\n{t}",
    "{t}\n\nContinue in the same style.",
    "How does this go on?\n\n{t}",
    "Go on with this passage from a novel:\n\n{t}",
)
_PLANS = (
    "The passage is from a novel. Keep its tone and go on where it stops.",
    "Go on with the story in the same style, for a paragraph or two.",
)
_SENTENCE_END = re.compile(r"[.!?][\"'”_)]*(?= |\n|$)")
_NOT_PROSE = re.compile(r"^\s*(CHAPTER|Chapter|VOLUME|Volume|THE END|FINIS|\[|\*)")


class Continuations:
    """A `Generator` over the texts that it was made with."""

    def __init__(self, texts: Sequence[str]) -> None:
        """texts: whole novels, with blank lines between paragraphs."""
        self._segments: dict[Split, list[list[str]]] = {"train": [], "held_out": []}
        for text in texts:
            paragraphs = [p.strip("\n") for p in re.split(r"\n\s*\n", text) if p.strip()]
            for at in range(0, len(paragraphs), _SEGMENT):
                self._deal(paragraphs[at : at + _SEGMENT])

    def _deal(self, segment: list[str]) -> None:
        if any(_passage(segment, at) for at in range(len(segment))):
            held = is_held_out("prose", segment[0], one_in=_HELD_OUT)
            self._segments["held_out" if held else "train"].append(segment)

    def __call__(self, seed: int, index: int, split: Split) -> Dialogue:
        """One passage; facts: `words` of the answer."""
        segments = self._segments[split]
        if not segments:
            raise ConfigError(f"the texts hold no passages for {split}: give a whole novel", key="texts")
        draw = Draw(seed, index, split, "prose")
        found = None
        while found is None:
            segment = draw.pick(segments)
            found = _passage(segment, draw.between(0, len(segment) - 1))
        shown, answer = found
        if draw.chance(0.4):
            shown = _reflowed(shown)
        thinking = draw.chance(0.06)
        reply = assistant(answer, draw.pick(_PLANS) if thinking else None)
        messages = [*opening(draw), user(draw.pick(_ASKS).format(t=shown)), reply]
        return Dialogue(messages, "prose", thinking, facts={"words": len(answer.split())})


def _reflowed(text: str) -> str:
    """Paragraphs without line breaks inside, single spaces."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))


def _passage(segment: list[str], at: int) -> tuple[str, str] | None:
    """Context and continuation from a paragraph on; None where a chapter or the segment ends too soon."""
    shown: list[str] = []
    count = 0
    while at < len(segment) and count < _CONTEXT[0]:
        if _NOT_PROSE.match(segment[at]):
            return None
        shown.append(segment[at])
        count += len(segment[at].split())
        at += 1
    if not _CONTEXT[0] <= count <= _CONTEXT[1]:
        return None
    answer = _continuation(segment[at:])
    return None if answer is None else ("\n\n".join(shown), answer)


def _continuation(rest: list[str]) -> str | None:
    """The next 60-120 words, up to the end of a sentence."""
    taken = ""
    for paragraph in rest:
        if _NOT_PROSE.match(paragraph):
            return None
        whole = f"{taken}\n\n{_reflowed(paragraph)}" if taken else _reflowed(paragraph)
        count = len(whole.split())
        if count >= _LEAST:
            return whole if count <= _MOST else _cut(whole)
        taken = whole
    return None


def _cut(text: str) -> str | None:
    """The longest beginning of at most 120 words that ends with a sentence; None if it is too short."""
    best = None
    for found in _SENTENCE_END.finditer(text):
        count = len(text[: found.end()].split())
        if count > _MOST:
            break
        if count >= _LEAST:
            best = text[: found.end()]
    return best
