"""Continuations of corpus prefixes by the target itself: the text that drafters learn from."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from paceline.train.config import DataConfig
from paceline.train.target import Target


@torch.no_grad()
def continue_rows(
    target: Target,
    prefix: Tensor,
    length: int,
    temperature: Callable[[int], Tensor],
    vocab: int,
    gen: torch.Generator,
) -> Tensor:
    """Extend prefix [B, P] to [B, length] with the target's cached steps.

    ``temperature(i)`` gives [B] for the i-th new token; 0 is greedy. Ids from ``vocab`` on are never
    produced.
    """
    caches = target.make_caches(prefix.shape[0], length)
    out = torch.zeros(prefix.shape[0], length, dtype=torch.long, device=prefix.device)
    start = prefix.shape[1]
    out[:, :start] = prefix
    hidden = target.step(prefix, 0, caches)
    for pos in range(start, length):
        logits = target.logits(hidden)
        logits[:, vocab:] = float("-inf")
        heat = temperature(pos - start).unsqueeze(1)
        noise = torch.rand(logits.shape, device=logits.device, generator=gen).clamp_(1e-9, 1 - 1e-7)
        out[:, pos] = (logits - heat * (-noise.log()).log()).argmax(-1)
        if pos + 1 < length:
            hidden = target.step(out[:, pos : pos + 1], pos, caches)
    return out


def _prefixes(stream: Tensor, rows: int, length: int, gen: torch.Generator) -> Tensor:
    starts = torch.randint(0, stream.numel() - length, (rows,), device=stream.device, generator=gen)
    return stream[starts.unsqueeze(1) + torch.arange(length, device=stream.device)].long()


def generate(
    target: Target, train: Tensor, pool: Tensor, config: DataConfig, vocab: int, say: Callable[[str], None]
) -> dict[str, Tensor]:
    """``ids`` [n, length] and ``prefix`` [n]: rows until ``sequences`` are made or ``seconds`` are over.

    Prefixes come from ``pool`` (unseen by the target) for ``pool_share`` of the rows and from ``train`` for
    the rest.
    """
    gen = torch.Generator(device=train.device).manual_seed(config.seed)
    start = time.perf_counter()
    ids: list[Tensor] = []
    prefixes: list[Tensor] = []
    done = batches = 0
    while done < config.sequences and (time.perf_counter() - start < config.seconds or not ids):
        rows = min(config.batch_size, config.sequences - done)
        length = config.prefix_lengths[batches % len(config.prefix_lengths)]
        fresh = int(rows * config.pool_share)
        prefix = torch.cat([_prefixes(pool, fresh, length, gen), _prefixes(train, rows - fresh, length, gen)])
        draw = torch.rand(rows, device=train.device, generator=gen)
        sampled = (draw < config.sampled).float() * config.temperature
        started = ((draw >= config.sampled) & (draw < config.sampled + config.started)).float()

        def heat(i: int, sampled: Tensor = sampled, started: Tensor = started) -> Tensor:
            return sampled + started if i < config.started_tokens else sampled

        out = continue_rows(target, prefix, config.length, heat, vocab, gen)
        ids.append(out.to(torch.int32).cpu())
        prefixes.append(torch.full((rows,), length, dtype=torch.int32))
        done, batches = done + rows, batches + 1
        say(f"{done} sequences, {time.perf_counter() - start:.1f}s")
    return {"ids": torch.cat(ids), "prefix": torch.cat(prefixes)}
