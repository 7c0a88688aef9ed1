"""From a configuration to a running engine: resolve, load the models, allocate the cache, put it together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from paceline import kernels
from paceline.cache.base import blocks_for
from paceline.cache.blocks import BlockPool
from paceline.cache.checkpoints import CheckpointStore
from paceline.cache.memory import derive_num_blocks, memory_budget, utilization_budget
from paceline.cache.slots import SlotPool
from paceline.cache.swap import HostSwap
from paceline.cache.tensors import CacheTensors
from paceline.config.engine import EngineConfig
from paceline.config.speculative import SpeculativeConfig
from paceline.engine.batch import BatchBuilder
from paceline.engine.buckets import BucketCache
from paceline.engine.core import Engine
from paceline.engine.detokenizer import TokenBytes
from paceline.engine.grammar import Grammars
from paceline.engine.output import OutputProcessor
from paceline.engine.plan import SchedulerLimits
from paceline.engine.prefix import PrefixReuse
from paceline.engine.request import Request
from paceline.engine.resolve import Resolved, read_generation_config, resolve
from paceline.engine.runner import Runner
from paceline.engine.sampler_rows import SamplerRows
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence
from paceline.engine.step import StepParts
from paceline.engine.swapper import SequenceSwapper
from paceline.engine.tokenizer import TextTokenizer, load_tokenizer
from paceline.models.registry import load_drafter, load_mtp, load_target
from paceline.speculate.base import Proposer
from paceline.speculate.dflash import DFlashProposer
from paceline.speculate.mtp import MTPProposer
from paceline.speculate.ngram import NgramProposer
from paceline.speculate.processors import bad_word_ids
from paceline.speculate.sampler import Sampler, SamplingRequest

if TYPE_CHECKING:
    from paceline.models.base import TargetModel

CACHE_SHARE = {"cpu": 0.5, "cuda": 0.85}
"""Share of the memory that is free after loading which the cache may take."""
DraftMethod = Literal["greedy", "coupled"]
DEFAULT_DRAFT_METHOD: DraftMethod = "coupled"
"""Measured on the demo: longer acceptance at every temperature tried (docs/guides/speculation.md)."""


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
    """Load everything that a configuration names. Raises the typed errors of `paceline.errors`."""
    resolved = resolve(config)
    if resolved.device.type == "cpu":
        kernels.prepare()
    generation_config = read_generation_config(resolved.folder)
    tokenizer = load_tokenizer(resolved.folder)
    target = load_target(
        resolved.folder,
        config.model.dtype,
        resolved.device,
        resolved.deterministic,
        max_positions=resolved.positions,
        quantization=config.model.quantization,
        keep_packed=resolved.keep_packed,
    )
    return build(resolved, target, tokenizer, generation_config)


def build(
    resolved: Resolved,
    target: TargetModel,
    tokenizer: TextTokenizer | None,
    generation_config: dict[str, Any],
    proposer: Proposer | None = None,
) -> Assembled:
    """Put an engine around a loaded target; `proposer` replaces the configured one (tests, benchmarks)."""
    num_blocks = resolved.config.cache.num_blocks or _derive_blocks(resolved)
    tensors = CacheTensors.allocate(
        resolved.shape,
        num_blocks=num_blocks,
        num_slots=_num_slots(resolved) + resolved.num_checkpoints,
        device=resolved.device,
    )
    parts = StepParts(
        target,
        tensors.target,
        Sampler(_known_ids(resolved, tokenizer), _num_slots(resolved), resolved.device),
        proposer or _proposer(resolved, target, tensors),
    )
    rows = SamplerRows(parts.sampler, _sampling(resolved, tokenizer))
    swapper = _swapper(resolved, parts, tensors, rows)
    speculative = resolved.config.speculative
    blocks = BlockPool(num_blocks, resolved.config.cache.block_size)
    prefix = _prefix(resolved, parts, tensors, blocks)
    table = TokenBytes(tokenizer.backend) if tokenizer else None
    engine = Engine(
        _scheduler(resolved, parts, swapper, blocks, prefix),
        _runner(resolved, parts, prefix),
        _outputs(resolved, table),
        rows,
        speculative.method if speculative else None,
        resolved.num_drafts,
        Grammars(table, parts.sampler.vocab, resolved.spec.eos_ids) if table else None,
    )
    return Assembled(resolved, engine, target, tensors, num_blocks, tokenizer, generation_config)


def _prefix(
    resolved: Resolved, parts: StepParts, tensors: CacheTensors, blocks: BlockPool
) -> PrefixReuse | None:
    cache = resolved.config.cache
    if not cache.enable_prefix_caching:
        return None
    store = None
    if count := resolved.num_checkpoints:
        store = CheckpointStore(tensors, _num_slots(resolved), count)
    return PrefixReuse(
        blocks,
        store,
        parts.proposer,
        deterministic=resolved.deterministic,
        interval=cache.prefix_checkpoint_interval if store is not None else None,
    )


def _num_slots(resolved: Resolved) -> int:
    return resolved.config.max_num_seqs + 1  # slot 0 is the null slot


def _known_ids(resolved: Resolved, tokenizer: TextTokenizer | None) -> int:
    """Ids that may be sampled: the embedding table may have more rows than the tokenizer has ids."""
    size = resolved.spec.vocab_size
    return min(size, tokenizer.size) if tokenizer else size


def _derive_blocks(resolved: Resolved) -> int:
    kind, wanted = resolved.device.type, resolved.config.cache.gpu_memory_utilization
    if wanted is not None and kind == "cuda":
        budget = utilization_budget(resolved.device, wanted)
    else:
        budget = memory_budget(resolved.device, share=CACHE_SHARE[kind])
    return derive_num_blocks(
        resolved.shape,
        max_num_seqs=resolved.config.max_num_seqs,
        max_model_len=resolved.positions,
        budget_bytes=budget - resolved.num_checkpoints * resolved.shape.bytes_per_slot,
    )


def _sampling(resolved: Resolved, tokenizer: TextTokenizer | None) -> Any:
    """What the sampler must know of a sequence."""

    def describe(sequence: Sequence) -> SamplingRequest:
        words = bad_word_ids(sequence.params.bad_words, tokenizer.encode_bare) if tokenizer else ()
        return SamplingRequest(
            sequence.params, sequence.key, sequence.prompt_ids, resolved.spec.eos_ids, words
        )

    return describe


def _outputs(resolved: Resolved, table: TokenBytes | None) -> Any:
    """Makes the output processor of each choice."""

    def make(request: Request) -> OutputProcessor:
        room = resolved.max_model_len - len(request.prompt_ids)
        return OutputProcessor(request.params, eos_ids=resolved.spec.eos_ids, table=table, max_tokens=room)

    return make


def _swapper(
    resolved: Resolved, parts: StepParts, tensors: CacheTensors, rows: SamplerRows
) -> SequenceSwapper:
    proposer, cache = parts.proposer, resolved.config.cache

    def export(sequence: Sequence) -> Any:
        return proposer.export_slot(sequence.slot) if proposer else None

    def import_(sequence: Sequence, state: Any) -> None:
        rows.open(sequence)
        if proposer:
            proposer.import_slot(sequence.slot, state)

    return SequenceSwapper(
        HostSwap(tensors, limit_bytes=int(cache.host_swap_gib * 2**30)),
        block_size=cache.block_size,
        lookahead=proposer.lookahead if proposer else 0,
        export=export,
        import_=import_,
        leave=rows.close,
    )


def _scheduler(
    resolved: Resolved,
    parts: StepParts,
    swapper: SequenceSwapper,
    blocks: BlockPool,
    prefix: PrefixReuse | None,
) -> Scheduler:
    config, proposer = resolved.config, parts.proposer
    limits = SchedulerLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=resolved.max_model_len,
        prefill_cell=resolved.prefill_cell,
        num_drafts=resolved.num_drafts,
        lookahead=proposer.lookahead if proposer else 0,
        draft_span=proposer.draft_span if proposer else 0,
        drafter_max_length=proposer.max_length if proposer else None,
    )
    return Scheduler(blocks, SlotPool(_num_slots(resolved)), swapper, limits, prefix=prefix)


def _runner(resolved: Resolved, parts: StepParts, prefix: PrefixReuse | None) -> Runner:
    config, device = resolved.config, resolved.device
    speculative = config.speculative
    draft_method = (speculative and speculative.draft_sample_method) or DEFAULT_DRAFT_METHOD
    buckets = None
    if device.type == "cuda" and not (parts.proposer and parts.proposer.needs_history):
        buckets = BucketCache(
            parts,
            block_size=config.cache.block_size,
            num_drafts=resolved.num_drafts,
            device=device,
            draft_method=draft_method,
        )
    batches = BatchBuilder(
        block_size=config.cache.block_size,
        num_slots=_num_slots(resolved),
        max_blocks=blocks_for(resolved.positions, config.cache.block_size),
        device=device,
    )
    return Runner(parts, batches, resolved.prefill_cell, draft_method, buckets, prefix)


def _proposer(resolved: Resolved, target: TargetModel, tensors: CacheTensors) -> Proposer | None:
    speculative = resolved.config.speculative
    if speculative is None:
        return None
    proposer = _drafting(resolved, speculative, target, tensors)
    proposer.looks_back = resolved.looks_back
    return proposer


def _drafting(
    resolved: Resolved, speculative: SpeculativeConfig, target: TargetModel, tensors: CacheTensors
) -> Proposer:
    n, device, deterministic = resolved.num_drafts, resolved.device, resolved.deterministic
    if speculative.method == "ngram":
        assert speculative.prompt_lookup_min and speculative.prompt_lookup_max
        return NgramProposer(n, speculative.prompt_lookup_min, speculative.prompt_lookup_max, device)
    if speculative.method == "mtp":
        assert tensors.mtp is not None
        head = load_mtp(
            resolved.folder,
            target,
            device,
            deterministic,
            max_positions=resolved.positions,
            quantization=resolved.config.model.quantization,
            keep_packed=resolved.keep_packed,
        )
        return MTPProposer(head, target, tensors.mtp, n, _num_slots(resolved))
    assert resolved.drafter_folder is not None
    drafter = load_drafter(
        resolved.drafter_folder,
        resolved.spec,
        device,
        deterministic,
        num_speculative_tokens=n,
        max_positions=resolved.positions,
        keep_packed=resolved.keep_packed,
    )
    return DFlashProposer(drafter, target, tensors.drafter, n)
