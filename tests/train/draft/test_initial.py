"""Where weights start: a seed's, or a published drafter's of any layout, which goes out as it came in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models

from paceline.errors import ConfigError, UnsupportedModelError
from paceline.models.checkpoint import Checkpoint
from paceline.models.registry import read_drafter_spec, read_target_spec
from paceline.train.draft.export import TargetFacts, export_drafter
from paceline.train.draft.initial import continued_drafter, new_drafter
from paceline.train.draft.shape import fit_spec, mask_text, paper_gamma
from paceline.train.settings.drafter import DrafterShape
from tests import tiny, tiny_quantized
from tests.train.draft.harness import draft_spec

YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
    "beta_slow": 1.0,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding": {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 6},
    "both ways": {
        "layer_types": ("sliding_attention", "sliding_attention"), "sliding_window": 6,
        "extra": {"is_causal": False},
    },
    "one window for all": {"nested": {"use_swa": True, "swa_window_size": 9}},
    "yarn": {"extra": {"rope_scaling": YARN}},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_target(tmp_path_factory.mktemp("target"), "plain")


def published_again(drafter: Any, folder: Path, out: Path) -> Path:
    target = read_target_spec(folder)
    tables = {
        name: torch.zeros(target.vocab_size, target.hidden_size)
        for name in ("embed_tokens.weight", "lm_head.weight")
    }
    facts = TargetFacts("target", (), target.num_layers, target.eos_ids, lambda: tables)
    export_drafter(drafter, facts, out, ("zlab", "speculators"), torch.float32)
    return out


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_drafter_goes_in_and_out(tmp_path: Path, folder: Path, name: str) -> None:
    source = tiny.make_drafter(tmp_path / "source", tiny.drafter_for("plain", **PUBLISHED[name]))
    target = read_target_spec(folder)
    out = published_again(continued_drafter(source, target), folder, tmp_path / "out")
    before = Checkpoint.open(source)
    for place in (out, out / "speculators"):
        assert read_drafter_spec(place, target) == read_drafter_spec(source, target)
        again = continued_drafter(place, target)
        assert all(torch.equal(p, before.weight(n)) for n, p in again.named_parameters())


def test_quantised_weights_are_decoded(tmp_path: Path, folder: Path) -> None:
    plain = tiny.make_drafter(tmp_path / "plain", tiny.drafter_for("plain"))
    packed = tiny_quantized.quantize(plain, tmp_path / "packed", tiny_quantized.everything())
    decoded = Checkpoint.open(tiny_quantized.dequantized(packed, tmp_path / "decoded", torch.float32))
    drafter = continued_drafter(packed, read_target_spec(folder))
    assert all(torch.equal(p, decoded.weight(n)) for n, p in drafter.named_parameters())
    assert not torch.equal(drafter.fc.weight, Checkpoint.open(plain).weight("fc.weight"))


def test_what_the_engine_refuses_is_not_continued(tmp_path: Path, folder: Path) -> None:
    source = tiny.make_drafter(tmp_path, tiny.drafter_for("plain", extra={"selector_rank": 4}))
    with pytest.raises(UnsupportedModelError, match="DFlash2"):
        continued_drafter(source, read_target_spec(folder))


def test_a_drafter_made_for_another_depth_warns(tmp_path: Path, folder: Path) -> None:
    source = tiny.make_drafter(tmp_path, tiny.drafter_for("plain", extra={"num_target_layers": 36}))
    with pytest.warns(UserWarning, match="made for 36 target layers"):
        continued_drafter(source, read_target_spec(folder))


def test_a_seed_gives_the_same_weights_and_leaves_the_random_state(folder: Path) -> None:
    spec, before = draft_spec(folder), torch.get_rng_state()
    one, same, other = new_drafter(spec, 1), new_drafter(spec, 1), new_drafter(spec, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.fc.weight, same.fc.weight) and not torch.equal(one.fc.weight, other.fc.weight)
    assert float(one.fc.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    residual = dict(one.named_parameters())["layers.0.mlp.down_proj.weight"].detach()
    assert float(residual.std()) == pytest.approx(0.01, rel=0.1)  # 0.02 / sqrt(2 x 2)
    assert torch.equal(one.norm.weight, torch.ones_like(one.norm.weight))


def test_the_papers_gammas() -> None:
    assert [paper_gamma(size) for size in (8, 10, 16)] == [4.0, 5.0, 7.0]
    assert paper_gamma(2) >= 1 and paper_gamma(13) == 6.0


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives the target a tokenizer that names all 128 rows, the last of them these special tokens."""

    def give(*special: str, template: str | None = None) -> None:
        names = {f"w{i}": i for i in range(128 - len(special))}
        backend = Tokenizer(models.WordLevel(names, unk_token="w0"))
        backend.add_tokens([AddedToken(name, special=True) for name in special])
        tokenizer = SimpleNamespace(size=128, backend=backend, chat_template=template)
        monkeypatch.setattr("paceline.train.draft.shape.load_tokenizer", lambda _: tokenizer)

    return give


@pytest.mark.parametrize("mask", ["<|mask|>", "<|MASK|>", "<mask>", "[MASK]", "|<MASK>|"])
def test_a_full_table_gives_the_row_of_its_mask_token(folder: Path, named: Any, mask: str) -> None:
    named("<|other|>", mask, "<|last|>")
    found = fit_spec(DrafterShape(), read_target_spec(folder), folder).mask_token_id
    assert found == 126 and mask_text(found, folder) == mask


def test_without_a_mask_token_others_that_may_do_are_named(folder: Path, named: Any) -> None:
    spec = read_target_spec(folder)
    named("<|turn|>", "<|spare|>", "<|pad|>", template="{{ '<|turn|>' }}")
    words = r"mask_token_id to an id that no answer holds, .* <\|spare\|> \(126\) or <\|pad\|> \(127\);"
    with pytest.raises(ConfigError, match=words):
        fit_spec(DrafterShape(), spec, folder)
    named()
    with pytest.raises(ConfigError, match="an id that no answer holds; --plan warns"):
        fit_spec(DrafterShape(), spec, folder)


def test_a_row_without_a_token_comes_first(folder: Path) -> None:
    row = fit_spec(DrafterShape(), read_target_spec(folder), folder).mask_token_id
    assert mask_text(row, folder) == "none: a row that the tokenizer does not name"
