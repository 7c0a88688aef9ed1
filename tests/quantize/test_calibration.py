"""Calibration: samples and their faults, and inputs as the whole model has them."""

from __future__ import annotations

import json

import pytest
import torch

from paceline.errors import CheckpointError, ConfigError
from paceline.models.checkpoint import Checkpoint
from paceline.quantize.calibration import measure_inputs
from paceline.quantize.export import RECORD, quantize
from paceline.quantize.output_folder import OutputOptions
from paceline.quantize.plan import QuantizeOptions, plan_quantization
from paceline.quantize.samples import Calibration, load_samples
from paceline.quantize.stored import PlainView
from tests.quantize.folders import edit_tensors, tensors_of, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("calibration") / "model", tokenizer=True)


def jsonl(tmp_path, *lines):
    path = tmp_path / "samples.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_inputs_are_those_of_the_whole_model(model):
    from transformers import AutoModelForCausalLM

    calibration = Calibration(samples=3, seq_len=40)
    view = PlainView(Checkpoint.open(model))
    modules = [*plan_quantization(model, QuantizeOptions("xs")).calibrated, "lm_head"]
    found = measure_inputs(model, view, modules, calibration)
    whole = AutoModelForCausalLM.from_pretrained(model).eval()
    expected = dict.fromkeys(found, 0.0)

    def note(name):
        def hook(_, inputs):
            expected[name] = max(expected[name], inputs[0].abs().amax().item())

        return hook

    for name, module in whole.named_modules():
        name = name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name
        if name in expected:
            module.register_forward_pre_hook(note(name))
    with torch.inference_mode():
        for sample in load_samples(model, calibration, 1024):
            whole(input_ids=torch.tensor([sample]))
    assert found == expected and set(found) == set(modules)


def test_input_scales_are_written_and_measured_once(model, tmp_path, monkeypatch):
    calibration, options = Calibration(samples=2, seq_len=16), QuantizeOptions(shard_size=40_000)
    seen = []

    def progress(name, done, total):
        seen.append(name)
        if len(seen) == 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(model, tmp_path / "out", options, calibration, progress)
    assert seen[:4] == [f"calibration, layer {i}" for i in range(4)]
    resumed = QuantizeOptions(shard_size=40_000, output=OutputOptions(resume=True))
    monkeypatch.setattr("paceline.quantize.export.measure_inputs", None)
    quantize(model, tmp_path / "out", resumed, calibration)
    scales = {n: t for n, t in tensors_of(tmp_path / "out").items() if n.endswith("input_scale")}
    assert len(scales) == 1 * 4 + 4 * 3 and all(0 < scale < 1 for scale in scales.values())
    prefix = "model.language_model.layers.3.self_attn."
    assert len({scales[f"{prefix}{part}_proj.input_scale"].item() for part in "qkv"}) == 1
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    assert record["calibration"] == {"source": "built-in", "samples": 2, "seq_len": 16}
    assert not list((tmp_path / "out").glob(".*"))


def test_kinds_of_samples(model, tmp_path):
    talk = [{"role": "user", "content": "the sky"}, {"role": "assistant", "content": "blue"}]
    path = jsonl(
        tmp_path, {"messages": talk}, "", {"prompt": "the sky"}, {"text": "the sky"}, {"text": "left out"}
    )
    chat, prompt, text = load_samples(model, Calibration(path, samples=3), 1024)
    assert len(chat) > len(prompt) > len(text) > 0 and chat[: len(prompt)] == prompt
    (cut,) = load_samples(model, Calibration(path, samples=1, seq_len=5), 1024)
    assert cut == chat[:5]
    assert len(load_samples(model, Calibration(), 1024)) == 20


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": ', "line 1: not readable JSON"),
        ("[1]", "line 1: must be a JSON object"),
        ({"words": "a"}, "needs `messages`"),
        ({"messages": [{"role": "user"}]}, "needs `messages`"),
        ({"text": ""}, "empty"),
        ("", "holds no sample"),
        ({"text": "the " * 2000}, "the model's context is 1024; give --seq-len 1024 or less"),
    ],
)
def test_bad_samples(model, tmp_path, line, says):
    with pytest.raises(ConfigError, match=says):
        quantize(model, tmp_path / "out", QuantizeOptions(), Calibration(jsonl(tmp_path, line)))
    assert not list(tmp_path.glob("out*"))


def test_bad_options(model, tmp_path):
    with pytest.raises(ConfigError, match="--seq-len must be at least 1"):
        load_samples(model, Calibration(seq_len=0), 1024)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_samples(model, Calibration(tmp_path / "none.jsonl"), 1024)
    with pytest.raises(ConfigError, match=r"no tokenizer.*w4a16_nvfp4"):
        load_samples(tiny_model(tmp_path / "mute"), Calibration(), 1024)


def test_activations_that_are_not_finite(tmp_path):
    broken = tiny_model(tmp_path / "model", tokenizer=True)

    def spoil(tensors):
        tensors["model.language_model.layers.1.input_layernorm.weight"][:] = 3e38
        return tensors

    edit_tensors(broken, spoil)
    with pytest.raises(CheckpointError, match="the weights or the samples are broken"):
        quantize(broken, tmp_path / "out", QuantizeOptions(), Calibration(samples=1))
    assert not list(tmp_path.glob("out*"))
