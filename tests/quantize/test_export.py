"""`quantize` end to end on tiny models: what is written, and what a fault leaves behind."""

from __future__ import annotations

import errno
import io
import json

import pytest
import torch

from paceline.errors import CapacityError, CheckpointError, ConfigError
from paceline.quantize import export, nvfp4, shards
from paceline.quantize.layout import FUSED
from paceline.quantize.output_folder import OutputOptions
from paceline.quantize.plan import QuantizeOptions
from paceline.quantize.samples import Calibration
from tests.quantize.folders import contents, edit_tensors, quantize_tiny, same, tensors_of, tiny_model


@pytest.fixture
def model(tmp_path):
    return tiny_model(tmp_path / "model")


def read_json(path):
    return json.loads(path.read_text())


def test_weights_only(model, tmp_path):
    report = quantize_tiny(model, tmp_path / "out")
    before, after = tensors_of(model), tensors_of(tmp_path / "out")
    assert report.count == len(after) and report.files == 1
    assert report.nbytes == sum(t.numel() * t.element_size() for t in after.values())
    quantised = {name.removesuffix("_scale_2") for name in after if name.endswith("weight_scale_2")}
    assert len(quantised) == report.modules["w4a16_nvfp4"] == 4 * 1 + 3 * 4
    assert not any(name.endswith("input_scale") for name in after)
    for name, weight in before.items():
        if name not in quantised:
            assert same(after[name], weight), name
            continue
        matrix = nvfp4.Nvfp4(after[name], after[f"{name}_scale"], after[f"{name}_scale_2"])
        error = nvfp4.dequantize(matrix) - weight.float()
        assert 0.05 < (error.norm() / weight.float().norm()).item() < 0.12


def test_fused_projections_share_their_global_scale(model, tmp_path):
    edit_tensors(
        model, lambda t: {n: w * (3 if "up_proj" in n or "k_proj" in n else 1) for n, w in t.items()}
    )
    quantize_tiny(model, tmp_path / "out")
    after = tensors_of(tmp_path / "out")
    scales = {n.removesuffix(".weight_scale_2"): s for n, s in after.items() if n.endswith("weight_scale_2")}
    for module, scale in scales.items():
        parent, _, leaf = module.rpartition(".")
        for group in FUSED:
            if leaf in group:
                assert all(scales[f"{parent}.{other}"] == scale for other in group)
    down = next(module for module in scales if module.endswith("down_proj"))
    assert scales[down] != scales[down.replace("down", "gate")]


def test_json_files(model, tmp_path):
    (model / "chat_template.jinja").write_text("{{ messages }}")
    (model / "hf_quant_config.json").write_text("{}")
    quantize_tiny(model, tmp_path / "out")
    config = read_json(tmp_path / "out" / "config.json")
    section = config.pop("quantization_config")
    assert config == read_json(model / "config.json")
    assert section["quant_method"] == "modelopt" and section["quant_algo"] == "W4A16_NVFP4"
    assert "input_activations" not in section["config_groups"]["group_0"]
    separate = read_json(tmp_path / "out" / "hf_quant_config.json")["quantization"]
    assert separate["exclude_modules"] == section["ignore"] and separate["group_size"] == 16
    layer = "model.language_model.layers.0.linear_attn*"
    assert {layer, "lm_head", "model.visual*", "mtp*", "mtp.layers.0*"} <= set(section["ignore"])
    assert (tmp_path / "out" / "chat_template.jinja").is_file()
    assert not list((tmp_path / "out").glob(".*"))


def test_shards_and_index(model, tmp_path):
    report = quantize_tiny(model, tmp_path / "out", shard_size=40_000)
    index = read_json(tmp_path / "out" / "model.safetensors.index.json")
    files = set(index["weight_map"].values())
    assert report.files == len(files) > 3
    assert index["metadata"]["total_size"] == report.nbytes
    assert max((tmp_path / "out" / file).stat().st_size for file in files) < 50_000
    whole = quantize_tiny(model, tmp_path / "whole")
    one, many = tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "out")
    assert whole.count == report.count and all(same(one[name], many[name]) for name in one)


def test_mtp_can_be_dropped(model, tmp_path):
    quantize_tiny(model, tmp_path / "out", mtp="drop")
    assert not any(name.startswith("mtp.") for name in tensors_of(tmp_path / "out"))
    config = read_json(tmp_path / "out" / "config.json")
    assert config["text_config"]["mtp_num_hidden_layers"] == 0
    assert "mtp*" not in config["quantization_config"]["ignore"]


def test_out_in_the_way(model, tmp_path):
    quantize_tiny(model, tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(ConfigError, match="--force"):
        quantize_tiny(model, tmp_path / "out", scales="mse")
    assert contents(tmp_path / "out") == before
    quantize_tiny(model, tmp_path / "out", scales="mse", output=OutputOptions(force=True))
    assert contents(tmp_path / "out") != before
    assert {path.name for path in tmp_path.iterdir()} == {"model", "out", "weights-only.yaml"}


def test_force_never_replaces_something_else(model, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="not a model folder"):
        quantize_tiny(model, tmp_path / "thesis", output=OutputOptions(force=True))
    with pytest.raises(ConfigError, match="also what is read"):
        quantize_tiny(model, model, output=OutputOptions(force=True))


class Stop(Exception):
    pass


def stop_after(count):
    seen = []

    def progress(name, done, total):
        seen.append(done)
        if len(seen) == count:
            raise Stop

    return progress


def test_a_stopped_run_goes_on(model, tmp_path):
    out, shards_of = tmp_path / "out", {"shard_size": 40_000}
    whole = quantize_tiny(model, tmp_path / "whole", **shards_of)
    with pytest.raises(Stop):
        quantize_tiny(model, out, progress=stop_after(40), **shards_of)
    assert not out.exists()
    done = {
        file.name: file.stat().st_mtime_ns for file in (tmp_path / "out.unfinished").glob("*.safetensors")
    }
    assert 1 <= len(done) < whole.files
    with pytest.raises(ConfigError, match="--resume"):
        quantize_tiny(model, out, **shards_of)
    with pytest.raises(ConfigError, match="other options"):
        quantize_tiny(model, out, scales="mse", output=OutputOptions(resume=True), **shards_of)
    with pytest.raises(ConfigError, match="one of them"):
        quantize_tiny(model, out, output=OutputOptions(resume=True, force=True), **shards_of)
    quantize_tiny(model, out, output=OutputOptions(resume=True), **shards_of)
    assert contents(out) == contents(tmp_path / "whole")
    assert {name: (out / name).stat().st_mtime_ns for name in done} == done
    assert not (tmp_path / "out.unfinished").exists()


def test_progress_counts_bytes(model, tmp_path):
    seen = []
    report = quantize_tiny(model, tmp_path / "out", progress=lambda *values: seen.append(values))
    assert seen[-1][1:] == (report.nbytes, report.nbytes)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["model.language_model.layers.1.mlp.up_proj.weight", "lm_head.weight"])
def test_broken_weights_leave_nothing_behind(model, tmp_path, name, value):
    """Whether they are quantised or kept."""

    def spoil(tensors):
        tensors[name][3, 5] = value
        return tensors

    edit_tensors(model, spoil)
    with pytest.raises(CheckpointError, match=f"{name} holds NaN or infinite"):
        quantize_tiny(model, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"model", "weights-only.yaml"}


def test_a_disk_that_is_too_small(model, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(CapacityError, match="GB free"):
        quantize_tiny(model, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


class FullDisk(io.FileIO):
    """A file on a disk with room for 20 kB."""

    def write(self, data):
        if self.tell() > 20_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def test_a_disk_that_fills(model, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "open", FullDisk, raising=False)
    with pytest.raises(CapacityError, match="the disk is full"):
        quantize_tiny(model, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_requantising_decodes_first(model, tmp_path):
    quantize_tiny(model, tmp_path / "first")
    with pytest.raises(ConfigError, match="--requantize"):
        quantize_tiny(tmp_path / "first", tmp_path / "second")
    quantize_tiny(tmp_path / "first", tmp_path / "second", requantize=True, scales="mse")
    first, second = tensors_of(tmp_path / "first"), tensors_of(tmp_path / "second")
    assert first.keys() == second.keys()
    for name in (n for n in first if n.endswith("weight_scale_2")):
        stem = name.removesuffix("_scale_2")
        values = [
            nvfp4.dequantize(nvfp4.Nvfp4(t[stem], t[f"{stem}_scale"], t[name])) for t in (first, second)
        ]
        # Not exact: the second global scale comes from decoded values, so its grid is another one.
        assert (values[0] - values[1]).norm() / values[0].norm() < 0.06


def test_fp8_and_mixed_recipes(model, tmp_path):
    recipe = tmp_path / "mixed.yaml"
    recipe.write_text(
        'rules: [{match: "*.self_attn.*", format: fp8}, {match: "*.mlp.*", format: w4a16_nvfp4}]'
    )
    options = QuantizeOptions(str(recipe))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "measure_inputs", lambda _, __, modules, *rest: dict.fromkeys(modules, 7.0))
        export.quantize(model, tmp_path / "out", options, Calibration())
    before, after = tensors_of(model), tensors_of(tmp_path / "out")
    name = "model.language_model.layers.3.self_attn.q_proj"
    weight, scale = after[f"{name}.weight"], after[f"{name}.weight_scale"]
    error = weight.float() * scale - before[f"{name}.weight"].float()
    assert error.norm() / before[f"{name}.weight"].float().norm() < 0.03
    assert after[f"{name}.input_scale"] == torch.tensor(7.0) / 448
    assert scale == after[f"{name.replace('q_proj', 'k_proj')}.weight_scale"]
    section = read_json(tmp_path / "out" / "config.json")["quantization_config"]
    assert section["quant_algo"] == "MIXED_PRECISION" and len(section["config_groups"]) == 2


def test_force_never_replaces_what_is_no_model(model, tmp_path):
    """A config.json alone does not make a folder a model."""
    other = tmp_path / "project"
    other.mkdir()
    for name in ("config.json", "thesis.txt"):
        (other / name).write_text("{}")
    with pytest.raises(ConfigError, match="not a model folder"):
        quantize_tiny(model, other, output=OutputOptions(force=True))
    assert len(list(other.iterdir())) == 2


def test_a_spoilt_state_of_a_stopped_run(model, tmp_path):
    work = tmp_path / "out.unfinished"
    work.mkdir()
    (work / ".paceline-export.json").write_text('{"fing')
    with pytest.raises(CheckpointError, match="not valid JSON"):
        quantize_tiny(model, tmp_path / "out", output=OutputOptions(resume=True))
