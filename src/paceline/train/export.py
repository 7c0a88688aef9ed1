"""Published folders: safetensors with the checkpoint names, config.json, logs, hashes."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from paceline.errors import CheckpointError
from paceline.train.config import DrafterConfig, TargetConfig
from paceline.train.tokenizer import EOS_ID


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write JSON by replacement, so that no reader sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(path.suffix + ".part")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def environment(device: torch.device) -> dict[str, str]:
    """What the figures of a log were made on."""
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or platform.machine()
    )
    return {"device": name, "torch": torch.__version__, "python": sys.version.split()[0]}


def target_json(c: TargetConfig) -> dict[str, Any]:
    """config.json of the target; rope_theta is explicit because the class default differs from published
    models."""
    half = c.rotary_dim // 2
    third = half // 3
    same = (
        "hidden_size intermediate_size num_hidden_layers full_attention_interval num_attention_heads "
        "num_key_value_heads head_dim linear_num_key_heads linear_num_value_heads linear_key_head_dim "
        "linear_value_head_dim linear_conv_kernel_dim vocab_size max_position_embeddings rms_norm_eps"
    )
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        **{name: getattr(c, name) for name in same.split()},
        "layer_types": list(c.layer_types),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": c.rope_theta,
            "partial_rotary_factor": c.partial_rotary_factor,
            "mrope_section": [half - 2 * third, third, third],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "pad_token_id": None,
        "use_cache": True,
        "dtype": "bfloat16",
    }


def drafter_json(d: DrafterConfig, t: TargetConfig) -> dict[str, Any]:
    """config.json of the drafter, fields as published drafters have them."""
    same = (
        "num_hidden_layers intermediate_size num_attention_heads num_key_value_heads head_dim rope_theta "
        "rms_norm_eps"
    )
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": t.hidden_size,
        **{name: getattr(d, name) for name in same.split()},
        "block_size": d.block_size,
        "dflash_config": {"mask_token_id": d.mask_token_id, "target_layer_ids": list(d.target_layer_ids)},
        "num_target_layers": t.num_hidden_layers,
        "layer_types": list(d.layer_types),
        "sliding_window": d.sliding_window,
        "use_sliding_window": d.sliding_window is not None,
        "max_window_layers": d.num_hidden_layers,
        "max_position_embeddings": t.max_position_embeddings,
        "vocab_size": t.vocab_size,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "use_cache": True,
        "dtype": "bfloat16",
    }


def generation_json() -> dict[str, Any]:
    """Greedy by default."""
    return {"do_sample": False, "eos_token_id": [EOS_ID], "pad_token_id": EOS_ID}


def save_weights(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write bf16 safetensors in name order, by replacement."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    ordered = {k: tensors[k].detach().to("cpu", torch.bfloat16).contiguous() for k in sorted(tensors)}
    save_file(ordered, str(temporary), metadata={"format": "pt"})
    temporary.chmod(0o644)  # safetensors creates it private to the owner
    temporary.replace(path)


def named(module: nn.Module, prefix: str) -> dict[str, Tensor]:
    """Parameters of a module under a checkpoint prefix."""
    return {prefix + name: p for name, p in module.named_parameters()}


def load_weights(module: nn.Module, path: Path, prefix: str) -> None:
    """Fill a module's parameters from the tensors under ``prefix``; missing and surplus names are errors."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: run the stage that writes it first")
    have = {k[len(prefix) :]: v.float() for k, v in load_file(str(path)).items() if k.startswith(prefix)}
    need = dict(module.named_parameters())
    odd = sorted(set(have) ^ set(need))
    if odd:
        raise CheckpointError(
            f"{path}: tensor {prefix}{odd[0]} is {'missing' if odd[0] in need else 'surplus'}"
        )
    for name, p in need.items():
        if p.shape != have[name].shape:
            raise CheckpointError(
                f"{path}: {prefix}{name} is {tuple(have[name].shape)}, expected {tuple(p.shape)}"
            )
        p.data.copy_(have[name])
