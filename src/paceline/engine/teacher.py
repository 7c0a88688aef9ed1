"""Teacher forcing: the logits after every token of a given text, in one read through the target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from paceline.cache.base import blocks_for
from paceline.cache.tensors import CacheShape, CacheTensors
from paceline.config.engine import PREFILL_CHUNK
from paceline.config.sampling import SamplingParams
from paceline.engine.batch import BatchBuilder
from paceline.engine.plan import PrefillChunk
from paceline.engine.request import check_prompt
from paceline.engine.sequence import Sequence

if TYPE_CHECKING:
    from paceline.engine.assemble import Assembled
    from paceline.models.base import TargetModel


def teacher_forced_logits(parts: Assembled, token_ids: list[int]) -> torch.Tensor:
    """[T, V] float32 logits after each token, on the CPU; uses a small cache of its own.

    Raises `RequestError` for ids that the model has not and for more tokens than it has positions.
    """
    resolved = parts.resolved
    check_prompt(token_ids, resolved.spec.vocab_size, resolved.max_model_len + 1)
    pieces = teacher_forced_hidden(parts.target, resolved.shape, resolved.device, token_ids)
    return torch.cat([parts.target.logits(hidden).cpu() for hidden in pieces])


def teacher_forced_hidden(
    target: TargetModel, shape: CacheShape, device: torch.device, token_ids: list[int]
) -> Iterator[torch.Tensor]:
    """Final hidden states after each token in order, in pieces [at most 64, H] on the model's device."""
    block_size = shape.block_size
    count = blocks_for(len(token_ids), block_size)
    tensors = CacheTensors.allocate(shape, num_blocks=count + 1, num_slots=2, device=device)
    builder = BatchBuilder(block_size=block_size, num_slots=2, max_blocks=count, device=device)
    sequence = Sequence("teacher", 0, token_ids, SamplingParams(), key=0)
    sequence.slot = 1
    sequence.set_blocks(list(range(1, count + 1)))
    for start in range(0, len(token_ids), PREFILL_CHUNK):
        size = min(PREFILL_CHUNK, len(token_ids) - start)
        batch = builder.build_prefill([PrefillChunk(sequence, start, size)])
        ids = torch.tensor(token_ids[start : start + size], device=device)
        yield target.forward(ids, batch, tensors.target).hidden
