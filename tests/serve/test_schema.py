"""The OpenAPI document against the running server: whatever it allows, and what it forbids, gives no 5xx.

It needs schemathesis in this Python, or in the one that PACELINE_SCHEMATHESIS_PYTHON names.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.serve.harness import running

PYTHON = os.environ.get("PACELINE_SCHEMATHESIS_PYTHON", sys.executable)
EXAMPLES = int(os.environ.get("PACELINE_SCHEMATHESIS_EXAMPLES", "300"))
"""Random requests of each path at most, beside those at the edges of the schema."""
OPTIONS = [
    "--checks", "not_a_server_error", "--phases", "coverage,fuzzing", "--seed", "1", "--no-color",
    "--warnings", "off", "--generation-database", "none", "--suppress-health-check", "all",
]  # fmt: skip


def have_schemathesis():
    program = "import importlib.util as u, sys; sys.exit(u.find_spec('schemathesis') is None)"
    return subprocess.run([PYTHON, "-c", program], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not have_schemathesis(), reason=f"{PYTHON} has no schemathesis: run `make test-schema`")
def test_no_request_makes_the_server_fail(folder, tmp_path):
    with running(
        folder, max_model_len=128, max_num_seqs=4, tool_call_parser="qwen3_coder", reasoning_parser="qwen3",
        enable_auto_tool_choice=True, speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    ) as server:  # fmt: skip
        command = [PYTHON, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", *OPTIONS]
        result = subprocess.run(
            [*command, "-n", str(EXAMPLES)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        print(result.stdout[result.stdout.find("SUMMARY") :])
        assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
        assert server.metric("vllm:generation_tokens_total") > 0, "no request got through at all"
        server.at_rest()
