"""Checkpoints of real size as headers over sparse files: names, shapes and dtypes, but no weights."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

from tests.tiny import TinyTarget, mtp_weights, target_config, target_weights, write_json

Shapes = dict[str, tuple[int, ...]]

QWEN36_27B = TinyTarget(
    hidden_size=5120,
    intermediate_size=17408,
    num_hidden_layers=64,
    num_attention_heads=24,
    num_key_value_heads=4,
    head_dim=256,
    linear_num_key_heads=16,
    linear_num_value_heads=48,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    vocab_size=248320,
)


def text_shapes(shape: TinyTarget) -> Shapes:
    """Tensors of the text tower and the multi-token head, under the wrapper's names."""
    import torch

    with torch.device("meta"):
        weights = target_weights(shape) | mtp_weights(shape)
    nested = {
        n.replace("model.", "model.language_model.", 1) if n.startswith("model.") else n: w
        for n, w in weights.items()
    }
    return {name: tuple(weight.shape) for name, weight in nested.items()}


def vision_shapes(depth: int, hidden: int, inner: int, out: int) -> Shapes:
    """The 12 tensors of each block, 3 of the embeddings and 6 of the merger."""
    shapes: Shapes = {
        "patch_embed.proj.weight": (hidden, 3, 2, 16, 16),
        "patch_embed.proj.bias": (hidden,),
        "pos_embed.weight": (2304, hidden),
        "merger.norm.weight": (hidden,),
        "merger.norm.bias": (hidden,),
        "merger.linear_fc1.weight": (4 * hidden, 4 * hidden),
        "merger.linear_fc1.bias": (4 * hidden,),
        "merger.linear_fc2.weight": (out, 4 * hidden),
        "merger.linear_fc2.bias": (out,),
    }
    for i in range(depth):
        for name, (rows, columns) in {
            "attn.qkv": (3 * hidden, hidden),
            "attn.proj": (hidden, hidden),
            "mlp.linear_fc1": (inner, hidden),
            "mlp.linear_fc2": (hidden, inner),
        }.items():
            shapes |= {f"blocks.{i}.{name}.weight": (rows, columns), f"blocks.{i}.{name}.bias": (rows,)}
        for name in ("norm1", "norm2"):
            shapes |= {f"blocks.{i}.{name}.{part}": (hidden,) for part in ("weight", "bias")}
    return {f"model.visual.{name}": shape for name, shape in shapes.items()}


def write_sparse(folder: Path, config: dict, shapes: Shapes, limit: int = 4 << 30) -> Path:
    """A folder whose shards say that they hold `shapes` in bf16; it takes up almost no disk."""
    shards: list[Shapes] = [{}]
    for name, shape in shapes.items():
        if sum(map(size, shards[-1].values())) + size(shape) > limit:
            shards.append({})
        shards[-1][name] = shape
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for i, shard in enumerate(shards, start=1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        write_sparse_file(folder / file, shard)
        weight_map |= dict.fromkeys(shard, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    write_json(folder / "config.json", config)
    return folder


def write_sparse_file(path: Path, shapes: Shapes) -> None:
    """A header, and zeros that are not on the disk."""
    header, end = {}, 0
    for name, shape in shapes.items():
        offsets = [end, end + size(shape)]
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def size(shape: tuple[int, ...]) -> int:
    """Bytes in bf16."""
    return 2 * prod(shape)


def write_27b(folder: Path) -> Path:
    """Qwen3.6-27B: 1199 tensors."""
    shapes = text_shapes(QWEN36_27B) | vision_shapes(27, 1152, 4304, 5120)
    config = {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": target_config(QWEN36_27B),
        "tie_word_embeddings": False,
    }
    return write_sparse(folder, config, shapes)
