"""From a configuration to a running engine: read the specs, check the pairing, then load and allocate."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from paceline.cache.base import blocks_for
from paceline.cache.blocks import BlockPool
from paceline.cache.memory import derive_num_blocks, memory_budget
from paceline.cache.slots import SlotPool
from paceline.cache.swap import HostSwap
from paceline.cache.tensors import CacheShape, CacheTensors
from paceline.config.engine import PREFILL_CHUNK, EngineConfig
from paceline.engine.batch import BatchBuilder
from paceline.engine.core import Engine
from paceline.engine.detokenizer import TokenBytes
from paceline.engine.output import OutputProcessor
from paceline.engine.plan import SchedulerLimits
from paceline.engine.request import Request
from paceline.engine.runner import Runner
from paceline.engine.sampler_rows import SamplerRows
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence
from paceline.engine.step import StepParts
from paceline.engine.swapper import SequenceSwapper
from paceline.engine.tokenizer import TextTokenizer, load_tokenizer
from paceline.errors import CheckpointError, ConfigError
from paceline.models.hub import resolve_model
from paceline.models.registry import (
    load_drafter,
    load_mtp,
    load_target,
    read_drafter_spec,
    read_mtp_spec,
    read_target_spec,
)
from paceline.speculate.base import Proposer
from paceline.speculate.dflash import DFlashProposer
from paceline.speculate.mtp import MTPProposer
from paceline.speculate.ngram import NgramProposer
from paceline.speculate.processors import bad_word_ids
from paceline.speculate.sampler import Sampler, SamplingRequest

if TYPE_CHECKING:
    from paceline.models.base import TargetModel
    from paceline.models.spec import DrafterSpec, MTPSpec, TargetSpec

CPU_CACHE_SHARE = 0.5
"""Share of the free host memory that the cache may take."""
CUDA_CACHE_SHARE = 0.85
DEFAULT_DRAFT_METHOD: Literal["greedy", "coupled"] = "greedy"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration with every default decided, from headers alone."""

    config: EngineConfig
    folder: Path
    drafter_folder: Path | None
    device: torch.device
    deterministic: bool
    spec: TargetSpec
    drafter: DrafterSpec | None
    mtp: MTPSpec | None
    num_drafts: int
    max_model_len: int
    shape: CacheShape


def resolve(config: EngineConfig) -> Resolved:
    """Read what the folders say and decide every default; loads no weight.

    Raises the typed errors of `paceline.errors` for whatever does not fit together.
    """
    device = _device(config.model.device)
    folder = resolve_model(config.model.model)
    spec = read_target_spec(folder, config.model.dtype)
    drafter, mtp, drafter_folder, num_drafts = None, None, None, 0
    speculative = config.speculative
    if speculative:
        if speculative.method == "dflash":
            assert speculative.model is not None
            drafter_folder = resolve_model(speculative.model, "drafter")
            drafter = read_drafter_spec(drafter_folder, spec, speculative.num_speculative_tokens)
        elif speculative.method == "mtp":
            mtp = read_mtp_spec(folder, spec)
        num_drafts = speculative.draft_tokens(drafter.block_size if drafter else None)
    longest = config.model.max_model_len or spec.max_position
    if longest > spec.max_position:
        raise ConfigError(
            f"max_model_len = {longest} is more than this model's {spec.max_position} positions",
            key="max_model_len",
        )
    shape = CacheShape.of(
        spec, drafter, mtp,
        block_size=config.cache.block_size,
        num_drafts=num_drafts,
        kv_dtype=None if config.cache.kv_dtype == "auto" else getattr(torch, config.cache.kv_dtype),
    )  # fmt: skip
    return Resolved(
        config, folder, drafter_folder, device, config.is_deterministic(device.type),
        spec, drafter, mtp, num_drafts, longest, shape,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Assembled:
    """A loaded engine and what belongs to it."""

    resolved: Resolved
    engine: Engine
    target: TargetModel
    tensors: CacheTensors
    num_blocks: int
    tokenizer: TextTokenizer | None
    generation_config: dict[str, Any]


def assemble(config: EngineConfig) -> Assembled:
    """Load the models, allocate the cache and put the engine together."""
    resolved = resolve(config)
    generation_config = read_generation_config(resolved.folder)
    tokenizer = load_tokenizer(resolved.folder)
    target = load_target(
        resolved.folder,
        config.model.dtype,
        resolved.device,
        resolved.deterministic,
        max_positions=_positions(resolved),
    )
    num_blocks = config.cache.num_blocks or derive_num_blocks(
        resolved.shape,
        max_num_seqs=config.max_num_seqs,
        max_model_len=_positions(resolved),
        budget_bytes=memory_budget(
            resolved.device, share=CPU_CACHE_SHARE if resolved.device.type == "cpu" else CUDA_CACHE_SHARE
        ),
    )
    num_slots = config.max_num_seqs + 1
    tensors = CacheTensors.allocate(
        resolved.shape, num_blocks=num_blocks, num_slots=num_slots, device=resolved.device
    )
    proposer = _proposer(resolved, target, tensors, num_slots)
    engine = _engine(resolved, target, tensors, proposer, tokenizer, num_blocks)
    return Assembled(resolved, engine, target, tensors, num_blocks, tokenizer, generation_config)


def _engine(
    resolved: Resolved,
    target: TargetModel,
    tensors: CacheTensors,
    proposer: Proposer | None,
    tokenizer: TextTokenizer | None,
    num_blocks: int,
) -> Engine:
    config, spec = resolved.config, resolved.spec
    speculative = config.speculative
    known = min(spec.vocab_size, tokenizer.size) if tokenizer else spec.vocab_size
    sampler = Sampler(known, config.max_num_seqs + 1, resolved.device)

    def sampling(sequence: Sequence) -> SamplingRequest:
        words = bad_word_ids(sequence.params.bad_words, tokenizer.encode_bare) if tokenizer else ()
        return SamplingRequest(sequence.params, sequence.key, sequence.prompt_ids, spec.eos_ids, words)

    swap = HostSwap(tensors, limit_bytes=int(config.cache.host_swap_gib * 2**30))

    rows = SamplerRows(sampler, sampling)

    def export(sequence: Sequence) -> Any:
        return proposer.export_slot(sequence.slot) if proposer else None

    def import_(sequence: Sequence, state: Any) -> None:
        rows.open(sequence)
        if proposer:
            proposer.import_slot(sequence.slot, state)

    lookahead = proposer.lookahead if proposer else 0
    swapper = SequenceSwapper(
        swap,
        block_size=config.cache.block_size,
        lookahead=lookahead,
        export=export,
        import_=import_,
        leave=rows.close,
    )
    cell = PREFILL_CHUNK if resolved.deterministic else None
    limits = SchedulerLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=resolved.max_model_len,
        prefill_cell=cell,
        num_drafts=resolved.num_drafts,
        lookahead=lookahead,
        drafter_max_length=proposer.max_length if proposer else None,
    )
    scheduler = Scheduler(
        BlockPool(num_blocks, config.cache.block_size), SlotPool(config.max_num_seqs + 1), swapper, limits
    )
    runner = Runner(
        StepParts(target, tensors.target, sampler, proposer),
        BatchBuilder(
            block_size=config.cache.block_size,
            num_slots=config.max_num_seqs + 1,
            max_blocks=blocks_for(_positions(resolved), config.cache.block_size),
            device=resolved.device,
        ),
        cell,
        draft_method=(speculative and speculative.draft_sample_method) or DEFAULT_DRAFT_METHOD,
    )
    table = TokenBytes(tokenizer.backend) if tokenizer else None

    def make_output(request: Request) -> OutputProcessor:
        room = resolved.max_model_len - len(request.prompt_ids)
        return OutputProcessor(request.params, eos_ids=spec.eos_ids, table=table, max_tokens=room)

    method = speculative.method if speculative else None
    return Engine(scheduler, runner, make_output, rows, method, resolved.num_drafts)


def _proposer(
    resolved: Resolved, target: TargetModel, tensors: CacheTensors, num_slots: int
) -> Proposer | None:
    speculative = resolved.config.speculative
    if speculative is None:
        return None
    n, device = resolved.num_drafts, resolved.device
    if speculative.method == "ngram":
        assert speculative.prompt_lookup_min and speculative.prompt_lookup_max
        return NgramProposer(n, speculative.prompt_lookup_min, speculative.prompt_lookup_max, device)
    if speculative.method == "mtp":
        head = load_mtp(
            resolved.folder, target, device, resolved.deterministic, max_positions=_positions(resolved)
        )
        assert tensors.mtp is not None
        return MTPProposer(head, target, tensors.mtp, n, num_slots)
    assert resolved.drafter_folder is not None
    drafter = load_drafter(
        resolved.drafter_folder,
        resolved.spec,
        device,
        resolved.deterministic,
        num_speculative_tokens=n,
        max_positions=_positions(resolved),
    )
    return DFlashProposer(drafter, target, tensors.drafter, n)


def _positions(resolved: Resolved) -> int:
    """Positions that may be written: the model's length, the last window's drafts and the look-ahead
    behind it."""
    return resolved.max_model_len + resolved.num_drafts + 2


def _device(wanted: str) -> torch.device:
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ConfigError("device = 'cuda', but no CUDA device is available: use --device cpu", key="device")
    return torch.device("cuda" if wanted == "cuda" or (wanted == "auto" and available) else "cpu")


def read_generation_config(folder: Path) -> dict[str, Any]:
    """The folder's generation_config.json; empty where there is none."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return values
