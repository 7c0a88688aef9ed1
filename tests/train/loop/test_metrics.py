"""What is written and shown: JSON lines, a live line on a terminal, plain lines elsewhere, TensorBoard."""

from __future__ import annotations

import io
import json
import sys
import types

import pytest
from rich.console import Console

from paceline.errors import CapacityError
from paceline.train.loop.metrics import Metrics, clock, forget_after

VALUES = {"loss": 1.5, "learning_rate": 1e-3, "grad_norm": 0.25, "tokens_per_second": 12345.6}


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_plain_lines_where_there_is_no_terminal(tmp_path):
    text = io.StringIO()
    with Metrics(tmp_path, "drafter", False, Console(file=text, width=40)) as metrics:
        metrics.log(10, 100, VALUES, 65.0)
        metrics.log(20, None, {**VALUES, "accuracy": 0.5}, None)
        metrics.evaluated(20, {"score": 2.25})
    assert text.getvalue().splitlines() == [
        "drafter: step 10/100, loss 1.5000, lr 1.00e-03, norm 0.25, 12,346 tokens/s, 1:05 left",
        "drafter: step 20/?, loss 1.5000, accuracy 0.5000, lr 1.00e-03, norm 0.25, 12,346 tokens/s",
        "drafter: step 20: score 2.25",
    ]
    assert lines(tmp_path) == [
        {"step": 10, **VALUES},
        {"step": 20, **VALUES, "accuracy": 0.5},
        {"step": 20, "evaluation": {"score": 2.25}},
    ]


def test_a_full_disk_names_the_file(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    metrics = Metrics(tmp_path, "drafter", False, Console(file=io.StringIO()))
    words = r"metrics\.jsonl cannot be written, perhaps the disk is full: make room, then --resume \(No space"
    with pytest.raises(CapacityError, match=words), metrics:
        metrics.log(10, 100, VALUES, None)


def test_one_line_is_kept_up_to_date_on_a_terminal(tmp_path):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120, legacy_windows=False)
    with Metrics(tmp_path, "drafter", False, console) as metrics:
        metrics.log(10, 100, VALUES, 65.0)
        metrics.log(20, 100, VALUES, 60.0)
    shown = text.getvalue()
    assert shown.count("\n") == 1, "one line, written over"
    assert shown.index("step 10/100") < shown.index("step 20/100")


def test_a_line_is_on_disk_when_it_is_logged(tmp_path):
    with Metrics(tmp_path, "drafter", False, Console(file=io.StringIO())) as metrics:
        metrics.log(10, 100, VALUES, None)
        assert len(lines(tmp_path)) == 1


def test_later_and_torn_lines_are_forgotten(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 3, "loss": 1}\n{"step": 4, "evaluation": {}}\n{"step": 6, "loss": 2}\n{"st')
    forget_after(tmp_path, 4)
    assert [line["step"] for line in lines(tmp_path)] == [3, 4]
    forget_after(tmp_path / "nowhere", 4)


def test_tensorboard_that_is_missing_is_warned_about_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with (
        pytest.warns(UserWarning, match=r"pip install 'paceline\[tensorboard\]'") as warned,
        Metrics(tmp_path, "drafter", True, Console(file=io.StringIO())) as metrics,
    ):
        metrics.log(10, 100, VALUES, None)
        metrics.log(20, 100, VALUES, None)
    assert len(warned) == 1 and len(lines(tmp_path)) == 2


def test_tensorboard_gets_every_value(tmp_path, monkeypatch):
    written, folders = [], []

    class Writer:
        def __init__(self, folder):
            folders.append(folder)

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Writer))
    with Metrics(tmp_path, "drafter", True, Console(file=io.StringIO())) as metrics:
        metrics.log(10, 100, {"loss": 1.0, "learning_rate": 2.0, "grad_norm": 3.0}, None)
        metrics.evaluated(10, {"score": 4.0})
    assert folders == [str(tmp_path / "tensorboard")]
    names = [("train/loss", 1.0, 10), ("train/learning_rate", 2.0, 10), ("train/grad_norm", 3.0, 10)]
    assert written == [*names, ("evaluation/score", 4.0, 10), "closed"]


@pytest.mark.parametrize("seconds, shown", [(0.4, "0:00"), (65, "1:05"), (3725.2, "1:02:05")])
def test_clock(seconds, shown):
    assert clock(seconds) == shown
