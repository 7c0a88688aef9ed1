"""Writing tiny model folders: weights, JSON, tokenizer, and the layers that all of them share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCAB = 128
EOS, IM_END = 0, 2
Weights = dict[str, torch.Tensor]


def random_weight(*shape: int, std: float | None = None) -> torch.Tensor:
    """Normal float32 values; by default scaled so that a product keeps the size of its input."""
    return torch.randn(*shape) * (shape[-1] ** -0.5 if std is None else std)


def norms(layer: str, hidden: int) -> Weights:
    """Weights w of the two norms of a layer, for (1 + w)."""
    names = ("input_layernorm", "post_attention_layernorm")
    return {f"{layer}{name}.weight": random_weight(hidden, std=0.1) for name in names}


def mlp(layer: str, hidden: int, intermediate: int) -> Weights:
    """A SwiGLU layer."""
    return {
        f"{layer}mlp.gate_proj.weight": random_weight(intermediate, hidden),
        f"{layer}mlp.up_proj.weight": random_weight(intermediate, hidden),
        f"{layer}mlp.down_proj.weight": random_weight(hidden, intermediate),
    }


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    weights: Weights,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
) -> None:
    """Write config and weights, as one file or as `shards` files with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    stored = {name: weight.to(dtype).contiguous() for name, weight in weights.items()}
    if shards == 1:
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(stored.items())[i::shards])
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def write_json(path: Path, value: Any) -> None:
    """Write JSON, indented for whoever debugs a test."""
    path.write_text(json.dumps(value, indent=1))


def write_tokenizer(folder: Path, vocab_size: int = VOCAB) -> None:
    """A byte-level tokenizer with a chat template: three special tokens, the printable ASCII bytes, some
    merges.

    It names fewer ids than `vocab_size`, as the published ones do; the rest of the table has no text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = ["Ġ", "Ċ", *(chr(c) for c in range(33, 127))]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("a", "n")]
    names = special + characters + ["".join(pair) for pair in merges]
    assert len(names) < vocab_size, f"a tiny tokenizer has {len(names)} ids"
    bpe = models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[2], pad_token=special[0])
    fast.add_special_tokens({"additional_special_tokens": special})
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(folder)
