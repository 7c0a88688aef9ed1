"""`paceline generate`: what it asks of the engine, what it prints, and how it ends."""

from __future__ import annotations

import json

import pytest

from paceline.config import SamplingParams

JSON_KEYS = ["id", "text", "token_ids", "finish_reason", "seed", "usage", "speculation", "timing"]


def test_one_prompt_streams_its_text_and_tells_the_figures_on_stderr(paceline):
    result = paceline("generate", "folder", "--prompt", "abc", "--seed", "5")
    assert (result.code, result.out) == (0, "cba\n")
    assert "3 tokens, seed 5, 10.0 tokens/s" in result.err


def test_acceptance_is_told_where_something_was_drafted(paceline):
    result = paceline("generate", "folder", "--prompt", "abc", "--speculative-config", '{"method": "ngram"}')
    assert "acceptance length 3.00" in result.err


def test_json_has_exactly_the_documented_keys(paceline):
    result = paceline("generate", "folder", "--prompt", "abc", "--json")
    (row,) = result.rows
    assert sorted(row) == sorted(JSON_KEYS)
    assert sorted(row["usage"]) == ["completion_tokens", "prompt_tokens"]
    assert sorted(row["timing"]) == ["decode_s", "decode_tokens_per_s", "prefill_s"]
    assert sorted(row["speculation"]) == sorted(
        ["method", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_length",
         "draft_acceptance_rate", "accepted_per_position", "tokens_per_step"]
    )  # fmt: skip


def test_prompts_run_as_one_batch_and_keep_their_ids(paceline, script, lines):
    path = lines('{"id": "b", "prompt": "xy", "extra": 1}', "", '{"id": 3, "prompt": "uv"}')
    result = paceline("generate", "folder", "--prompts", path, "--json")
    assert result.code == 0
    assert [(row["id"], row["text"]) for row in result.rows] == [("b", "yx"), (3, "vu")]
    assert [request["ids"] for request in script.requests] == [["b", "3"]]


def test_prompts_as_text_are_headed_by_their_id(paceline, lines):
    result = paceline("generate", "folder", "--prompts", lines('{"id": "b", "prompt": "xy"}'))
    assert result.out == "[b]\nyx\n\n"


def test_options_reach_the_engine_and_absent_ones_do_not(paceline, script):
    paceline("generate", "folder", "--prompt", "a", "--dtype", "float32", "--no-deterministic")
    assert script.opened == [
        {"model": "folder", "speculative_config": None, "dtype": "float32", "deterministic": False}
    ]
    paceline("generate", "folder", "--prompt", "a", "--max-num-seqs", "2", "--device", "cpu")
    assert script.opened[1:] == [
        {"model": "folder", "speculative_config": None, "max_num_seqs": 2, "device": "cpu"}
    ]


def test_sampling_is_defaults_then_json_then_flags(paceline, script):
    script.defaults = SamplingParams(temperature=0.6, top_p=0.9)
    paceline(
        "generate", "folder", "--prompt", "a", "--sampling", '{"top_p": 0.5, "top_k": 7, "stop": ["x"]}',
        "--top-k", "9", "--max-tokens", "4",
    )  # fmt: skip
    params = script.requests[0]["params"]
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.6, 0.5, 9, 4)
    assert params.stop == ("x",)


def test_length_defaults_to_the_models_own_else_256(paceline, script):
    paceline("generate", "folder", "--prompt", "a")
    script.defaults = SamplingParams(max_tokens=30)
    paceline("generate", "folder", "--prompt", "a")
    assert [request["params"].max_tokens for request in script.requests] == [256, 30]


@pytest.mark.parametrize(
    ("template", "flag", "text"),
    [(True, None, ">a<"), (False, None, "a"), (True, "--no-chat", "a"), (True, "--chat", ">a<")],
)
def test_chat_is_the_default_where_there_is_a_template(paceline, script, template, flag, text):
    script.chat_template = template
    assert paceline("generate", "folder", "--prompt", "a", *([flag] if flag else [])).out == text + "\n"


def test_chat_without_a_template_is_refused(paceline):
    result = paceline("generate", "folder", "--prompt", "a", "--chat")
    assert result.code == 2 and "--no-chat" in result.err


def test_bad_lines_are_answered_in_place_and_the_others_run(paceline, script, lines):
    path = lines(
        '{"id": "a", "prompt": "xy"}', "{broken", '["a"]', '{"prompt": "no id"}', '{"id": "e"}',
        '{"id": "f", "prompt": ""}', b'{"id": "g", "prompt": "\xff"}', '{"id": "a", "prompt": "again"}',
        json.dumps({"id": "h", "prompt": "x" * 99}), '{"id": true, "prompt": "x"}',
        '{"id": "z", "prompt": "uv"}',
        '{"id": "s", "prompt": "\\ud800"}', '{"id": "\\ud800", "prompt": "x"}',
        '{"id": "deep", "prompt": "x", "more": ' + "[" * 100_000, '{"prompt": "x", "id": ' + "9" * 5000 + "}",
    )  # fmt: skip
    result = paceline("generate", "folder", "--prompts", path, "--json")
    assert result.code == 2
    ids = ["a", None, None, None, "e", "f", None, "a", "h", None, "z", "s", None, None, None]
    assert [row["id"] for row in result.rows] == ids
    good = [index for index, row in enumerate(result.rows) if "text" in row]
    assert good == [0, 10] and script.requests[0]["ids"] == ["a", "z"]
    for index, row in enumerate(result.rows):
        if index not in good:
            assert set(row) == {"id", "error"}
    assert "line 2" in result.rows[1]["error"] and "used on line 1" in result.rows[7]["error"]
    assert "40 fit" in result.rows[8]["error"]


def test_nothing_but_bad_lines_loads_no_model(paceline, script, lines):
    result = paceline("generate", "folder", "--prompts", lines("nonsense"))
    assert (result.code, result.out, script.opened) == (2, "", [])
    assert "line 1" in result.err


def test_no_good_prompt_left_after_tokenising(paceline, script, lines):
    path = lines(json.dumps({"id": "h", "prompt": "x" * 99}))
    result = paceline("generate", "folder", "--prompts", path, "--json")
    assert result.code == 2 and result.rows[0]["id"] == "h" and not script.requests


def test_further_choices_follow_in_text(paceline):
    result = paceline("generate", "folder", "--prompt", "ab", "--sampling", '{"n": 2, "temperature": 1.0}')
    assert result.out == "ba\n[choice 1]\nba\n"


@pytest.mark.parametrize("as_json", [True, False])
def test_a_request_that_fails_on_the_way_does_not_take_the_others_along(paceline, script, lines, as_json):
    script.failing = {"a"}
    path = lines('{"id": "a", "prompt": "xy"}', '{"id": "b", "prompt": "uv"}')
    result = paceline("generate", "folder", "--prompts", path, *(["--json"] if as_json else []))
    assert result.code == 2
    if as_json:
        assert result.rows[0] == {"id": "a", "error": "it outgrew the memory"}
        assert result.rows[1]["text"] == "vu"
    else:
        assert result.out == "[b]\nvu\n\n" and "a: it outgrew the memory" in result.err


def test_one_prompt_that_fails_on_the_way_is_an_error(paceline, script):
    script.failing = {"0"}
    result = paceline("generate", "folder", "--prompt", "a")
    assert result.code == 2 and result.err == "paceline: it outgrew the memory\n"
