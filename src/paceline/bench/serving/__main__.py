"""`python -m paceline.bench.serving --out FILE.json`: the server's figures, in one run; FILE.md beside it.

The server and the offline engine get the same threads; the client and the HTTP process share what is left.
Exit code: 0 when the run came to its end, whatever it found (the rows say what was met); 2 for bad usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import ConfigError, explained

DRAFTER = '{"method": "dflash", "model": "demo"}'
PROMPTS = Path(__file__).parents[1] / "prompts.jsonl"


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    made = argparse.ArgumentParser(prog="python -m paceline.bench.serving", description=__doc__)
    made.add_argument("--out", type=Path, required=True, help="JSON file to write: a list of rows")
    made.add_argument("--model", default="demo", help="folder of the model, or `demo` (default)")
    made.add_argument("--speculative-config", default=DRAFTER, help=f"default: {DRAFTER}; `none`: no drafts")
    made.add_argument("--chat-template", type=Path, help="Jinja file, for a model that has no chat template")
    made.add_argument("--requests", type=int, default=2000, help="requests of the mixed load (default 2000)")
    made.add_argument("--clients", type=int, default=64, help="clients at once (default 64)")
    made.add_argument("--reps", type=int, default=5, help="repetitions of the timed rows (default 5)")
    made.add_argument("--max-num-seqs", type=int, default=16, help="sequences at once (default 16)")
    made.add_argument("--max-model-len", type=int, default=4096, help="context (default 4096)")
    made.add_argument("--prefix-tokens", type=int, default=3000, help="length of the known prefix")
    made.add_argument(
        "--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1),
        help="threads of each engine (default: all cores but one, which is for HTTP and the client)",
    )  # fmt: skip
    return made


@explained
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    asked = parser().parse_args(arguments)
    if asked.reps < 1 or asked.requests < 1 or asked.clients < 1 or asked.threads < 1:
        parser().error("--reps, --requests, --clients and --threads must be at least 1")
    # Children read these when they load torch: both engines wait and compute in the same way.
    os.environ |= {"OMP_NUM_THREADS": str(asked.threads), "OMP_WAIT_POLICY": "passive"}
    from paceline.bench import report, workload
    from paceline.bench.rows import write
    from paceline.bench.serving import suite
    from paceline.bench.serving.offline import EngineSettings

    try:
        template = asked.chat_template.read_text(encoding="utf-8") if asked.chat_template else None
    except UnicodeDecodeError:
        raise ConfigError(f"{asked.chat_template} is not UTF-8", key="chat_template") from None
    try:
        speculative = None if asked.speculative_config == "none" else json.loads(asked.speculative_config)
    except ValueError as error:
        raise ConfigError(f"--speculative-config is no JSON: {error}", key="speculative_config") from error
    options = suite.Options(
        engine=EngineSettings(asked.model, speculative, asked.max_num_seqs, asked.max_model_len, template),
        # Characters, so that even a tokenizer of single letters leaves room for template and answer.
        texts=[prompt.text[: asked.max_model_len // 8] for prompt in workload.read_prompts(PROMPTS)],
        requests=asked.requests,
        early=max(1, asked.requests // 10),
        clients=asked.clients,
        reps=asked.reps,
        prefix_tokens=asked.prefix_tokens,
        chat_template_file=str(asked.chat_template) if asked.chat_template else None,
    )
    rows = suite.run(options)
    env = suite.environment()
    write(asked.out, rows, env)
    text = report.markdown([row.to_json(env) for row in rows])
    asked.out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(report.terminal(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
