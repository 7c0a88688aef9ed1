"""Quantising, inspecting and judging models without recurrent layers."""

from __future__ import annotations

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.errors import PairingError
from paceline.models.checkpoint import Checkpoint
from paceline.quantize.acceptance import Question
from paceline.quantize.calibration import measure_inputs
from paceline.quantize.dequantize import dequantize
from paceline.quantize.evaluate import EvaluateOptions, evaluate
from paceline.quantize.export import quantize
from paceline.quantize.graft import graft_mtp
from paceline.quantize.inspect import inspect
from paceline.quantize.plan import QuantizeOptions, plan_quantization
from paceline.quantize.samples import Calibration, load_samples
from paceline.quantize.stored import PlainView
from tests.quantize.folders import same, tensors_of, tiny_model
from tests.tiny_dense import make_dense

FAMILIES = ["llama", "qwen2", "qwen3"]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    return make_dense(tmp_path_factory.mktemp(request.param) / "model", request.param, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def quantised(model):
    out = model.parent / "quantised"
    quantize(model, out, QuantizeOptions("regular"), Calibration(samples=2, seq_len=24))
    return out


def test_inputs_are_those_of_the_whole_model(model):
    from transformers import AutoModelForCausalLM

    calibration = Calibration(samples=2, seq_len=40)
    modules = [*plan_quantization(model, QuantizeOptions("regular")).calibrated, "lm_head"]
    found = measure_inputs(model, PlainView(Checkpoint.open(model)), modules, calibration)
    whole = AutoModelForCausalLM.from_pretrained(model).eval()
    expected = dict.fromkeys(found, 0.0)

    def note(name):
        def hook(_, inputs):
            expected[name] = max(expected[name], inputs[0].abs().amax().item())

        return hook

    for name, module in whole.named_modules():
        if name in expected:
            module.register_forward_pre_hook(note(name))
    with torch.inference_mode():
        for sample in load_samples(model, calibration, 1024):
            whole(input_ids=torch.tensor([sample]))
    assert found == expected and len(found) == 3 * 7 + 1


def test_round_trip(model, quantised, tmp_path):
    found = inspect(quantised)
    assert found.problems == [] and found.loads and found.mtp == "absent" and found.drafter is None
    parts = {part.name: part for part in found.parts}
    assert set(parts["attention"].formats) <= {"nvfp4", "bf16"} and "nvfp4" in parts["attention"].formats
    assert set(parts["mlp"].formats) == {"nvfp4"} and "linear attention" not in parts
    before, after = tensors_of(model), tensors_of(quantised)
    for name in before:
        if not name.endswith("_proj.weight"):
            assert same(before[name], after[name]), name
    dequantize(quantised, tmp_path / "plain")
    assert set(tensors_of(tmp_path / "plain")) == set(before)
    params = SamplingParams(temperature=0, max_tokens=12)
    texts = []
    for folder, weights in ((quantised, "packed"), (quantised, "dequantized"), (tmp_path / "plain", "auto")):
        options = {} if weights == "auto" else {"quantized_weights": weights}
        llm = LLM(str(folder), device="cpu", **options)
        texts.append(llm.generate([[5, 6, 7, 8]], params)[0].token_ids)
        llm.close()
    assert texts[0] == texts[1] == texts[2]


def test_what_quantising_lost_by_layers(model, quantised, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 3)
    options = EvaluateOptions(device="cpu", text=text)
    found = evaluate(str(quantised), str(model), options)
    assert found.kl()["mean"] > 0
    names = [group.name for group in found.groups if group.kind == "part"]
    assert names == ["attention", "MLP", "embedding and head"]
    assert all(group.kl_mean > 0 for group in found.groups if group.name in ("attention", "MLP"))
    assert evaluate(str(model), str(model), options).kl()["max"] == 0
    questions = [Question("a", "prose", "the quick brown")]
    drafts = EvaluateOptions(
        device="cpu", questions=questions, speculative={"method": "ngram"}, max_tokens=8, by_layers=False
    )
    assert evaluate(str(quantised), str(model), drafts).acceptance is not None


def test_another_architecture_is_no_version_of_this_one(model, tmp_path):
    other = tiny_model(tmp_path / "hybrid", vision=False, nested=False, tokenizer=True)
    with pytest.raises(PairingError, match="is no version of"):
        evaluate(str(other), str(model), EvaluateOptions(device="cpu"))


def test_no_head_is_grafted_into_a_dense_model(model, tmp_path):
    donor = tiny_model(tmp_path / "donor", vision=False, nested=False)
    with pytest.raises(PairingError, match="has no multi-token head"):
        graft_mtp(donor, model)
    with pytest.raises(PairingError, match="has no multi-token head"):
        plan_quantization(model, QuantizeOptions("regular", mtp=str(donor)))
