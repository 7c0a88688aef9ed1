"""SamplingParams: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from paceline.config.sampling import SamplingParams
from paceline.errors import ModelError, RequestError


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.seed, params.logprobs) == (16, 0, None, None)
    assert params.stop == () and params.stop_token_ids == () and params.allowed_token_ids is None
    assert params.skip_special_tokens and not params.include_stop_str_in_output and not params.ignore_eos


def test_json_forms_are_accepted() -> None:
    values = json.loads(
        '{"temperature": 1, "stop": "END", "stop_token_ids": [3], "bad_words": null, "top_k": -1,'
        ' "allowed_token_ids": [1, 2], "logit_bias": {"5": -100, "6": 0.5}, "seed": 18446744073709551615}'
    )
    params = SamplingParams(**values)
    assert params.stop == ("END",) and params.stop_token_ids == (3,) and params.bad_words == ()
    assert params.logit_bias == {5: -100.0, 6: 0.5} and params.allowed_token_ids == (1, 2)
    assert params.replace(stop=["a", "b"]).stop == ("a", "b")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("temperature", math.nan, "finite"),
        ("temperature", math.inf, "finite"),
        ("temperature", -0.1, "greater than or equal to 0"),
        ("temperature", 1e308, "less than or equal to 1000000"),
        ("temperature", "hot", "number"),
        ("temperature", True, "number"),
        ("top_p", 0.0, "greater than 0"),
        ("top_p", 1.5, "less than or equal to 1"),
        ("top_k", -2, "greater than or equal to -1"),
        ("min_p", 1.01, "less than or equal to 1"),
        ("n", 0, "greater than or equal to 1"),
        ("n", 10**12, "less than or equal to 16384"),
        ("max_tokens", -1, "greater than or equal to 1"),
        ("max_tokens", 0, "greater than or equal to 1"),
        ("min_tokens", -3, "greater than or equal to 0"),
        ("seed", -(2**63) - 1, "greater than or equal"),
        ("seed", 2**64, "less than or equal"),
        ("stop", "", "at least 1 character"),
        ("stop", ["ok", ""], "at least 1 character"),
        ("stop_token_ids", [-1], "greater than or equal to 0"),
        ("stop", "x" * 5000, "at most 4096 characters"),
        ("stop", ["x"] * 300, "at most 256 items"),
        ("bad_words", [""], "at least 1 character"),
        ("bad_words", ["x" * 300], "at most 256 characters"),
        ("bad_words", ["x"] * 300, "at most 256 items"),
        ("allowed_token_ids", [], "at least 1 item"),
        ("logit_bias", {"3": 101}, "less than or equal to 100"),
        ("logit_bias", {"x": 1}, "integer"),
        ("logit_bias", {3: -math.inf}, "finite"),
        ("repetition_penalty", 0.0, "greater than or equal to"),
        ("repetition_penalty", 1e308, "less than or equal to 1000000"),
        ("presence_penalty", 2.5, "less than or equal to 2"),
        ("frequency_penalty", math.nan, "finite"),
        ("logprobs", -1, "greater than or equal to 0"),
        ("ignore_eos", 1, "boolean"),
    ],
)
def test_bad_values_name_the_field_and_what_is_allowed(field: str, value: Any, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field
    assert field in str(caught.value) and says in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_unknown_fields_get_a_suggestion() -> None:
    with pytest.raises(RequestError, match="did you mean 'temperature'") as caught:
        SamplingParams(temprature=1.0)
    assert caught.value.param == "temprature"


def test_min_tokens_above_max_tokens() -> None:
    with pytest.raises(RequestError, match="min_tokens = 9 must be at most max_tokens = 8") as caught:
        SamplingParams(min_tokens=9, max_tokens=8)
    assert caught.value.param == "min_tokens"
    assert SamplingParams(min_tokens=9, max_tokens=None).min_tokens == 9


def test_greedy_copies_are_pointed_out() -> None:
    with pytest.warns(UserWarning, match="the same text 4 times"):
        SamplingParams(n=4, temperature=0)


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
def test_ids_out_of_range(field: str) -> None:
    value: Any = {10: 1.0} if field == "logit_bias" else [10]
    params = SamplingParams(**{field: value})
    params.check_vocab(11)
    with pytest.raises(RequestError, match="token id 10: ids of this model are 0 to 9") as caught:
        params.check_vocab(10)
    assert caught.value.param == field


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        SamplingParams().temperature = 2.0  # type: ignore[misc]


def test_replace_validates() -> None:
    with pytest.raises(RequestError):
        SamplingParams().replace(top_p=7.0)


QWEN = {"do_sample": True, "temperature": 1.0, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2]}


def test_generation_config() -> None:
    params = SamplingParams.from_generation_config(QWEN, max_tokens=5)
    assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (1.0, 20, 0.95, 5)
    greedy = SamplingParams.from_generation_config({**QWEN, "do_sample": False, "max_new_tokens": 7})
    assert (greedy.temperature, greedy.top_k, greedy.max_tokens) == (0.0, 0, 7)
    assert SamplingParams.from_generation_config(None).greedy
    assert SamplingParams.from_generation_config({"eos_token_id": 1}).greedy
    assert SamplingParams.from_generation_config({"temperature": 0.6, "top_p": None}).temperature == 0.6


def test_generation_config_faults_are_the_models() -> None:
    with pytest.raises(ModelError, match=r"generation_config.json: .*temperature"):
        SamplingParams.from_generation_config({"do_sample": True, "temperature": -1})
    with pytest.raises(RequestError):
        SamplingParams.from_generation_config(QWEN, temperature=-1.0)
