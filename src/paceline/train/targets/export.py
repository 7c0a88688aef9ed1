"""The published folder of a trained hybrid: what transformers and the engine load."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer

from paceline.models.checkpoint import SINGLE_FILE
from paceline.train.data.shards import write_json
from paceline.train.draft.export import named_tensors, save_weights
from paceline.train.modules import vocabulary
from paceline.train.modules.hybrid import Hybrid
from paceline.train.synth.render import chat_template
from paceline.train.targets.shape import hybrid_config

WriteTokenizer = Callable[[Path], None]
"""Puts tokenizer files into a folder."""

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
)


def export_target(module: Hybrid, write_tokenizer: WriteTokenizer, folder: Path) -> None:
    """Write config.json, generation_config.json, bf16 weights under published names, and the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = named_tensors(module, "model.", torch.bfloat16)
    if "model.lm_head.weight" in tensors:
        tensors["lm_head.weight"] = tensors.pop("model.lm_head.weight")
    save_weights(folder / SINGLE_FILE, tensors)
    write_json(folder / "config.json", hybrid_config(module.spec))
    eos = list(module.spec.eos_ids)
    write_json(folder / "generation_config.json", {"do_sample": False, "eos_token_id": eos})
    write_tokenizer(folder)


def copied_tokenizer(source: Path) -> WriteTokenizer:
    """The files of a folder that has a tokenizer."""

    def write(folder: Path) -> None:
        for name in _TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)

    return write


def new_tokenizer(tokenizer: Tokenizer, max_length: int) -> WriteTokenizer:
    """A tokenizer that was made here, with the chat template of the dialogues."""
    return lambda folder: vocabulary.save(tokenizer, folder, chat_template(), max_length)
