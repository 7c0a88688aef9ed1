"""One question of each category, for a small model that has learnt to answer such."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CategoryPrompt:
    """A prompt and the kind of text that it asks for; `category` serves as its id."""

    category: str
    text: str


DEMO_PROMPTS = (
    CategoryPrompt("coding", "Write a Python function that returns the sum of the even numbers in a list."),
    CategoryPrompt(
        "extraction",
        "Extract name, email and company as JSON:\n"
        "You can reach Nora Kovac of Silver Harbor at nkovac@post.com or by phone at 555-0182.",
    ),
    CategoryPrompt("math", "Calculate 731 - 254."),
    CategoryPrompt("natural", "Give me three tips for sleeping better."),
    CategoryPrompt("prose", "Write a paragraph about a walk in the forest."),
    CategoryPrompt(
        "reasoning", "Anna is older than Ben. Ben is older than Carla. Who is the oldest of the three?"
    ),
)
