"""What a block may see: context strictly before its anchor and in its document, and itself.

Strictly, because the target's features at the anchor already encode the token after it: a mask with `<=`
trains wonderfully and drafts badly. In a sliding layer of window W the row at position p sees key position q
only if |p - q| < W, as in the engine. Causal layers show a block row only itself and earlier rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from paceline.train.draft.anchors import Anchors
from paceline.train.modules.drafter import Kind
from paceline.train.modules.layers import Mask

FLEX_BLOCK = 128
"""Side of FlexAttention's blocks: a block of scores that no row sees costs nothing."""
_FAR = 2**30


def draft_mask(anchors: Anchors, length: int, size: int, kind: Kind) -> Mask:
    """The mask of N blocks of `size` rows over `length` context rows and the block rows themselves: block
    form on a GPU, dense elsewhere. A block of an anchor that is not valid sees itself alone."""
    if anchors.positions.is_cuda:
        return flex_draft_mask(anchors, length, size, kind)
    return dense_draft_mask(anchors, length, size, kind)


def dense_draft_mask(anchors: Anchors, length: int, size: int, kind: Kind) -> Tensor:
    """`draft_mask` as bool [B, 1, N * size, length + N * size]; the readable one."""
    window, causal = kind
    device, count = anchors.positions.device, anchors.positions.shape[1]
    row = torch.arange(count * size, device=device)
    block, offset = row // size, row % size
    anchor, start, valid = (
        x[:, block].unsqueeze(-1) for x in (anchors.positions, anchors.starts, anchors.valid)
    )
    key = torch.arange(length, device=device)
    context = valid & (key < anchor) & (key >= start)  # [B, Q, T]
    own = block.unsqueeze(1) == block  # [Q, Q]
    if causal:
        own = own & (offset <= offset.unsqueeze(1))
    if window is not None:
        context = context & (anchor + offset.unsqueeze(-1) - key < window)
        own = own & ((offset.unsqueeze(1) - offset).abs() < window)
    return torch.cat([context, own.expand(context.shape[0], -1, -1)], -1).unsqueeze(1)


def flex_draft_mask(
    anchors: Anchors, length: int, size: int, kind: Kind, block: int = FLEX_BLOCK
) -> BlockMask:
    """`draft_mask` for FlexAttention.

    Which blocks hold anything is derived from the first and last key that each row sees; torch's generic
    builder would look at every pair of a row and a key.
    """
    window, causal = kind
    first, last = _context_range(anchors, size, window)
    end, start, rows = torch.where(anchors.valid, anchors.positions, 0), anchors.starts, first.shape[1]

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        number, offset, own = q // size, q % size, k - length
        seen = (k < length) & (k < end[b, number]) & (k >= start[b, number])
        same = (own >= 0) & (own // size == number)
        if causal:
            same = same & (own <= q)
        if window is not None:
            seen = seen & (end[b, number] + offset - k < window)
            same = same & ((own - q).abs() < window)
        return seen | same

    partial, whole = _touched(first, last, length, size, block)
    return BlockMask.from_kv_blocks(
        *_ordered(partial), *_ordered(whole),
        BLOCK_SIZE=block, mask_mod=visible, seq_lengths=(rows, length + rows),
    )  # fmt: skip


def _context_range(anchors: Anchors, size: int, window: int | None) -> tuple[Tensor, Tensor]:
    """First and last context key of each block row, [B, Q] each; (far, -1) where it sees none."""
    offset = torch.arange(size, device=anchors.positions.device)
    last = (anchors.positions - 1).unsqueeze(-1).expand(-1, -1, size)
    first = anchors.starts.unsqueeze(-1).expand_as(last)
    if window is not None:
        first = torch.maximum(first, last + 1 + offset - window + 1)
    seen = anchors.valid.unsqueeze(-1) & (first <= last)
    return torch.where(seen, first, _FAR).flatten(1), torch.where(seen, last, -1).flatten(1)


def _touched(first: Tensor, last: Tensor, length: int, size: int, block: int) -> tuple[Tensor, Tensor]:
    """Blocks [B, Q blocks, K blocks] that hold a pair to be computed, and those that all rows see whole."""
    rows = first.shape[1]
    spare = -rows % block
    lows = F.pad(first, (0, spare), value=_FAR).unflatten(1, (-1, block))
    highs = F.pad(last, (0, spare), value=-1).unflatten(1, (-1, block))
    begin = torch.arange(0, length + rows, block, device=first.device)
    stop = begin + block - 1
    some = (lows.amin(2).unsqueeze(-1) <= stop) & (highs.amax(2).unsqueeze(-1) >= begin)
    whole = (lows.amax(2).unsqueeze(-1) <= begin) & (highs.amin(2).unsqueeze(-1) >= stop)
    query = torch.arange(0, rows, block, device=first.device).unsqueeze(-1)
    own_first = length + query // size * size
    own_last = length + ((query + block - 1).clamp(max=rows - 1) // size + 1) * size - 1
    own = (own_first <= stop) & (own_last >= begin)
    return (some & ~whole) | own, whole


def _ordered(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Counts [B, 1, Q blocks] and indices, the marked ones first, as BlockMask takes them."""
    order = (~mask).to(torch.int8).argsort(dim=-1, stable=True).to(torch.int32)
    return mask.sum(-1, dtype=torch.int32).unsqueeze(1), order.unsqueeze(1)
