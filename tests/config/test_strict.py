"""Configuration is frozen and strict, and its errors name the key and what is allowed."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from paceline.config import CacheConfig, EngineConfig, ModelConfig, SpeculativeConfig
from paceline.config.base import unknown_key_message
from paceline.errors import ConfigError, PacelineError

MODEL = ModelConfig(model="folder")


def refused(kind, key, /, *parts, **values):
    """Construction raises one line that names `key` and holds every part."""
    with pytest.raises(ConfigError) as caught:
        kind(**values)
    message = str(caught.value)
    assert caught.value.key == key
    assert "\n" not in message
    for part in (key, *parts):
        assert part in message
    return message


def test_defaults_are_the_documented_ones():
    config = EngineConfig(model=MODEL)
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (16, 2048)
    assert (config.cache.block_size, config.cache.host_swap_gib) == (64, 4.0)
    assert config.speculative is None and config.deterministic is None


def test_models_are_frozen():
    with pytest.raises(ValidationError):
        MODEL.model = "other"


def test_unknown_key_suggests_the_near_one_and_lists_the_allowed():
    message = refused(EngineConfig, "max_num_seq", "did you mean 'max_num_seqs'?", model=MODEL, max_num_seq=4)
    assert all(name in message for name in EngineConfig.model_fields)


def test_unknown_key_without_a_near_one_only_lists():
    assert "did you mean" not in unknown_key_message("zzz", ["alpha", "beta"], "X")
    assert unknown_key_message("zzz", ["beta", "alpha"], "X").endswith("Allowed: alpha, beta")


def test_nested_faults_name_the_inner_key():
    refused(
        EngineConfig,
        "modle",
        "did you mean 'model'?",
        model=MODEL,
        speculative={"method": "mtp", "modle": ""},
    )


@pytest.mark.parametrize(
    ("model", "key", "value", "allowed"),
    [
        (ModelConfig, "dtype", "float16", "'auto', 'bfloat16' or 'float32'"),
        (ModelConfig, "device", "tpu", "'auto', 'cpu' or 'cuda'"),
        (ModelConfig, "max_model_len", 0, "greater than or equal to 1"),
        (CacheConfig, "block_size", 12, "multiple of 8"),
        (CacheConfig, "block_size", 0, "greater than or equal to 8"),
        (CacheConfig, "num_blocks", 1, "greater than or equal to 2"),
        (CacheConfig, "host_swap_gib", -1.0, "greater than or equal to 0"),
        (CacheConfig, "host_swap_gib", float("nan"), "finite"),
        (CacheConfig, "state_dtype", "bfloat16", "'float32'"),
        (EngineConfig, "max_num_seqs", 0, "greater than or equal to 1"),
        (EngineConfig, "max_num_seqs", "4", "integer"),
        (EngineConfig, "max_num_seqs", True, "integer"),
        (EngineConfig, "max_num_batched_tokens", 63, "greater than or equal to 64"),
        (EngineConfig, "seed", 2**64, "less than or equal to"),
    ],
)
def test_values_out_of_range_name_the_key_and_what_is_allowed(model, key, value, allowed):
    base = {"model": "folder"} if model is ModelConfig else {"model": MODEL} if model is EngineConfig else {}
    refused(model, key, allowed, **{**base, key: value})


def test_blank_model_is_refused():
    refused(ModelConfig, "model", "local folder", model="  ")


def test_a_step_must_hold_every_running_sequence():
    refused(
        EngineConfig, "max_num_batched_tokens", "max_num_seqs = 65",
        model=MODEL, max_num_seqs=65, max_num_batched_tokens=64,
    )  # fmt: skip


def test_deterministic_is_on_for_cpu_alone_unless_asked():
    config = EngineConfig(model=MODEL)
    assert config.is_deterministic("cpu") and not config.is_deterministic("cuda")
    assert EngineConfig(model=MODEL, deterministic=True).is_deterministic("cuda")
    assert not EngineConfig(model=MODEL, deterministic=False).is_deterministic("cpu")


def test_mtp_takes_the_targets_model_alone():
    EngineConfig(model=MODEL, speculative=SpeculativeConfig(method="mtp", model="folder"))
    refused(
        EngineConfig, "model", "'folder'", model=MODEL, speculative=SpeculativeConfig(method="mtp", model="b")
    )


def test_errors_are_paceline_errors_and_one_line():
    with pytest.raises(PacelineError, match=re.escape("method")) as caught:
        SpeculativeConfig.parse({"method": "eagle"})
    assert "\n" not in str(caught.value)
