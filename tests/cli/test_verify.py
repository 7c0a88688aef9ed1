"""`paceline verify`: the verdict, its JSON, and its exit codes."""

from __future__ import annotations

NGRAM = ("--speculative-config", '{"method": "ngram"}')


def test_identical_text_with_accepted_and_rejected_drafts_is_0(paceline, script, lines):
    path = lines('{"id": "a", "prompt": "xyz"}', '{"id": "b", "prompt": "uvw"}')
    result = paceline("verify", "folder", *NGRAM, "--prompts", path, "--seeds", "2", "--batch", "3", "--json")
    assert result.code == 0
    assert result.rows == [
        {
            "prompts": 2,
            "seeds": 2,
            "mode": "deterministic",
            "num_drafts": 16,
            "num_draft_tokens": 48,
            "num_accepted_tokens": 32,
            "windows": {"full": 0, "partial": 16, "none": 0},
            "divergences": [],
        }
    ]
    assert [(o["speculative_config"], o["max_num_seqs"]) for o in script.opened] == [
        (None, 3), ({"method": "ngram"}, 3),
    ]  # fmt: skip
    assert script.closed == 2
    assert [request["params"].seed for request in script.requests] == [0, 1, 0, 1]


def test_the_demos_prompts_are_the_default_and_longer_ones_are_refused(paceline):
    result = paceline("verify", "folder", *NGRAM)
    assert result.code == 2 and "tokens" in result.err  # the fake serves short prompts alone


def test_a_divergence_is_1_and_shows_both_tokens_and_scores(paceline, script, lines):
    script.wrong_at = 1
    path = lines('{"id": "a", "prompt": "pyz"}')
    result = paceline("verify", "folder", *NGRAM, "--prompts", path, "--json")
    assert result.code == 1
    (divergence,) = result.rows[0]["divergences"]
    assert divergence == {
        "prompt": "a",
        "seed": 0,
        "position": 1,
        "tokens": [ord("y"), ord("x")],
        "scores": [0.0, 4.0],
        "within_tolerance": False,
    }
    assert script.opened[2] == {
        "model": "folder", "speculative_config": None, "max_num_seqs": 1,
        "dtype": "float32", "deterministic": True,
    }  # fmt: skip
    text = paceline("verify", "folder", *NGRAM, "--prompts", path)
    assert "prompt a, seed 0, position 1: plain 121, speculative 120, scores 0 and 4" in text.out
    assert "text identical: no" in text.out


def test_a_near_tie_passes_outside_deterministic_mode_alone(paceline, script, lines):
    script.wrong_at, path = 0, lines('{"id": "a", "prompt": "uvw"}')  # w -> v: both score 0
    assert paceline("verify", "folder", *NGRAM, "--prompts", path).code == 1
    result = paceline("verify", "folder", *NGRAM, "--prompts", path, "--no-deterministic", "--json")
    assert result.code == 0 and result.rows[0]["mode"] == "tolerant"
    assert result.rows[0]["divergences"][0]["within_tolerance"] is True


def test_nothing_accepted_or_nothing_rejected_is_3(paceline, script, lines):
    path = lines('{"id": "a", "prompt": "xyz"}')
    for accepted, missing in ((0, "no draft was accepted"), (3, "no draft was rejected")):
        script.accepted = accepted
        result = paceline("verify", "folder", *NGRAM, "--prompts", path)
        assert result.code == 3 and missing in result.out and "text identical: yes" in result.out


def test_a_bad_line_is_2_before_anything_is_loaded(paceline, script, lines):
    result = paceline("verify", "folder", *NGRAM, "--prompts", lines('{"id": "a", "prompt": "x"}', "{"))
    assert result.code == 2 and "line 2" in result.err and script.opened == []
