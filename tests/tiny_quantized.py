"""Tiny quantised checkpoints for tests, in the layouts of nvidia-modelopt and compressed-tensors, and the
plain checkpoints that they stand for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from paceline.quantize import fp8, nvfp4
from paceline.quantize.compressed import to_compressed
from tests.tiny_files import Weights, write_json

WEIGHTS = "model.safetensors"
Format = str | None
"""NVFP4, W4A16_NVFP4, FP8, FP8_PER_CHANNEL_PER_TOKEN, nvfp4-pack-quantized, or None: plain."""
Choice = Callable[[str], Format]

_REGULAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_DELTA = ("in_proj_qkv", "in_proj_z", "out_proj")


def modules_named(names: tuple[str, ...], fmt: str, *, mtp: bool = False) -> Choice:
    """`fmt` for modules whose last name is one of `names`; the multi-token head only if `mtp`."""

    def choose(module: str) -> Format:
        return fmt if module.split(".")[-1] in names and (mtp or not module.startswith("mtp.")) else None

    return choose


def regular(fmt: str = "NVFP4") -> Choice:
    """Attention and feed-forward."""
    return modules_named(_REGULAR, fmt)


def xs(fmt: str = "NVFP4") -> Choice:
    """Also the large matrices of GatedDeltaNet layers."""
    return modules_named((*_REGULAR, *_DELTA), fmt)


def everything(fmt: str = "NVFP4") -> Choice:
    """Head and multi-token head as well."""
    return modules_named((*_REGULAR, *_DELTA, "lm_head", "fc"), fmt, mtp=True)


def mixed(module: str) -> Format:
    """NVIDIA's layout: 4 bits for feed-forward and head, FP8 for the mixers."""
    leaf = module.split(".")[-1]
    if leaf in ("gate_proj", "up_proj", "down_proj", "lm_head"):
        return "W4A16_NVFP4"
    if leaf in ("in_proj_qkv", "in_proj_z"):
        return "FP8_PER_CHANNEL_PER_TOKEN"
    return "FP8" if leaf in (*_REGULAR, *_DELTA) else None


def quantize(folder: Path, out: Path, choose: Choice, *, separate: bool = False) -> Path:
    """The checkpoint in `folder` (one file), quantised, in the new folder `out`.

    separate: the description stands in hf_quant_config.json alone. Returns `out`.
    """
    shutil.copytree(folder, out)
    plain = load_file(folder / WEIGHTS)
    formats = {name.removesuffix(".weight"): choose(name.removesuffix(".weight")) for name in plain}
    stored: Weights = {}
    for name, weight in plain.items():
        module = name.removesuffix(".weight")
        fmt = formats[module] if name.endswith(".weight") else None
        stored |= {name: weight} if fmt is None else _parts(module, weight, fmt)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, out / WEIGHTS)
    used = {module: fmt for module, fmt in formats.items() if fmt}
    ignore = [module for module in formats if module not in used]
    _describe(out, used, ignore, separate)
    return out


def dequantized(folder: Path, out: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """The plain checkpoint that the quantised one in `folder` stands for, in the new folder `out`."""
    shutil.copytree(folder, out)
    stored = load_file(folder / WEIGHTS)
    plain: Weights = {}
    for name, tensor in stored.items():
        module, _, part = name.rpartition(".")
        if part == "weight_packed":
            scale = 1.0 / stored[f"{module}.weight_global_scale"]
            packed = nvfp4.Nvfp4(tensor, stored[f"{module}.weight_scale"], scale)
            plain[f"{module}.weight"] = nvfp4.dequantize(packed).to(dtype)
        elif tensor.dtype is torch.uint8:
            packed = nvfp4.Nvfp4(tensor, stored[f"{module}.weight_scale"], stored[f"{module}.weight_scale_2"])
            plain[name] = nvfp4.dequantize(packed).to(dtype)
        elif part == "weight" and tensor.dtype is torch.float8_e4m3fn:
            plain[name] = fp8.dequantize(tensor, stored[f"{module}.weight_scale"]).to(dtype)
        elif "scale" not in part:
            plain[name] = tensor
    save_file(plain, out / WEIGHTS)
    edit_config(out, lambda config: config.pop("quantization_config", None))
    (out / "hf_quant_config.json").unlink(missing_ok=True)
    return out


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the folder's config.json."""
    config = json.loads((folder / "config.json").read_text())
    change(config)
    write_json(folder / "config.json", config)


def edit_weights(folder: Path, change: Callable[[Weights], object]) -> None:
    """Change the folder's tensors."""
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS)


def _parts(module: str, weight: torch.Tensor, fmt: str) -> Weights:
    amax = weight.abs().amax()
    if fmt == "FP8":
        scale = fp8.global_scale(amax)
        return {f"{module}.weight": fp8.quantize(weight, scale), f"{module}.weight_scale": scale}
    if fmt == "FP8_PER_CHANNEL_PER_TOKEN":
        scale = fp8.global_scale(weight.abs().amax(1))
        return {f"{module}.weight": fp8.quantize(weight, scale[:, None]), f"{module}.weight_scale": scale}
    packed = nvfp4.quantize(weight, nvfp4.global_scale(amax))
    parts = {"weight": packed.packed, "weight_scale": packed.scales, "weight_scale_2": packed.global_scale}
    if fmt != "W4A16_NVFP4":
        parts["input_scale"] = torch.tensor(0.01)
    if fmt == "nvfp4-pack-quantized":
        parts = to_compressed(parts)
    return {f"{module}.{part}": tensor for part, tensor in parts.items()}


def _describe(out: Path, used: dict[str, str], ignore: list[str], separate: bool) -> None:
    algorithms = sorted(set(used.values()))
    section: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": algorithms[0], "ignore": ignore}
    if algorithms == ["nvfp4-pack-quantized"]:
        section = {"quant_method": "compressed-tensors", "format": algorithms[0], "ignore": ignore}
    elif len(algorithms) > 1:
        layers = {module: {"quant_algo": fmt} for module, fmt in used.items()}
        section |= {"quant_algo": "MIXED_PRECISION", "ignore": [], "quantized_layers": layers}
    if not separate:
        edit_config(out, lambda config: config.update(quantization_config=section))
        return
    quantization = {key: value for key, value in section.items() if key != "quant_method"}
    quantization["exclude_modules"] = quantization.pop("ignore")
    quantization |= {"group_size": 16, "kv_cache_quant_algo": None}
    write_json(out / "hf_quant_config.json", {"producer": {"name": "modelopt"}, "quantization": quantization})
