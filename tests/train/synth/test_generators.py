"""Dialogues: reproducible, disjoint between the splits, and right."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from itertools import islice

import pytest

from paceline.errors import ConfigError
from paceline.train.synth import logic, puzzles, words
from paceline.train.synth.arithmetic import arithmetic, two_operands
from paceline.train.synth.code import code
from paceline.train.synth.dialogue import Dialogue, Draw, assistant, joined, user
from paceline.train.synth.extraction import extraction, json_extraction
from paceline.train.synth.functions import FAMILIES, function
from paceline.train.synth.mix import GENERATORS, Mix, mix, with_history
from paceline.train.synth.numbers import pair_allowed, value, working
from paceline.train.synth.prose import Continuations
from paceline.train.synth.thinking import thinking
from paceline.train.synth.tool_names import NOUNS, VERBS, ToolName
from paceline.train.synth.tools import four_tools, tools
from paceline.train.synth.word_problems import word_problem

N = 300
_EQUATION = re.compile(r"(\d+(?: [-+*/] \d+)+) = (\d+)")


def draws(count=N, split="train"):
    return (Draw(0, index, split, "test") for index in range(count))


@pytest.mark.parametrize("name", GENERATORS)
def test_a_dialogue_is_a_function_of_its_number(name):
    generator = GENERATORS[name]
    assert [generator(1, i, "train") for i in range(20)] == [generator(1, i, "train") for i in range(20)]
    texts = {generator(1, i, "train").messages[-1]["content"] for i in range(20)}
    assert texts != {generator(2, i, "train").messages[-1]["content"] for i in range(20)}
    assert texts != {generator(1, i, "held_out").messages[-1]["content"] for i in range(20)}


@pytest.mark.parametrize("name", GENERATORS)
def test_messages_are_whole(name):
    for index in range(N):
        dialogue = GENERATORS[name](5, index, "train")
        assert dialogue.messages[-1]["role"] == "assistant"
        for message in dialogue.messages:
            assert message["content"] or message.get("tool_calls")
            assert not re.search(r"\{\w\}|None,|\bTrue\b(?=\n</para)", message["content"] or ""), message
            assert message["content"] == message["content"].strip()
            assert not (message.get("reasoning_content") and not dialogue.thinking)


def test_no_question_is_a_bench_prompt():
    lines = (files("paceline.bench") / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    bench = {" ".join(json.loads(line)["prompt"].lower().split()) for line in lines}
    ours = {" ".join(d.prompt[-1]["content"].lower().split()) for d in islice(mix(0), 2000)}
    assert len(bench) == len(lines) and not bench & ours


def test_no_question_shares_a_dozen_words_with_a_bench_prompt():
    def dozens(text):
        # The frame that this repository puts around exercises is not the content of any.
        text = text.removeprefix("Complete this Python function. Return only code.")
        said = re.findall(r"\w+", text.lower())
        return {" ".join(said[i : i + 12]) for i in range(len(said) - 11)}

    lines = (files("paceline.bench") / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    bench = set().union(*(dozens(json.loads(line)["prompt"]) for line in lines))
    for dialogue in islice(mix(8), 5000):
        assert not bench & dozens(dialogue.prompt[-1]["content"]), dialogue.prompt[-1]


@pytest.mark.parametrize("sign", "+-*")
def test_every_step_of_a_working_is_right(sign):
    for draw in draws():
        a, b = draw.between(0, 9999), draw.between(2, 9) if sign == "*" else draw.between(0, 9999)
        steps = working(a, sign, b)
        for left, right in re.findall(r"([\d+*-]+)=(\d+)", steps):
            assert eval(re.sub(r"\b0+(?=\d)", "", left)) == int(right), steps
        body = steps.split(":")[1] if ":" in steps else steps
        tail = r"write (\d+)" if sign != "-" else r"=(\d+)"
        digits = "".join(reversed(re.findall(tail, body)))
        assert int(digits) == abs(value(a, sign, b)), steps


def test_pairs_of_operands_are_disjoint():
    pairs = {}
    for split in ("train", "held_out"):
        found = [arithmetic(0, i, split).facts["operands"] for i in range(1500)]
        found += [two_operands(0, i, split).facts["operands"] for i in range(500)]
        pairs[split] = {tuple(sorted(p)) for p in found if p and max(p) > 9}
        assert all(pair_allowed(a, b, split) for a, b in pairs[split])
    assert len(pairs["held_out"]) > 500 and not pairs["train"] & pairs["held_out"]
    share = sum(pair_allowed(a, b, "held_out") for a in range(100, 300) for b in range(300, 400)) / 20000
    assert 0.05 < share < 0.08


def test_what_the_bar_asks_has_two_or_three_digits():
    for index in range(N):
        dialogue = two_operands(9, index, "held_out")
        a, b = dialogue.facts["operands"]
        assert min(a, b) >= 10 and max(a, b) <= 999
        assert int(dialogue.facts["result"]) in (a + b, a - b)
        assert str(a) in dialogue.prompt[-1]["content"] and not dialogue.thinking


def test_word_problems_work_out():
    for index in range(N):
        dialogue = word_problem(0, index, "train")
        last = dialogue.messages[-1]
        text = (last.get("reasoning_content") or "") + "\n" + last["content"]
        equations = _EQUATION.findall(text)
        assert equations
        for left, right in equations:
            assert eval(left) == int(right), text
            a, sign, b = left.split()
            assert sign in "*/" or pair_allowed(int(a), int(b), "train")
        assert equations[-1][1] == dialogue.facts["result"]
        assert text.endswith(f"The answer is {dialogue.facts['result']}.")


def test_names_of_tools_are_disjoint():
    every = [ToolName(verb, noun) for verb in VERBS for noun in NOUNS]
    assert len(every) >= 3000
    assert 0.45 < sum(name.held_out for name in every) / len(every) < 0.55
    asked = [ask for _, asks in VERBS.values() for ask in asks]
    assert len(asked) == len(set(asked)), "what people say must tell the verbs apart"
    for index in range(N):
        assert not tools(0, index, "train").facts["unseen"]
        dialogue = four_tools(0, index, "held_out")
        offered = [tool["function"]["name"] for tool in dialogue.tools]
        assert len(set(offered)) == len(offered) >= 4
        assert len(dialogue.facts["unseen"]) == -(-len(offered) // 2)


def test_calls_give_what_the_request_says():
    for index in range(N):
        dialogue = four_tools(1, index, "train")
        ((name, arguments),) = dialogue.facts["calls"]
        schema = next(t["function"] for t in dialogue.tools if t["function"]["name"] == name)["parameters"]
        assert set(schema["required"]) <= set(arguments) <= set(schema["properties"])
        for key, given in arguments.items():
            kind = schema["properties"][key]["type"]
            if kind == "boolean":
                continue
            said = joined(given) if kind == "array" else str(given)
            assert said in dialogue.prompt[-1]["content"]
            assert given in schema["properties"][key].get("enum", [given])


def test_full_names_are_disjoint():
    train = {words.person(draw).full for draw in draws(2000)}
    held_out = {words.person(draw).full for draw in draws(500, "held_out")}
    assert len(held_out) > 300 and not train & held_out


def test_extracted_values_stand_in_the_text():
    kinds = set()
    for index in range(N):
        for generator in (extraction, json_extraction):
            dialogue = generator(0, index, "train")
            record = dialogue.facts["record"]
            kinds.add(type(record).__name__)
            if record is None:
                continue
            answer = dialogue.messages[-1]["content"]
            body = answer.removeprefix("```json\n").removesuffix("\n```")
            assert json.loads(body) == record
            assert answer.startswith("```") == ("block" in dialogue.prompt[-1]["content"])
            for row in record if isinstance(record, list) else [record]:
                assert all(v is None or str(v) in dialogue.prompt[-1]["content"] for v in row.values())
    assert kinds == {"dict", "list", "NoneType"}


def test_every_family_does_what_its_example_says():
    for family in FAMILIES:
        for draw in draws(6):
            made = function(draw, family)
            space = {}
            exec(f"{made.head(True)}\n{made.body}", space)
            assert eval(made.call, space) == made.result
    assert len(FAMILIES) >= 80 and len({name for f in FAMILIES for name in f.names}) == 3 * len(FAMILIES)


def test_code_answers_compile_and_mended_ones_run():
    mended = 0
    for index in range(N):
        dialogue = code(0, index, "train")
        question, answer = dialogue.prompt[-1]["content"], dialogue.messages[-1]["content"]
        for block in re.findall(r"```python\n(.*?)```", answer, re.S):
            space = {}
            if not re.search(rf"def {dialogue.facts['name']}\(", block):  # another task: a whole program
                compile(block, "program", "exec")
                continue
            exec(block, space)
            assert repr(eval(dialogue.facts["call"], space)) == dialogue.facts["result"]
            if answer.startswith("The bug"):
                broken = re.search(r"def .*?(?=\n```|\Z)", question, re.S)[0]
                assert re.sub(r'    """.*?"""\n', "", broken, flags=re.S) != block.strip()
                mended += 1
    assert mended > 10


def test_puzzles_have_the_right_answers():
    for draw in draws(100):
        made = puzzles.letters(draw)
        letter, text = re.search(r'letter "?(\w)"? .*"(.*)"|(\w)\'s.*"(.*)"', made.question).group(1, 2)
        if letter:
            assert text.count(letter) == int(made.answer)
        row = puzzles.sorting(draw)
        assert sorted(row.answer.split(", ")) == sorted(row.question.split(": ")[1].split(", "))
        word = puzzles.reversal(draw)
        assert word.answer[::-1] in word.question
        said = puzzles.legs(draw)
        assert all(eval(left) == int(right) for left, right in _EQUATION.findall(said.reasoning))
        assert said.reasoning.rstrip(".").endswith(f"= {said.answer}")


def test_truth_tellers_have_one_solution():
    for draw in draws(100):
        made = logic.truth_tellers(draw)
        good, bad, a, b = re.search(
            r"island (\w+)s always .* and (\w+)s always lie. You meet (\w+) and (\w+)\.", made.question
        ).groups()
        said = dict(re.findall(r'(\w+) says: "(.*?)"', made.question))
        worlds = []
        for world in ({a: x, b: y} for x in (True, False) for y in (True, False)):
            claim = {}
            for who, text in said.items():
                other = b if who == a else a
                claim[who] = (
                    world[a] and world[b] if "both" in text else world[a] == world[b] if "same kind" in text
                    else world[other] == text.endswith(f" {good}.")
                )  # fmt: skip
            if claim == world:
                worlds.append(joined([f"{n} is a {good if t else bad}" for n, t in world.items()]) + ".")
        assert worlds == [made.answer]


def test_thinking_comes_with_and_without_a_think_block():
    found = [thinking(0, index, "train") for index in range(N)]
    share = sum(dialogue.thinking for dialogue in found) / N
    assert 0.5 < share < 0.7
    for dialogue in found:
        last = dialogue.messages[-1]
        assert bool(last.get("reasoning_content")) == dialogue.thinking
        assert dialogue.facts["answer"].rstrip(".") in last["content"]


NOVEL = "\n\n".join(
    f"Paragraph {i} begins here, and then it\ngoes on  for a while with many words; they say little. "
    f"But the end of number {i} is a sentence, as it should be, and another follows. Is that so?"
    for i in range(1600)
)  # fmt: skip


def test_continuations_follow_their_passage():
    generate = Continuations([NOVEL])
    seen = {"train": set(), "held_out": set()}
    for split in seen:
        for index in range(100):
            dialogue = generate(0, index, split)
            question, answer = dialogue.prompt[-1]["content"], dialogue.messages[-1]["content"]
            shown, told = (list(map(int, re.findall(r"Paragraph (\d+)", t))) for t in (question, answer))
            assert told == list(range(shown[-1] + 1, shown[-1] + 1 + len(told)))
            assert 60 <= len(answer.split()) <= 120 and answer.endswith((".", "?"))
            assert "  " not in answer and "\ng" not in answer
            seen[split].update(shown + told)
    assert not seen["train"] & seen["held_out"]


def test_history_comes_before_the_question_and_behind_the_system_message():
    first, second = (
        Dialogue([user("a"), assistant("b", "why")], "x", True),
        Dialogue([{"role": "system", "content": "s"}, user("c"), assistant("d")], "y"),
    )
    both = with_history(first, second)
    assert [m["content"] for m in both.messages] == ["s", "a", "b", "c", "d"]
    assert both.category == "y" and not both.thinking and "reasoning_content" not in both.messages[2]
    assert with_history(tools(0, 0, "train"), second) == second


def test_too_little_prose_is_a_mistake_of_the_user():
    with pytest.raises(ConfigError, match="give a whole novel"):
        Continuations(["Too short."])(0, 0, "train")


def test_a_mix_keeps_its_weights_and_its_streams_apart():
    whole = Mix(3, {"arithmetic": 3, "code": 1})
    share = sum(d.category == "arithmetic" for d in islice(whole.stream(), 1000)) / 1000
    assert 0.7 < share < 0.8
    halves = [list(islice(whole.stream(start, 2), 10)) for start in (0, 1)]
    assert [d for pair in zip(*halves, strict=True) for d in pair] == list(islice(whole.stream(), 20))
    turns = [sum(m["role"] == "user" for m in d.messages) for d in islice(whole.stream(), 1000)]
    assert 30 < turns.count(2) < 100 and set(turns) == {1, 2}
    extra = mix(0, {"other": 1}, extra={"other": GENERATORS["code"]})
    assert next(extra) == GENERATORS["code"](0, 0, "train")


@pytest.mark.parametrize("weights, message", [
    ({"arithmetics": 1}, "use 'arithmetic' or one of"),
    ({"code": -1}, "is negative"),
    ({"code": 0}, "at least one"),
])  # fmt: skip
def test_bad_weights_are_named(weights, message):
    with pytest.raises(ConfigError, match=message):
        mix(0, weights)
