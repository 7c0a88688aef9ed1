"""Figures of drafter training: the arithmetic that is counted, and a comparison that runs to its end."""

from __future__ import annotations

import json

import torch

from paceline.layers.rotary import RopeSpec
from paceline.train import measure
from paceline.train.data.shards import Sample, ShardWriter
from tests.tiny_dense import TinyDense, make_dense


def test_the_arithmetic_of_a_step_against_modules_that_are_counted():
    """The target's share, against torch's own counter on a small model of the same kind."""
    from dataclasses import replace

    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from paceline.train.modules.dense import Dense

    spec = replace(
        measure.qwen3_4b(), hidden_size=64, intermediate_size=96, vocab_size=128, num_layers=2,
        layer_types=("full_attention",) * 2, num_heads=4, kv_heads=2, head_dim=16, rope=RopeSpec(1e6, 16),
    )  # fmt: skip
    target = Dense(spec)
    for p in target.parameters():
        torch.nn.init.normal_(p, std=0.02) if p.dim() > 1 else None
    drafter = measure.drafter_spec(target, 1, 8, 9, (0, 1), (4, 2, 16), 96)
    rows, length = 2, 32
    plain = sdpa_kernel(SDPBackend.MATH)  # whose products are counted
    with plain, FlopCounterMode(display=False) as counter, torch.no_grad():
        target(torch.zeros(rows, length, dtype=torch.long))
    counted = measure.step_flops(spec, drafter, rows, length, anchors=4)["target"]
    # torch counts every pair of a causal product; a step needs half of them
    pairs = rows * length * length * spec.num_heads * spec.head_dim * spec.num_layers
    assert counter.get_total_flops() - 2 * pairs == counted


def test_a_comparison_runs_and_reports_every_variant(tmp_path):
    folder = make_dense(tmp_path / "target", TinyDense("llama", num_hidden_layers=8, vocab_size=320))
    generator = torch.Generator().manual_seed(0)
    with ShardWriter(tmp_path / "samples", {}) as writer:
        for i in range(measure.HELD_OUT + 40):
            ids = torch.randint(3, 300, (24,), generator=generator).tolist()
            writer.write(Sample(str(i), None, False, ids[:6], ids[6:], "stop"))
    out = tmp_path / "figures.json"
    measure.main([
        "compare", "--target", str(folder), "--data", str(tmp_path / "samples"), "--what", "losses",
        "--mask", "16", "--steps", "4", "--rows", "2", "--length", "96", "--anchors", "3", "--out", str(out),
    ])  # fmt: skip
    report = json.loads(out.read_text())
    assert set(report["variants"]) == {"dpace", "decay", "kl"}
    for found in report["variants"].values():
        assert 1.0 <= found["acceptance_length"] <= 8.0 and found["loss"] > 0
    assert report["machine"]["versions"]["torch"]
