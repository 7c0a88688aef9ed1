"""The files of examples/smollm2: settings that hold, and the measurement on a tiny model."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from paceline.engine.results import SpeculationStats
from paceline.models.registry import read_target_spec
from paceline.train.draft.shape import fit_spec
from paceline.train.modules.drafter import Drafter
from paceline.train.settings.base import load_yaml
from paceline.train.settings.data import DataSettings
from paceline.train.settings.drafter import DrafterSettings
from tests import tiny
from tests.architecture.tree import ROOT
from tests.quantize.sparse import write_sparse
from tests.tiny_dense import TinyDense, dense_config, dense_weights, drafter_for_dense, make_dense

EXAMPLE = Path(__file__).parents[2] / "examples/smollm2"
SMOLLM2 = TinyDense(
    "llama", 576, 1536, 49152, 30, 9, 3, 64, 8192, tie_word_embeddings=True, rope_theta=100_000.0
)


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    """examples/smollm2/measure.py, which is no part of the package."""
    spec = spec_from_file_location("smollm2_measure", EXAMPLE / "measure.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_drafter_fits_its_target_and_its_budget(tmp_path: Path) -> None:
    with torch.device("meta"):
        weights = dense_weights(SMOLLM2)
    folder = write_sparse(
        tmp_path, dense_config(SMOLLM2, torch.bfloat16), {n: tuple(w.shape) for n, w in weights.items()}
    )
    settings = load_yaml(EXAMPLE / "drafter.yaml", DrafterSettings)
    spec = fit_spec(settings.drafter, read_target_spec(folder), folder)
    with torch.device("meta"):
        drafter = Drafter(spec)
    assert sum(p.numel() for p in drafter.parameters()) <= 25_000_000
    assert spec.block_size == 8 and max(spec.target_layer_ids) < 30
    answers = load_yaml(EXAMPLE / "data.yaml", DataSettings)
    assert settings.data.path == answers.out and settings.target == answers.model
    assert settings.evaluate is not None and settings.evaluate.prompts in answers.held_out


def test_the_drafter_is_trained_as_the_one_that_met_the_goal() -> None:
    settings = load_yaml(EXAMPLE / "drafter.yaml", DrafterSettings).model_dump(mode="json")
    measured = json.loads((ROOT / "docs/benchmarks/2026-11-30-h200-training.json").read_text())
    then = measured["smollm2_drafter_third"]["run"]["config"]
    for pause in ("eval_every", "save_every"):  # they change nothing of what is learnt
        settings["optim"][pause] = then["optim"][pause]
    assert settings == {**then, "evaluate": settings["evaluate"]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("example")
    target = make_dense(root / "target", "llama")
    return target, tiny.make_drafter(root / "drafter", drafter_for_dense("llama"))


def prompts_file(folder: Path) -> Path:
    names = ("coding", "math", "reasoning", "extraction", "prose")
    rows = [{"id": f"{n}-{i}", "category": n, "prompt": f"the {n} in {i}"} for n in names for i in range(2)]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_measure(
    measure: ModuleType, folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, drafter = folders
    out = tmp_path / "figures.json"
    arguments = [
        str(target), "--drafter", str(drafter), "--prompts", str(prompts_file(tmp_path)), "--out", str(out),
        "--max-tokens", "24", "--per-category", "1", "--device", "cpu",
    ]  # fmt: skip
    assert measure.main(arguments) == 0
    figures = json.loads(out.read_text())["figures"]
    assert len(figures) == 2 * 4 * (5 + 2)
    assert all(row["identical"] == 1.0 for row in figures)
    by = {(row["temperature"], row["method"], row["category"]): row for row in figures}
    plain, dflash = by[0.0, "plain", "all"], by[0.0, "dflash", "all"]
    assert plain["acceptance_length"] is None and plain["speed_up"] == 1.0
    assert dflash["acceptance_length"] >= 1 and len(dflash["accepted_at"]) == 7
    assert dflash["acceptance_length"] == pytest.approx(1 + sum(dflash["accepted_at"]))
    assert dflash["median_tokens"] == plain["median_tokens"]
    four = [by[0.8, "dflash", name]["acceptance_length"] for name in measure.FOUR]
    assert by[0.8, "dflash", measure.MEAN_OF_FOUR]["acceptance_length"] == pytest.approx(sum(four) / 4)
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 2 + len(figures) and table[0].startswith("| T | method |")


def test_answers_that_loop_do_not_count_without_loops(measure: ModuleType) -> None:
    def answer(accepted: int, ids: list[int]) -> SimpleNamespace:
        stats = SpeculationStats("dflash", 7)
        stats.record(7, accepted, accepted + 1)
        return SimpleNamespace(stats=stats, token_ids=ids, timing=SimpleNamespace(decode_s=1.0))

    outputs = [answer(2, list(range(60))), answer(7, [1, 2, 3] * 20)]
    found = measure._figures(0.0, "dflash", "prose", outputs, outputs)
    assert (found.unlooped, found.unlooped_length) == (1, 3.0)
    assert found.acceptance_length == pytest.approx(5.5)


def test_measure_marks_answers_that_loop_and_refuses_bad_files(
    measure: ModuleType, folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = measure.Figures(0.0, "ngram", "prose", 5.0, 0.9, [0.9], None, 0, 10.0, 2.0, 0.4, 300.0, 1.0)
    assert any("prose (!)" in line and "| – (0) |" in line for line in measure._table([row]))
    assert measure.main([str(folders[0]), "--prompts", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
