"""transformers' own `generate` as a peer, in this process: the same torch, the same threads."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import torch

from paceline.bench.peers.base import PeerUnavailable, TokenPrompts


class TransformersPeer:
    """The model class of transformers on the same weights and dtype."""

    name = "transformers"

    def __init__(self, model: Path):
        try:
            from transformers import AutoModelForCausalLM
        except ImportError as error:
            raise PeerUnavailable(f"transformers cannot be imported: {error}") from error
        # It says once a kernel is missing that only exists for GPUs; on a CPU that is the normal state.
        logging.getLogger("transformers").setLevel(logging.ERROR)
        try:
            self._model = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
        except (OSError, ValueError, KeyError) as error:
            raise PeerUnavailable(f"transformers cannot load {model.name}: {error}") from error
        self._model.eval()
        self._model.generation_config.eos_token_id = None  # generate every token asked for
        self._model.generation_config.pad_token_id = 0

    @torch.inference_mode()
    def seconds(self, prompts: TokenPrompts, max_tokens: int) -> float:
        """See `base.Engine`. Prompts of one call must have one length: padding would cost it time."""
        assert len({len(ids) for ids in prompts}) == 1, "prompts of different lengths"
        ids = torch.tensor([list(prompt) for prompt in prompts])
        start = time.perf_counter()
        output = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False
        )
        seconds = time.perf_counter() - start
        made = output.shape[1] - ids.shape[1]
        if made != max_tokens:
            raise PeerUnavailable(f"transformers made {made} tokens instead of {max_tokens}")
        return seconds

    def environment(self) -> dict[str, Any]:
        """Versions and threads."""
        import transformers

        return {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "attention": self._model.config._attn_implementation,
        }
