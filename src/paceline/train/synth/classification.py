"""Classification: reviews to scores or moods, questions to topics, messages to kinds."""

from __future__ import annotations

import json

from paceline.train.synth import words
from paceline.train.synth.dialogue import Draw, joined

_MOODS = {
    5: (
        "I love it",
        "It is perfect",
        "It was wonderful",
        "I have never seen anything better",
        "Simply great",
    ),
    4: ("It is good", "I liked it", "It works well", "A nice surprise", "I would buy it again"),
    3: (
        "It is all right",
        "It is neither good nor bad",
        "Nothing special",
        "It does its job",
        "It was average",
    ),
    2: (
        "I did not like it much",
        "It is rather weak",
        "It could be better",
        "It was a bit boring",
        "Not good",
    ),
    1: ("It is terrible", "I hate it", "A complete waste of money", "It broke at once", "It was awful"),
}
_DETAILS = {
    5: ("everything was excellent", "the quality is outstanding", "I smiled all day", "five stars from me"),
    4: ("the price was fair", "it looks nice", "only small things could be better", "the staff was friendly"),
    3: ("some parts were good and some were not", "I have no strong feelings", "it is what it is"),
    2: ("the quality is poor", "it was too slow", "I expected more", "the colors are dull"),
    1: ("nothing worked", "I want my money back", "nobody helped me", "never again"),
}
_OBJECTS = words.split(
    "movie,book,phone,hotel,restaurant,game,camera,course,show,album,car,trip,meal,app", ","
)
_TOPICS = {
    "Science": ("How do plants make oxygen", "Why is the sky blue", "What is an atom made of",
                "How do magnets work",
                "What causes the tides", "How far away is the moon", "Why does ice float on water"),
    "History": ("Who built the pyramids", "When did the Roman Empire fall", "Who was the first president",
                "What started the great war", "How did people live in the Middle Ages",
                "Who sailed to America"),
    "Sports": ("How long is a marathon", "How many players has a football team", "Who won the last world cup",
               "What is a tie break in tennis", "How do I train for a swim race", "What is offside"),
    "Food": ("How do I bake bread", "What goes into a tomato soup", "How long must an egg boil",
             "Which cheese is best on pizza", "How do I keep salad fresh", "What is tofu made of"),
    "Travel": ("Which train goes to the coast", "Do I need a visa", "What should I pack for the mountains",
               "Is the museum open on Sunday", "How do I find a cheap flight", "Where can I rent a bike"),
    "Music": ("How many strings has a violin", "Who wrote this symphony", "What is a chord",
              "How do I tune a guitar", "What does a conductor do", "How do I read notes"),
    "Health": ("How much sleep do I need", "What helps against a cold", "How often should I exercise",
               "Is too much salt bad", "How do I treat a small burn", "What is a normal pulse"),
    "Technology": ("How do I reset my password", "What is a web browser", "Why is my computer slow",
                   "How do I back up my files", "What does a router do", "How do I install an app"),
    "Art": ("Who painted the water lilies", "What is a fresco", "How do I mix the color green",
            "What makes a good portrait", "What is a sculpture made of", "How do I draw hands"),
}  # fmt: skip
_MESSAGES = {
    "spam": ("You have won a free phone, click here", "Cheap pills, order now", "Earn money fast from home",
             "Claim your prize today", "Last chance for a secret offer"),
    "not spam": ("Lunch at noon tomorrow", "The report is attached", "Can you call me back",
                 "Happy birthday, see you tonight", "The train is ten minutes late"),
}  # fmt: skip
_NAMES = ("", "", "the most negative and 5 the most positive", "very bad and 5 very good")


def classification(draw: Draw) -> tuple[str, str]:
    """A question and its answer."""
    return draw.pick((_scores, _mood, _topics, _spam))(draw)


def _review(draw: Draw, stars: int) -> str:
    text = f"{draw.pick(_MOODS[stars])}, {draw.pick(_DETAILS[stars])}."
    return (
        f"This {draw.pick(_OBJECTS)}? {text}" if draw.chance(0.5) else f"{text} That {draw.pick(_OBJECTS)}!"
    )


def _listed(draw: Draw, lines: list[str]) -> str:
    mark = draw.pick(("{i}. ", "- ", "{i}) "))
    return "\n".join(mark.format(i=i) + line for i, line in enumerate(lines, 1))


def _scores(draw: Draw) -> tuple[str, str]:
    stars = [draw.between(1, 5) for _ in range(draw.between(2, 5))]
    text = _listed(draw, [_review(draw, n) for n in stars])
    scale = draw.pick(_NAMES)
    of = f", where 1 means {scale}" if scale else ""
    ask = draw.pick((
        f"Rate the following reviews on a scale of 1 to 5{of}.",
        f"How positive are these reviews on a scale from 1 to 5{of}?",
        f"Give each review a score from 1 to 5{of}.",
    ))  # fmt: skip
    form = draw.between(0, 2)
    if form == 0:
        return f"{ask} Return the scores as a JSON list of numbers.\n{text}", json.dumps(stars)
    if form == 1:
        return f"{ask}\n{text}\nAnswer with a list of integers.", json.dumps(stars)
    return f"{ask}\n{text}", "\n".join(f"{i}. {n}" for i, n in enumerate(stars, 1))


def _mood(draw: Draw) -> tuple[str, str]:
    stars = draw.pick((1, 2, 4, 5, 3))
    mood = "positive" if stars > 3 else "negative" if stars < 3 else "neutral"
    review = _review(draw, stars)
    key = draw.pick(("sentiment", "mood", "label"))
    question, answer = draw.pick((
        (f"Is this review positive, negative or neutral? {review}", f"The review is {mood}."),
        (f"Classify the sentiment of the review as positive, negative or neutral. One word.\n{review}", mood),
        (f'{review}\n\nReturn JSON with the key "{key}": positive, negative or neutral.',
         json.dumps({key: mood})),
    ))  # fmt: skip
    return question, answer


def _topics(draw: Draw) -> tuple[str, str]:
    topics = draw.sample(list(_TOPICS), draw.between(3, 5))
    chosen = [draw.pick(topics) for _ in range(draw.between(2, 5))]
    text = _listed(draw, [f"{draw.pick(_TOPICS[topic])}?" for topic in chosen])
    ask = draw.pick((
        f"Assign each question to one of these categories: {joined(topics, 'or')}. One category per line.",
        f"The categories are {joined(topics)}. Give each question's category, one per line, nothing else.",
        f"Sort the questions into {joined(topics)}. Answer line by line with the category only.",
    ))  # fmt: skip
    return f"{ask}\n{text}", "\n".join(chosen)


def _spam(draw: Draw) -> tuple[str, str]:
    label = draw.pick(tuple(_MESSAGES))
    message = draw.pick(_MESSAGES[label])
    return draw.pick((
        (f"Is this message spam or not spam? \"{message}\"", label),
        (f"Classify the message as spam or not spam.\n{message}", label),
        (f"{message}\n\nIs this spam? Answer with spam or not spam.", label),
    ))  # fmt: skip
