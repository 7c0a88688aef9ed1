"""What peers load of a quantised model: the engine's own weights, and nothing that says it is quantised."""

from __future__ import annotations

import torch

from paceline.bench.peers.plain_form import plain_form
from paceline.cli.main import main
from paceline.models.checkpoint import Checkpoint
from paceline.models.quantized import as_plain
from tests import tiny


def test_a_plain_model_is_taken_as_it_is(tmp_path):
    model = tiny.make_target(tmp_path / "model", tokenizer=False)
    assert plain_form(model, tmp_path / "copy") == model and not (tmp_path / "copy").exists()


def test_a_quantised_one_is_decoded(tmp_path):
    model = tiny.make_target(tmp_path / "model", tokenizer=False)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text('rules: [{match: "*.mlp.*_proj", format: w4a16_nvfp4}]', encoding="utf-8")
    assert main(("quantize", str(model), str(tmp_path / "xs"), "--recipe", str(recipe))) == 0
    (tmp_path / "copy").mkdir()
    folder = plain_form(tmp_path / "xs", tmp_path / "copy")
    made, theirs = Checkpoint.open(folder), as_plain(Checkpoint.open(tmp_path / "xs"))
    assert "quantization_config" not in made.config and made.tensors.keys() == theirs.tensors.keys()
    for name in made.tensors:
        assert made.weight(name).equal(theirs.weight(name).to(made.weight(name).dtype))
    rounded = Checkpoint.open(model)
    assert any(not made.weight(n).equal(rounded.weight(n).to(torch.bfloat16)) for n in made.tensors)
