"""`paceline serve`: plans, options and their files, refusals; and a real server, started and stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import httpx2
import pytest

from tests.tiny import make_target

RECIPE = [
    "--mamba-cache-dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "4",
    "--max-num-batched-tokens", "512", "--gpu-memory-utilization", "0.70", "--enable-chunked-prefill",
    "--enable-prefix-caching", "--generation-config", "vllm", "--load-format", "safetensors",
    "--trust-remote-code", "--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder",
    "--reasoning-parser", "qwen3", "--attention-backend", "flash_attn", "--kv-cache-dtype", "auto",
    "--limit-mm-per-prompt", '{"image":4,"video":2}', "--mm-encoder-tp-mode", "data",
    "--mm-processor-cache-type", "shm", "--mm-shm-cache-max-object-size-mb", "256",
    "--speculative-config", '{"method":"mtp","num_speculative_tokens":2}', "--tensor-parallel-size", "1",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(make_target(tmp_path_factory.mktemp("serve") / "tiny"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A working directory of its own: ./paceline.yaml is read where there is one."""
    monkeypatch.chdir(tmp_path)


def plan(paceline, folder, *flags):
    result = paceline("serve", folder, "--device", "cpu", "--plan", "--json", *flags)
    assert result.code == 0, result.err
    return result.rows[0], result.err


def test_the_published_recipe_resolves_and_every_flag_is_answered(paceline, folder):
    what, err = plan(paceline, folder, *RECIPE)
    assert what["drafts"]["num_speculative_tokens"] == 2
    assert what["settings"]["max_num_seqs"] == {"value": 4, "from": "command line"}
    assert what["settings"]["block_size"]["from"] == "default"
    without_effect = re.findall(r"--([\w-]+):", err)
    assert sorted(without_effect) == [
        "attention-backend", "gpu-memory-utilization", "limit-mm-per-prompt", "mm-encoder-tp-mode",
        "mm-processor-cache-type", "mm-shm-cache-max-object-size-mb", "trust-remote-code",
    ]  # fmt: skip


def test_the_memory_budget_adds_up(paceline, folder):
    memory = plan(paceline, folder, *RECIPE)[0]["memory"]
    parts = ("weights", "mtp_head", "drafter", "kv_blocks", "recurrent_slots", "checkpoints", "workspace")
    assert sum(memory[part] for part in parts) == memory["total"]
    assert memory["kv_blocks"] == memory["num_blocks"] * memory["bytes_per_block"]
    assert memory["mtp_head"] > 0 and memory["drafter"] == 0
    off = plan(paceline, folder, "--no-enable-prefix-caching", "--num-blocks", "9")[0]["memory"]
    assert (off["num_blocks"], off["checkpoints"], off["mtp_head"]) == (9, 0, 0)


def test_a_plan_that_does_not_fit_shows_the_budget_all_the_same(paceline, folder):
    flags = ("--max-num-seqs", "100000000", "--max-num-batched-tokens", "100000000")
    result = paceline("serve", folder, "--device", "cpu", "--plan", *flags)
    assert result.code == 0 and "recurrent slots" in result.out
    assert "does not fit: " in result.out and "lower max_num_seqs" in result.out
    memory = plan(paceline, folder)[0]["memory"]
    assert memory["shortage"] is None


def test_the_plan_for_people_says_where_values_come_from(paceline, folder, tmp_path):
    (tmp_path / "paceline.yaml").write_text("max-num-seqs: 7\nseed: 3\napi-key: hush\n")
    result = paceline("serve", folder, "--device", "cpu", "--plan", "--seed", "4")
    lines = [line.split() for line in result.out.splitlines()]
    assert ["max-num-seqs", "7", "paceline.yaml"] in lines
    assert ["seed", "4", "command", "line"] in lines
    assert "hush" not in result.out and "kernels" in result.out


def test_a_named_file_of_options(paceline, folder, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "max_model_len: 0.2k\n".replace("0.2k", "200")
        + "speculative_config: {method: ngram, num_speculative_tokens: 2}\nserved-model-name: [a, b]\n"
    )
    what, _ = plan(paceline, folder, "--config", str(path))
    assert what["model"]["max_model_len"] == 200
    assert what["settings"]["served_model_name"] == {"value": ["a", "b"], "from": str(path)}
    assert what["drafts"]["method"] == "ngram"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--quantization", "modelopt"], "is not quantised"),
        (["--mamba-cache-dtype", "bfloat16"], "auto or float32"),
        (["--mamba-ssm-cache-dtype", "float16"], "auto or float32"),
        (["--kv-cache-dtype", "fp8"], "auto or bfloat16 or float32"),
        (["--tensor-parallel-size", "2"], "one device"),
        (["--no-enable-chunked-prefill"], "--max-num-batched-tokens"),
        (["--load-format", "pt"], "safetensors"),
        (["--gpu-memory-utilization", "1.5"], "gpu_memory_utilization"),
        (["--enable-auto-tool-choice"], "--tool-call-parser"),
        (["--max-model-len", "many"], "256k"),
        (["--max-model-len", "256k"], "1024 positions"),
        (["--limit-mm-per-prompt", "{"], "JSON"),
        (["--speculative-config", '{"method":"dflsh"}'], "dflash"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--chat-template", "nowhere.jinja"], "nowhere.jinja"),
        (["--generation-config", "nowhere"], "--generation-config nowhere"),
    ],
)
def test_what_cannot_work_is_refused_with_what_does(paceline, folder, flags, said):
    result = paceline("serve", folder, "--device", "cpu", "--plan", *flags)
    assert result.code == 2 and said in result.err and result.err.count("\n") == 1, result.err


@pytest.mark.parametrize("text", ["port: 1\nport: 2\n", "max-num-seqs: 3\nmax_num_seqs: 4\n"])
def test_a_key_that_stands_twice_is_refused(paceline, folder, tmp_path, text):
    (tmp_path / "paceline.yaml").write_text(text)
    result = paceline("serve", folder, "--plan")
    assert result.code == 2 and "stands twice, line 2" in result.err


def test_unknown_keys_of_a_file_get_a_suggestion(paceline, folder, tmp_path):
    (tmp_path / "paceline.yaml").write_text("max-num-seq: 7\n")
    result = paceline("serve", folder, "--plan")
    assert result.code == 2 and "'max_num_seqs'" in result.err


def test_json_without_a_plan_is_refused(paceline, folder):
    assert paceline("serve", folder, "--json").code == 2


@pytest.mark.parametrize("name", ["VLLM_NVFP4_GEMM_BACKEND", "VLLM_USE_FLASHINFER_SAMPLER"])
def test_environment_variables_of_recipes_are_answered(paceline, folder, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    _, err = plan(paceline, folder)
    assert err.count("\n") == 1 and name in err


@pytest.mark.slow
def test_the_command_serves_and_stops_by_a_signal(folder):
    command = [sys.executable, "-m", "paceline.cli.main", "serve", folder, "--device", "cpu", "--port", "0"]
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    with subprocess.Popen(
        [*command, *RECIPE], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        url = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.:]+", line)))
        body = {"model": folder, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        answer = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] <= 3, json.dumps(answer)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
