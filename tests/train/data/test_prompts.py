"""Prompts: what is read, what is the same prompt, what is held out, and how reasoning is asked for."""

from __future__ import annotations

import json

import pytest

from paceline.engine.tokenizer import load_tokenizer
from paceline.errors import ConfigError, RequestError
from paceline.train.data.held_out import HeldOut, select, selected
from paceline.train.data.prompts import PromptEncoder, read_prompts
from paceline.train.settings.data import DataSettings
from tests.tiny import write_tokenizer
from tests.train.data.folders import THINKING_TEMPLATE, set_template, write_lines

SYSTEM = {"role": "system", "content": "s"}


def prompts(folder, *rows):
    return list(read_prompts([str(write_lines(folder / "p.jsonl", rows))]))


def settings(folder, rows, held_out=(), **changes):
    names = [str(write_lines(folder / "held.jsonl", held_out))] if held_out else []
    return DataSettings(
        model="m", out="o", prompts=(str(write_lines(folder / "p.jsonl", rows)),), held_out=names, **changes
    )


def kept(settings):
    selection = select(settings)
    return [p.name for p in selected(settings, selection)], dict(selection.counts)


def test_lines_are_prompts_or_conversations(tmp_path):
    tool = {"type": "function", "function": {"name": "f"}}
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    one, two = prompts(
        tmp_path,
        {"id": 7, "prompt": "Hi", "category": "chat", "source": "ignored"},
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Call f"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "1"},
                {"role": "assistant", "content": "an answer that is not the target's own"},
            ],
            "tools": [tool],
        },
    )
    assert (one.name, one.category, one.messages) == ("7", "chat", [{"role": "user", "content": "Hi"}])
    assert one.key.startswith("7.") and two.key == two.digest.hex()[:16]
    assert [m["role"] for m in two.messages] == ["system", "user", "assistant", "tool"]
    assert two.messages[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert (two.tools, two.question) == ([tool], "Call f")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{", "not readable JSON"),
        ({"text": "x"}, "either `prompt` or `messages`"),
        ({"prompt": "x", "messages": []}, "either `prompt` or `messages`"),
        ({"prompt": 3}, "`prompt` must be a text"),
        ({"prompt": " "}, "nothing to answer"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "nothing to answer"),
        ({"messages": [{"role": "system", "content": "x"}]}, "nothing to answer"),
        ({"messages": [{"content": "x"}]}, "objects with `role` and `content`"),
        ({"messages": ["x"]}, "objects with `role` and `content`"),
        ({"prompt": "x", "tools": ["f"]}, "`tools` must be a list of objects"),
        ({"prompt": "x", "tools": 3}, "`tools` must be a list of objects"),
        ({"prompt": "\ud800"}, "surrogate"),
    ],
)
def test_a_bad_line_is_named(tmp_path, row, says):
    with pytest.raises(ConfigError, match=says) as error:
        prompts(tmp_path, {"prompt": "good"}, row)
    assert "p.jsonl, line 2" in str(error.value)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "one"}\n{"prompt": "two"}\n')
    assert [p.question for p in read_prompts([str(path)])] == ["one", "two"]


def test_a_folder_is_all_of_its_files(tmp_path):
    write_lines(tmp_path / "b.jsonl", [{"prompt": "second"}])
    write_lines(tmp_path / "a.jsonl", [{"prompt": "first"}, ""])
    assert [p.question for p in read_prompts([str(tmp_path)])] == ["first", "second"]
    with pytest.raises(ConfigError, match=r"held_out: .*empty is no file and no folder of \*.jsonl"):
        list(read_prompts([str(tmp_path / "empty")], "held_out"))


def test_the_same_prompt_is_answered_once(tmp_path):
    rows = [
        {"id": "a", "prompt": "What is 3 + 4?"},
        {"id": "b", "prompt": " what  is 3 + 4?\n"},
        {"id": "c", "prompt": "What is 3 - 4?"},
        {"id": "d", "messages": [SYSTEM, {"role": "user", "content": "What is 3 + 4?"}]},
        {"id": "e", "prompt": "What is 3 + 4?", "tools": [{"type": "function"}]},
        {"id": "f", "prompt": "ｗhat is 3 + 4?"},  # full-width w: equal once normalised
    ]
    assert kept(settings(tmp_path, rows)) == (["a", "c", "d", "e"], {"read": 6, "kept": 4, "duplicate": 2})
    names, counts = kept(settings(tmp_path, rows, limit=2))
    assert names == ["a", "c"] and counts["beyond_limit"] == 2


WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


def test_held_out_prompts_are_refused(tmp_path):
    rows = [
        {"id": "equal", "prompt": "What  is THE capital of France?"},
        {"id": "near", "prompt": f"Please repeat: {WORDS}"},
        {"id": "part", "prompt": f"{WORDS} and then a great deal more about numbers of every kind " * 3},
        {"id": "far", "prompt": "Repeat: one two three four five six seven eight nine ten"},
        {"id": "dup", "prompt": "far away"},
        {"id": "dup2", "prompt": "far away"},
    ]
    held = [{"prompt": "what is the capital of france?"}, {"id": "x", "prompt": WORDS}]
    names, counts = kept(settings(tmp_path, rows, held))
    assert names == ["far", "dup"]
    assert counts == {"read": 6, "kept": 2, "held_out": 1, "near_held_out": 2, "duplicate": 1}
    with pytest.raises(ConfigError, match=r"3 of 6 prompts are held out \(1 equal, 2 near\)"):
        select(settings(tmp_path, rows, held, held_out_action="error"))
    with pytest.raises(ConfigError, match="none of 1 prompts is left"):
        select(settings(tmp_path, rows[:1], held))


def test_nearness_is_a_share_of_the_shorter_text():
    words = [f"w{i}" for i in range(40)]
    held = HeldOut([" ".join(words)], overlap=0.5)  # 28 grams
    other = [f"v{i}" for i in range(20)]
    assert held.refuses(" ".join(words[:26] + other)) == "near_held_out"  # 14 of 28
    assert held.refuses(" ".join(words[:25] + other)) is None  # 13 of 28
    assert held.refuses(" ".join(words[:13])) == "near_held_out"  # its one gram
    assert held.refuses(" ".join(words[:12])) is None
    chinese = "请把下面这段话翻译成英文然后再简短地总结一下"
    assert HeldOut([chinese], 0.5).refuses(f"{chinese}谢谢") == "near_held_out"
    assert HeldOut([], 0.5).refuses("anything") is None and len(HeldOut(["a", "A"], 0.5)) == 1


def encoder(folder, template=None, **changes):
    write_tokenizer(folder)
    if template is not None:
        set_template(folder, template)
    return PromptEncoder(load_tokenizer(folder), **{"chat": None, "thinking": "both", **changes})


def test_prompts_differ_in_their_mode_of_reasoning(tmp_path):
    made = encoder(tmp_path, THINKING_TEMPLATE)
    (prompt,) = prompts(tmp_path, {"prompt": "Hi"})
    assert made.modes == (True, False)
    on, off = (made.encode(prompt, thinking) for thinking in made.modes)
    text = load_tokenizer(tmp_path).decode
    assert text(on).endswith("<think>\n") and text(off).endswith("<think>\n\n</think>\n\n")
    assert encoder(tmp_path, THINKING_TEMPLATE, thinking="on").modes == (True,)
    assert encoder(tmp_path, THINKING_TEMPLATE, thinking="off").modes == (False,)


def test_reasoning_without_a_switch_warns(tmp_path):
    with pytest.warns(UserWarning, match="thinking: both has no effect"):
        assert encoder(tmp_path).modes == (False,)


def test_without_a_template_a_prompt_is_plain_text(tmp_path):
    made = encoder(tmp_path, "", thinking="off")
    plain, long = prompts(
        tmp_path,
        {"prompt": "Hi"},
        {"messages": [SYSTEM, {"role": "user", "content": "u"}]},
    )
    assert load_tokenizer(tmp_path).decode(made.encode(plain, False)) == "Hi"
    with pytest.raises(ConfigError, match="need a chat template"):
        made.encode(long, False)
    with pytest.raises(ConfigError, match="set `chat: false`"):
        encoder(tmp_path, "", chat=True, thinking="off")


def test_a_template_may_refuse_messages(tmp_path):
    made = encoder(tmp_path, "{{ raise_exception('no tools here') if tools }}x", thinking="off")
    (prompt,) = prompts(tmp_path, {"prompt": "Hi", "tools": [{"type": "function"}]})
    with pytest.raises(RequestError, match="no tools here"):
        made.encode(prompt, False)


@pytest.mark.parametrize(("written", "read"), [("true", "on"), ("false", "off"), ('"both"', "both")])
def test_yaml_reads_on_and_off_as_truth_values(written, read):
    row = {"model": "m", "out": "o", "prompts": "p", "thinking": json.loads(written)}
    assert DataSettings(**row).thinking == read
