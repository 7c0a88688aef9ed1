"""Safetensors files written piece by piece: what the library reads back, and what a fault leaves."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from paceline.errors import ConfigError
from paceline.quantize.shards import ShardWriter, TensorSpec, divide, parse_size, shard_names

TENSORS = {
    "b": torch.randn(3, 5).bfloat16(),
    "a": torch.arange(7, dtype=torch.uint8),
    "scale": torch.tensor(2.5),
    "fp8": torch.randn(3).to(torch.float8_e4m3fn),
    "empty": torch.zeros(0, 4),
    "part": torch.randn(4, 6)[:, ::2],
}
NAMES = {torch.bfloat16: "BF16", torch.uint8: "U8", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3"}
SPECS = [TensorSpec(name, NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in TENSORS.items()]


def test_any_order_of_writing_reads_back(tmp_path):
    path = tmp_path / "x.safetensors"
    with ShardWriter(path, SPECS) as writer:
        for name in reversed(TENSORS):
            assert not path.exists()
            writer.write(name, TENSORS[name])
    read = load_file(path)
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype and torch.equal(read[name].float(), tensor.float())


def test_a_fault_leaves_no_file(tmp_path):
    with pytest.raises(KeyError), ShardWriter(tmp_path / "x.safetensors", SPECS) as writer:
        writer.write("none", torch.ones(1))
    assert not list(tmp_path.iterdir())


def test_a_forgotten_or_wrong_tensor_is_a_fault_of_ours(tmp_path):
    with pytest.raises(AssertionError, match="never written"), ShardWriter(tmp_path / "x", SPECS):
        pass
    with pytest.raises(AssertionError), ShardWriter(tmp_path / "y", SPECS) as writer:
        writer.write("scale", torch.ones(2))
    assert not list(tmp_path.iterdir())


def test_shards_stay_below_the_limit_and_groups_whole():
    groups = [
        [TensorSpec(f"{i}.{j}", "U8", (size,)) for j in range(2)] for i, size in enumerate((10, 20, 300, 5))
    ]
    assert divide(groups, 100) == [[0, 1], [2], [3]]
    assert shard_names(1) == ["model.safetensors"] and shard_names(2)[1] == "model-00002-of-00002.safetensors"


def test_sizes():
    assert [parse_size(t) for t in ("5GB", "500 MB", "4GiB", "1.5k", "7")] == [
        5 * 10**9,
        5 * 10**8,
        2**32,
        1500,
        7,
    ]
    for text in ("", "0", "GB", "5 apples", "-1GB"):
        with pytest.raises(ConfigError, match="5GB"):
            parse_size(text)
