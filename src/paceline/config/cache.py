"""How much is kept for running sequences, and in what form."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from paceline.config.base import StrictModel


class CacheConfig(StrictModel):
    """Blocks of attention KV, slots of recurrent state, and the host memory behind them."""

    block_size: int = Field(64, ge=8, multiple_of=8, description="Tokens a KV block holds; a multiple of 8.")
    num_blocks: int | None = Field(
        None,
        ge=2,
        description="KV blocks in all, the null block included; absent: enough for max_num_seqs, "
        "as far as memory goes.",
    )
    enable_prefix_caching: bool = Field(
        False,
        description="Reuse the KV and the recurrent state of what was read before and, outside deterministic "
        "mode, of what was written.",
    )
    prefix_checkpoints: int | None = Field(
        None,
        ge=1,
        description="Recurrent states kept for reuse, each as large as a running sequence's; the one used "
        "longest ago goes first. Absent: as many as max_num_seqs, twice as many outside deterministic mode "
        "(where answers leave one too), at least 4. Models without recurrent layers need none.",
    )
    prefix_checkpoint_interval: int | None = Field(
        None,
        ge=8,
        multiple_of=8,
        description="Keep a recurrent state every so many tokens too, besides those at the ends of prompts "
        "and answers and where prompts part; a multiple of block_size, and of 64 in deterministic mode.",
    )
    host_swap_gib: float = Field(
        4.0, ge=0.0, le=2**20, allow_inf_nan=False, description="Host memory for preempted sequences, in GiB."
    )
    gpu_memory_utilization: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of the GPU's memory that weights and cache may take; "
        "absent: 85 % of what is free after loading.",
    )
    kv_dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="How KV is stored; auto: as the model computes."
    )
    state_dtype: Literal["float32"] = Field(
        "float32",
        description="How the recurrent state is stored. Anything below float32 would make the text depend on "
        "how tokens were grouped into windows.",
    )
