"""Published drafter folders: z-lab's layout and that of vLLM's speculators, each loadable at once.

The two hold the same tensors and differ in config.json: speculators nests the transformer's sizes, counts a
tap as the layer that the state enters (z-lab's id + 1), and carries the target's tables along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from paceline.errors import ConfigError
from paceline.layers.rotary import RopeSpec
from paceline.models.checkpoint import SINGLE_FILE
from paceline.models.spec import FULL_ATTENTION, SLIDING_ATTENTION, DrafterSpec
from paceline.train.data.shards import write_json
from paceline.train.modules.drafter import Drafter
from paceline.train.settings.drafter import Format


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a drafter's folder says of its target."""

    name: str
    architectures: tuple[str, ...]
    num_layers: int
    eos_ids: tuple[int, ...]
    tables: Callable[[], Mapping[str, Tensor]]
    """Gives ``embed_tokens.weight`` and ``lm_head.weight`` [V, H]; asked only where a layout holds them."""


def export_drafter(
    drafter: Drafter, target: TargetFacts, folder: Path, formats: Sequence[Format], dtype: torch.dtype
) -> None:
    """Write `drafter` into `folder` in the first of `formats`, others into sub-folders of their names."""
    own = named_tensors(drafter, "", dtype)
    for number, layout in enumerate(formats):
        place = folder if number == 0 else folder / layout
        place.mkdir(parents=True, exist_ok=True)
        if layout == "zlab":
            write_json(place / "config.json", zlab_config(drafter.spec, target, dtype))
            save_weights(place / SINGLE_FILE, own)
        else:
            # Copies, because safetensors stores no tensor under two names, as a tied table would be.
            copies = {
                name: table.detach().to("cpu", dtype, copy=True) for name, table in target.tables().items()
            }
            write_json(place / "config.json", speculators_config(drafter.spec, target, dtype))
            save_weights(place / SINGLE_FILE, own | copies)


def zlab_config(spec: DrafterSpec, target: TargetFacts, dtype: torch.dtype) -> dict[str, Any]:
    """config.json as z-lab publishes it."""
    causality = _is_causal(spec)
    return {
        "architectures": ["DFlashDraftModel"],
        **_transformer(spec, target, dtype),
        "block_size": spec.block_size,
        "dflash_config": {
            "mask_token_id": spec.mask_token_id,
            "target_layer_ids": list(spec.target_layer_ids),
        },
        "num_target_layers": target.num_layers,
        **({} if causality is None else {"is_causal": causality}),
    }


def check_formats(spec: DrafterSpec, formats: Sequence[str]) -> None:
    """Raises: ConfigError for a layout that cannot express the drafter; asked before training begins."""
    if "speculators" in formats and _is_causal(spec):
        raise ConfigError(
            "the speculators layout knows no causal full attention: leave is_causal out, or export zlab",
            key="export.formats",
        )


def speculators_config(spec: DrafterSpec, target: TargetFacts, dtype: torch.dtype) -> dict[str, Any]:
    """config.json as vLLM's speculators writes it.

    Raises: ConfigError for causal full-attention layers, which that layout cannot express.
    """
    check_formats(spec, ("speculators",))
    causality = _is_causal(spec)
    method = {
        "proposal_type": "greedy",
        "speculative_tokens": spec.max_speculative_tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_config": {
            "algorithm": "dflash",
            "proposal_methods": [method],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": target.name, "architectures": list(target.architectures)},
        },
        "transformer_layer_config": _transformer(spec, target, dtype),
        "draft_vocab_size": spec.vocab_size,
        "block_size": spec.block_size,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in spec.target_layer_ids],
        "mask_token_id": spec.mask_token_id,
        "sliding_window_non_causal": causality is False,
        "sample_from_anchor": False,
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
    }


def named_tensors(module: nn.Module, prefix: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Parameters of a module under their published names, on the CPU."""
    return {
        prefix + name: value.detach().to("cpu", dtype).contiguous()
        for name, value in module.named_parameters()
    }


def save_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write safetensors in the order of names; the file has its name only once it is whole."""
    temporary = path.with_name(path.name + ".part")
    save_file({name: tensors[name] for name in sorted(tensors)}, str(temporary), metadata={"format": "pt"})
    temporary.chmod(0o644)  # safetensors makes it private to the owner
    temporary.replace(path)


def _transformer(spec: DrafterSpec, target: TargetFacts, dtype: torch.dtype) -> dict[str, Any]:
    window = next((w for w in spec.windows if w is not None), None)
    assert all(w in (None, window) for w in spec.windows), "config.json holds one window for all layers"
    return {
        "model_type": "qwen3",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": spec.rms_eps,
        **_rope(spec.rope),
        "max_position_embeddings": spec.max_position,
        "vocab_size": spec.vocab_size,
        "layer_types": [FULL_ATTENTION if w is None else SLIDING_ATTENTION for w in spec.windows],
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": spec.num_layers,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": target.eos_ids[0] if target.eos_ids else None,
        "use_cache": True,
        "dtype": str(dtype).removeprefix("torch."),
    }


def _rope(rope: RopeSpec) -> dict[str, Any]:
    """theta in both places: older loaders look at the top level, newer ones into rope_parameters."""
    if rope.yarn is None:
        parameters = {"rope_type": "default", "rope_theta": rope.theta}
        return {"rope_theta": rope.theta, "rope_parameters": parameters, "rope_scaling": None}
    yarn = rope.yarn
    optional = {
        name: getattr(yarn, name)
        for name in ("attention_factor", "mscale", "mscale_all_dim")
        if getattr(yarn, name) is not None
    }
    scaling = {
        "rope_type": "yarn",
        "factor": yarn.factor,
        "original_max_position_embeddings": yarn.original_max_position,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
        "truncate": yarn.truncate,
        **optional,
    }
    return {
        "rope_theta": rope.theta,
        "rope_parameters": {**scaling, "rope_theta": rope.theta},
        "rope_scaling": scaling,
    }


def _is_causal(spec: DrafterSpec) -> bool | None:
    """What is_causal has to say; None where the default (causal exactly in sliding layers) is meant."""
    default = tuple(window is not None for window in spec.windows)
    if spec.causal == default:
        return None
    assert len(set(spec.causal)) == 1, "config.json holds one is_causal for all layers"
    return spec.causal[0]
