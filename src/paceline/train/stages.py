"""The stages of a training run. Each reads what the stages before it wrote under ``out`` and leaves a log
there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from paceline.train import accept, corpus, dflash, export, manifest, mtp
from paceline.train import generate as generation
from paceline.train import tokenizer as bpe
from paceline.train.config import BudgetConfig
from paceline.train.optim import History, Optimizer, Windows, run_budget
from paceline.train.run import Run
from paceline.train.target import Target, head_loss

_EVAL_ROWS, _EVAL_LENGTH = 16, 512
_ACCEPT = {"sequences": 32, "prefix": 64, "length": 256}


Result = tuple[dict[str, Any], list[Path]]


def tokenizer(run: Run) -> Result:
    """Train the BPE on the training documents, encode all parts."""
    config = run.config
    parts = corpus.deal(corpus.read_documents(run.corpus, config), config.split)
    run.say(f"training on {len(parts['train'])} documents")
    tok = bpe.train_tokenizer((d.text for d in parts["train"]), config.tokenizer)
    folder = run.out / "target"
    bpe.save_tokenizer(tok, folder, config.target.max_position_embeddings)
    groups = {"train": parts["train"], "draft": parts["draft"] or parts["train"]}
    for kind in sorted({d.kind for d in parts["held_out"]}):
        groups[f"held_out:{kind}"] = [d for d in parts["held_out"] if d.kind == kind]
    streams = {name: corpus.encode(tok, docs, bpe.EOS_ID) for name, docs in groups.items()}
    (run.out / "work").mkdir(parents=True, exist_ok=True)
    np.savez_compressed(run.out / "work" / "tokens.npz", allow_pickle=False, **streams)
    facts = {
        "vocabulary": tok.get_vocab_size(),
        "documents": {name: len(docs) for name, docs in groups.items()},
        "tokens": {name: int(s.size) for name, s in streams.items()},
        "bytes_per_token": {
            name: round(sum(len(d.text.encode()) for d in docs) / streams[name].size, 4)
            for name, docs in groups.items()
        },
    }
    return facts, [folder / "tokenizer.json", folder / "tokenizer_config.json"]


def _train(run: Run, module: nn.Module, budget: BudgetConfig, loss_of: Callable[[], Tensor]) -> History:
    count = sum(p.numel() for p in module.parameters())
    run.say(
        f"{count / 1e6:.2f} M parameters, {budget.seconds:.0f}s or {budget.max_steps} steps on {run.device}"
    )
    history = run_budget(loss_of, Optimizer(module, budget), budget, run.say)
    rate = history.steps / max(history.seconds, 1e-9)
    loss, warm = history.losses[-1][1], history.compile_seconds
    run.say(f"{history.steps} steps, {rate:.1f} steps/s, warm-up {warm:.0f}s, loss {loss:.3f}")
    return history


@torch.no_grad()
def held_out_loss(model: Target, stream: Tensor) -> float:
    """nat a token over up to 16 windows of 512."""
    length = min(_EVAL_LENGTH, stream.numel() - 1)
    rows = max(1, min(_EVAL_ROWS, (stream.numel() - 1) // length))
    ids = stream[: rows * length + 1].long()
    hidden, _ = model(ids[:-1].view(rows, length))
    return float(head_loss(hidden, model.embed_tokens.weight, ids[1:].view(rows, length)))


def target(run: Run) -> Result:
    """Train the hybrid, export it in bf16, measure the exported weights on held-out text."""
    c, streams = run.config.target, run.tokens()
    torch.manual_seed(c.training.seed)
    model = Target(c, run.compute).to(run.device)
    loss_fn: Callable[..., Tensor] = head_loss
    if run.device.type == "cuda":
        model.compile_blocks()
        loss_fn = torch.compile(head_loss, fullgraph=True, dynamic=False)
    windows = Windows(streams["train"], c.sequence_length, c.training.seed)

    def loss_of() -> Tensor:
        batch = windows.batch(c.training.batch_size)
        hidden, _ = model(batch[:, :-1].contiguous())
        return loss_fn(hidden, model.embed_tokens.weight, batch[:, 1:].contiguous())

    history = _train(run, model, c.training, loss_of)
    folder = run.out / "target"
    export.save_weights(run.model_file, export.named(model, "model."))
    export.write_json(folder / "config.json", export.target_json(c))
    export.write_json(folder / "generation_config.json", export.generation_json())
    exported = run.target()
    held = {n: round(held_out_loss(exported, s), 4) for n, s in streams.items() if n.startswith("held_out")}
    run.say(f"held-out nat/token {held}")
    tokens = history.steps * c.training.batch_size * windows.length
    facts = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained_tokens": tokens,
        "passes": round(tokens / streams["train"].numel(), 2),
        "held_out_nat_per_token": held,
    }
    files = [run.model_file, folder / "config.json", folder / "generation_config.json"]
    return {**history.record(), **facts}, files


def data(run: Run) -> Result:
    """Let the target continue corpus prefixes."""
    streams = run.tokens()
    model = run.target()
    vocab = run.config.tokenizer.vocab_size
    run.forget_continuations()
    made = generation.generate(model, streams["train"], streams["draft"], run.config.data, vocab, run.say)
    np.savez(
        run.out / "work" / "continuations.npz",
        ids=made["ids"].numpy().astype(np.uint16),
        prefix=made["prefix"].numpy(),
    )
    tok = Tokenizer.from_file(str(run.out / "target" / "tokenizer.json"))
    sample = [
        tok.decode(row.tolist(), skip_special_tokens=False)
        for row in made["ids"][:: max(1, len(made["ids"]) // 6)]
    ]
    return {"sequences": len(made["ids"]), "tokens": made["ids"].numel(), "samples": sample}, []


def mtp_stage(run: Run) -> Result:
    """Train the MTP head on the continuations and add it to the target's file."""
    c, model = run.config.mtp, run.target()
    made = run.continuations(model, c.training)
    torch.manual_seed(c.training.seed)
    head = mtp.MTPHead(run.config.target).to(run.device)

    def loss_of() -> Tensor:
        rows = made.batch()
        ids = made.ids[rows].long()
        labels = mtp.mtp_labels(ids, made.prefix[rows], c.steps)
        return mtp.mtp_loss(head, made.hidden[rows], model.embed(ids), model.embed_tokens.weight, labels)

    history = _train(run, head, c.training, loss_of)
    export.save_weights(run.model_file, {**export.named(model, "model."), **export.named(head, "mtp.")})
    facts = {"parameters": sum(p.numel() for p in head.parameters()), "passes": made.passes + 1}
    return {**history.record(), **facts}, [run.model_file]


def drafter_stage(run: Run) -> Result:
    """Train the DFlash drafter on the continuations and export it."""
    d, model = run.config.drafter, run.target()
    made = run.continuations(model, d.training)
    torch.manual_seed(d.training.seed)
    drafter = dflash.Drafter(d, run.config.target).to(run.device)
    table = model.embed_tokens.weight.to(run.compute)

    def loss_of() -> Tensor:
        rows = made.batch()
        ids = made.ids[rows].long()
        anchors = dflash.random_anchors(made.prefix[rows], ids.shape[1], d.num_anchors, made.generator)
        block = dflash.block_inputs(ids, anchors, table, d.mask_token_id, d.block_size)
        labels = dflash.block_labels(ids, anchors, d.block_size)
        return dflash.dflash_loss(drafter, made.features[rows], anchors, block, labels, table)

    history = _train(run, drafter, d.training, loss_of)
    export.save_weights(run.drafter_file, export.named(drafter, ""))
    settings = run.drafter_file.with_name("config.json")
    export.write_json(settings, export.drafter_json(d, run.config.target))
    facts = {"parameters": sum(p.numel() for p in drafter.parameters()), "passes": made.passes + 1}
    return {**history.record(), **facts}, [run.drafter_file, settings]


def accept_stage(run: Run) -> Result:
    """Acceptance of both proposers on continuations of held-out text, greedy and sampled."""
    c, streams = run.config, run.tokens()
    model = run.target()
    head = mtp.MTPHead(c.target).to(run.device).requires_grad_(False)
    export.load_weights(head, run.model_file, "mtp.")
    drafter = dflash.Drafter(c.drafter, c.target).to(run.device).requires_grad_(False)
    export.load_weights(drafter, run.drafter_file, "")
    result: dict[str, Any] = {}
    for name, stream in streams.items():
        if not name.startswith("held_out"):
            continue
        first, count = _ACCEPT["prefix"], _ACCEPT["sequences"]
        starts = (
            torch.linspace(0, max(0, stream.numel() - first - 1), count, device=run.device).long().unique()
        )
        prefix = stream[
            starts.unsqueeze(1) + torch.arange(min(first, stream.numel()), device=run.device)
        ].long()
        for label, heat in (("greedy", 0.0), ("T=0.8", 0.8)):
            key = f"{name.partition(':')[2]} {label}"
            result[key] = accept.measure(
                model, head, c.mtp.steps, drafter, prefix, _ACCEPT["length"], c.tokenizer.vocab_size, heat
            )
            run.say(f"{key}: {result[key]}")
    return {"acceptance": result}, []


def manifest_stage(run: Run) -> Result:
    """Write manifest.json from what lies under ``out``."""
    path = run.out / "manifest.json"
    export.write_json(path, manifest.build(run.config, run.corpus, run.out))
    return {}, [path]


STAGES: dict[str, Callable[[Run], Result]] = {
    "tokenizer": tokenizer,
    "target": target,
    "data": data,
    "mtp": mtp_stage,
    "drafter": drafter_stage,
    "accept": accept_stage,
    "manifest": manifest_stage,
}


def do(run: Run, stage: str) -> None:
    """Run one stage and write its log."""
    run.stage, start = stage, time.perf_counter()
    facts, files = STAGES[stage](run)
    record = {
        "stage": stage,
        "seconds": round(time.perf_counter() - start, 2),
        **export.environment(run.device),
        **facts,
        "corpus": {p.name: export.sha256(p) for p, _ in corpus.source_files(run.corpus, run.config)},
        "files": {str(f.relative_to(run.out)): export.sha256(f) for f in files},
        "config": run.config.model_dump(mode="json"),
    }
    export.write_json(run.out / "logs" / f"{stage}.json", record)
    run.say(f"done in {record['seconds']}s")
