"""Runs inside the peer's own interpreter, as a script: answers timed requests with vLLM, a JSON line each.

argv[1]: JSON keyword arguments of `vllm.LLM`. stdin: {"prompts": [[id, ...], ...], "max_tokens": N} a line;
the end of stdin ends it. stdout: first {"ready": ...} or nothing at all, then {"seconds": S, "tokens": N} a
request. Imports nothing of paceline: it is not installed there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, TextIO

# A script's own folder comes first on the path, and ours holds a vllm.py: `import vllm` must not find it.
sys.path[:] = [
    entry for entry in sys.path if os.path.abspath(entry) != os.path.dirname(os.path.abspath(__file__))
]


def main() -> None:
    """Load the model, say so, then serve requests."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM and its processes print to stdout; the replies' stream must stay clean
    began = time.perf_counter()
    import torch
    import vllm

    llm = vllm.LLM(**json.loads(sys.argv[1]))
    ready = {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "start_seconds": round(time.perf_counter() - began, 1),
    }
    _reply(replies, {"ready": ready})
    for line in sys.stdin:
        _reply(replies, _answer(llm, vllm.SamplingParams, json.loads(line)))


def _answer(llm: Any, sampling_params: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Time one batch. No detokenisation: only the model's work counts for the peer."""
    count = request["max_tokens"]
    params = sampling_params(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "tokens": sum(len(output.outputs[0].token_ids) for output in outputs)}


def _reply(stream: TextIO, value: dict[str, Any]) -> None:
    stream.write(json.dumps(value) + "\n")
    stream.flush()


if __name__ == "__main__":  # vLLM spawns processes that import this file again
    main()
