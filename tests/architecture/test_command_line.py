"""The command line is a promise: commands and options change here first, and in the changelog."""

from __future__ import annotations

import click

from paceline.cli.main import app

ENGINE = [
    "--deterministic", "--no-deterministic", "--device", "--dtype", "--quantization", "--quantized-weights",
]  # fmt: skip
COMMON = ["--debug", "--json"]
TRAIN = ["CONFIG.yaml", *COMMON, "--device", "--plan"]

SURFACE = {
    "demo": [*COMMON, "--max-tokens", "--prompt", "--temperature"],
    "dequantize": ["MODEL", "OUT", *COMMON, "--dtype", "--force", "--resume", "--shard-size"],
    "evaluate": [
        "MODEL", *COMMON, "--against", "--device", "--max-tokens", "--plot", "--prompts",
        "--speculative-config", "--text",
    ],
    "generate": [
        "MODEL", *COMMON, *ENGINE, "--chat", "--no-chat", "--max-num-seqs", "--max-tokens", "--min-p",
        "--prompt", "--prompts", "--sampling", "--seed", "--speculative-config", "--temperature",
        "--top-k", "--top-p",
    ],
    "graft-mtp": ["BASE", "QUANTISED", *COMMON, "--force", "--out"],
    "inspect": ["MODEL", *COMMON],
    "quantize": [
        "MODEL", "OUT", *COMMON, "--calibration", "--device", "--force", "--legacy-ab", "--mtp", "--plan",
        "--recipe", "--requantize", "--resume", "--samples", "--scales", "--seq-len", "--shard-size",
    ],
    "serve": [
        "MODEL", *COMMON, *ENGINE, "--api-key", "--attention-backend", "--block-size", "--chat-template",
        "--config", "--drain-s", "--enable-auto-tool-choice", "--enable-chunked-prefill",
        "--enable-prefix-caching", "--generation-config", "--gpu-memory-utilization", "--host",
        "--host-swap-gib", "--kv-cache-dtype", "--limit-mm-per-prompt", "--load-format",
        "--mamba-cache-dtype", "--mamba-ssm-cache-dtype", "--max-body-mib", "--max-model-len",
        "--max-num-batched-tokens", "--max-num-seqs", "--max-queued-requests", "--mm-encoder-tp-mode",
        "--mm-processor-cache-type", "--mm-shm-cache-max-object-size-mb", "--no-enable-auto-tool-choice",
        "--no-enable-chunked-prefill", "--no-enable-prefix-caching", "--no-trust-remote-code",
        "--num-blocks", "--on-engine-failure", "--plan", "--port", "--prefix-checkpoint-interval",
        "--prefix-checkpoints",
        "--reasoning-parser", "--seed", "--served-model-name", "--speculative-config",
        "--tensor-parallel-size", "--tool-call-parser", "--trust-remote-code", "--watchdog-s",
    ],
    "train data": [*TRAIN, "--force", "--resume"],
    "train drafter": [*TRAIN, "--force", "--resume"],
    "train mtp": [*TRAIN, "--force", "--resume"],
    "train eval": [*TRAIN, "--seed"],
    "train target": [*TRAIN, "--force", "--resume"],
    "verify": [
        "MODEL", *COMMON, *ENGINE, "--batch", "--max-tokens", "--prompts", "--seeds", "--speculative-config",
        "--temperature",
    ],
}  # fmt: skip


def commands(group, prefix=""):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            assert command.help and command.short_help, name
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def options(command):
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            yield parameter.metavar
        else:
            yield from (*parameter.opts, *parameter.secondary_opts)


def test_the_surface_is_frozen():
    assert {name: sorted(options(command)) for name, command in commands(app)} == {
        name: sorted(names) for name, names in SURFACE.items()
    }


def test_every_option_explains_itself():
    for name, command in commands(app):
        assert command.help and command.short_help, name
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert parameter.help, f"{name} {parameter.name}"
