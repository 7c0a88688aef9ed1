"""The GPU benchmark in miniature, on the CPU: random models load, and drafts are accepted as asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from paceline.bench import gpu
from paceline.bench.random_model import TINY, load_random_target, target_checkpoint
from paceline.bench.synthetic import SyntheticAcceptance, acceptance_rate
from paceline.speculate.sampler import Sampler, SampleRows
from paceline.speculate.verify import accept

SMALL = ["--shape", "tiny", "--device", "cpu", "--prompt-tokens", "20", "--output-tokens", "4,16"]


def test_the_rate_gives_the_length() -> None:
    p = acceptance_rate(3.7, 10)
    assert sum(p**k for k in range(11)) == pytest.approx(3.7)
    assert acceptance_rate(11, 10) == pytest.approx(1)
    assert acceptance_rate(1, 10) == pytest.approx(0)


def test_windows_accept_as_many_drafts_as_asked_for() -> None:
    windows, drafts, vocab = 4000, 10, 50
    sampler = Sampler(vocab, windows + 1, "cpu")
    synthetic = SyntheticAcceptance(sampler, 3.7, drafts)
    guesses = torch.randint(0, vocab, (windows, drafts))
    sequences = torch.arange(windows)
    row_seq = sequences.repeat_interleave(drafts + 1)
    starts, counts = sequences * (drafts + 1), torch.full((windows,), drafts + 1)
    rows = SampleRows.windows(sequences + 1, guesses, row_seq, starts, torch.arange(len(row_seq)))
    logits = torch.randn(len(row_seq), vocab)
    accepted = accept(synthetic.sample(logits, rows), guesses, starts, counts, drafts + 1)
    assert accepted.counts.double().mean().item() == pytest.approx(3.7, abs=0.2)
    assert set(accepted.counts.tolist()) == set(range(1, drafts + 2))
    single = SampleRows.single(sequences + 1, sequences)
    assert torch.equal(synthetic.sample(logits[:windows], single), logits[:windows].argmax(-1))


def test_one_name_gives_one_weight() -> None:
    checkpoint = target_checkpoint(TINY, torch.device("cpu"))
    name = "model.layers.3.self_attn.q_proj.weight"
    assert torch.equal(checkpoint.weight(name), checkpoint.weight(name))
    assert checkpoint.weight(name).dtype == torch.bfloat16
    assert load_random_target(TINY, torch.device("cpu"), 64).spec.num_layers == TINY.layers


def test_rows_of_both_modes(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    assert gpu.main([*SMALL, "--concurrency", "1,3", "--num-speculative-tokens", "4",
                     "--acceptance", "2.5", "--out", str(out)]) == 0  # fmt: skip
    rows = json.loads(out.read_text())
    assert [row["name"] for row in rows] == [
        "plain-eager-c1", "plain-eager-c3", "dflash-eager-c1", "dflash-eager-c3"
    ]  # fmt: skip
    assert all(row["value"] > 0 and row["detail"]["output_tokens"] == [4, 16] for row in rows)
    assert all(1 <= row["detail"]["acceptance_length"] <= 5 for row in rows[2:])
    assert "peer" not in rows[0]["detail"], "another shape is not what the peer ran"


def test_a_run_ends_in_time(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    assert gpu.main([*SMALL, "--concurrency", "1", "--max-seconds", "0.000001", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())
    assert all(row["value"] is None and "--max-seconds" in row["reason"] for row in rows)


@pytest.mark.parametrize(
    "wrong",
    [["--mode", "mtp"], ["--acceptance", "12"], ["--num-speculative-tokens", "16"], ["--concurrency", "0"],
     ["--output-tokens", "9,4"], ["--max-model-len", "30"]],
)  # fmt: skip
def test_bad_usage_is_refused(tmp_path: Path, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        gpu.main([*SMALL, *wrong, "--out", str(tmp_path / "rows.json")])
    assert exit_.value.code == 2
