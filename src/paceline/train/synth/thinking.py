"""Puzzles with their reasoning: in the think block with a short answer, or written out in the answer."""

from __future__ import annotations

from collections.abc import Callable

from paceline.train.synth import deduction, islands, lists, logic, puzzles, situations
from paceline.train.synth.dialogue import Dialogue, Draw, Split, assistant, opening, user
from paceline.train.synth.puzzles import Puzzle

_DECK: tuple[Callable[[Draw], Puzzle], ...] = (
    puzzles.letters, puzzles.reversal, puzzles.legs, puzzles.weekday, puzzles.clock_hours, puzzles.sequence,
    puzzles.sorting, puzzles.odd_one_out, puzzles.turning, logic.ordering, logic.uncertain, logic.family,
    logic.syllogism, logic.truth_tellers, logic.rules, logic.tally, islands.islanders, islands.islanders,
    islands.islanders, deduction.follows, deduction.follows, deduction.third_statement,
    deduction.third_statement, deduction.propositions, lists.opinions, lists.opinions, lists.letters_in_text,
    lists.letters_in_text, lists.more_legs, lists.more_legs, lists.things_of_a_sort, lists.odd_item,
    lists.odd_item, situations.choice, situations.reasons, situations.kinship, situations.kinship,
    situations.ranking, situations.ranking, situations.shadow, situations.walk, situations.turns,
    situations.race,
)  # fmt: skip
_BRIEF = (" Give only the answer.", " Answer only.", " Short answer, please.")


def thinking(seed: int, index: int, split: Split) -> Dialogue:
    """One puzzle, thought about in two of three dialogues; facts: `answer`."""
    draw = Draw(seed, index, split, "thinking")
    puzzle = draw.pick(_DECK)(draw)
    aloud = not draw.chance(0.6)
    brief = draw.chance(0.1)
    question = puzzle.question + (draw.pick(_BRIEF) if brief else "")
    if not aloud:
        answer = assistant(_sentence(puzzle.answer), puzzle.reasoning)
    elif brief:
        answer = assistant(_sentence(puzzle.answer))
    else:
        answer = assistant(f"{puzzle.reasoning}\n\nThe answer: {_sentence(puzzle.answer)}")
    messages = [*opening(draw), user(question), answer]
    return Dialogue(messages, "reasoning", not aloud, facts={"answer": puzzle.answer})


def _sentence(answer: str) -> str:
    return answer if answer.endswith(".") else f"{answer}."
