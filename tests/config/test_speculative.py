"""Rules of the speculative configuration, whose keys are vLLM's."""

from __future__ import annotations

import pytest

from paceline.config import SpeculativeConfig
from paceline.errors import ConfigError


def parse(**values):
    return SpeculativeConfig.parse(values)


def test_older_name_of_mtp():
    assert parse(method="qwen3_5_mtp").method == "mtp"


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({}, 5, 5),
        ({"prompt_lookup_min": 2}, 2, 2),
        ({"prompt_lookup_max": 4}, 4, 4),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, 2, 4),
    ],
)
def test_lookup_lengths_complete_each_other(given, low, high):
    config = parse(method="ngram", **given)
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == (low, high)


@pytest.mark.parametrize(
    ("values", "looks_back"),
    [
        ({"method": "mtp"}, True),
        ({"method": "dflash", "model": "x", "prompt_lookup": True}, True),
        ({"method": "dflash", "model": "x", "prompt_lookup": False}, False),
        ({"method": "ngram"}, False),
    ],
)
def test_drafters_look_back_unless_told_otherwise(values, looks_back):
    assert parse(**values).looks_back is looks_back


@pytest.mark.parametrize(
    ("values", "key", "part"),
    [
        ({}, "method", "needs the key"),
        ({"method": "eagle"}, "method", "'dflash', 'mtp' or 'ngram'"),
        ({"method": 3}, "method", "must be one of"),
        ({"method": "dflash"}, "model", "needs the key 'model'"),
        ({"method": "dflash", "model": ""}, "model", "needs the key 'model'"),
        ({"method": "ngram", "model": "x"}, "model", "takes no 'model'"),
        ({"method": "ngram", "draft_sample_method": "greedy"}, "draft_sample_method", "takes no"),
        ({"method": "ngram", "prompt_lookup": True}, "prompt_lookup", "takes no"),
        ({"method": "mtp", "prompt_lookup_max": 3}, "prompt_lookup_max", "only ngram"),
        ({"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 3}, "prompt_lookup_min", "at most"),
        ({"method": "ngram", "prompt_lookup_min": 0}, "prompt_lookup_min", "equal to 1"),
        (
            {"method": "mtp", "num_speculative_tokens": 0},
            "num_speculative_tokens",
            "greater than or equal to 1",
        ),
        ({"method": "mtp", "num_speculative_tokens": 2.5}, "num_speculative_tokens", "integer"),
        ({"method": "mtp", "draft_sample_method": "nucleus"}, "draft_sample_method", "'greedy' or 'coupled'"),
        (
            {"method": "mtp", "num_spec_tokens": 3},
            "num_spec_tokens",
            "did you mean",
        ),
    ],
)
def test_refusals_name_the_key(values, key, part):
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig.parse(values)
    assert caught.value.key == key
    assert key in str(caught.value) and part in str(caught.value)


@pytest.mark.parametrize("method", ["mtp", "ngram"])
def test_default_draft_length_without_a_block(method):
    assert parse(method=method).draft_tokens() == 3
    assert parse(method=method, num_speculative_tokens=7).draft_tokens() == 7


def test_dflash_fills_its_block_and_no_more():
    assert parse(method="dflash", model="d").draft_tokens(block_size=8) == 7
    assert parse(method="dflash", model="d", num_speculative_tokens=6).draft_tokens(block_size=8) == 6
    with pytest.raises(ConfigError, match="block_size is 8, so at most 7") as caught:
        parse(method="dflash", model="d", num_speculative_tokens=8).draft_tokens(block_size=8)
    assert caught.value.key == "num_speculative_tokens"
