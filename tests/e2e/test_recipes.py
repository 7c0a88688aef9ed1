"""The published `vllm serve` recipes for Qwen3.6-27B, run for real on the demo.

It has the same architecture and formats (qwen3_5, NVFP4 by modelopt, multi-token head, DFlash drafter) and is
370 times smaller.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from openai import OpenAI

pytestmark = pytest.mark.slow

COMMON = [
    "--quantization", "modelopt", "--reasoning-parser", "qwen3", "--enable-auto-tool-choice",
    "--tool-call-parser", "qwen3_coder", "--limit-mm-per-prompt", '{"image":4,"video":2}',
    "--mm-encoder-tp-mode", "data", "--gpu-memory-utilization", "0.85", "--max-num-seqs", "4",
    "--max-num-batched-tokens", "2048", "--max-model-len", "2048", "--enable-chunked-prefill",
    "--enable-prefix-caching", "--trust-remote-code", "--served-model-name", "qwen", "--api-key", "k",
    "--dtype", "auto", "--kv-cache-dtype", "auto", "--tensor-parallel-size", "1",
]  # fmt: skip
RECIPES = {
    "mtp": [
        "--mamba-cache-dtype", "float32",
        "--speculative-config", '{"method":"mtp","num_speculative_tokens":3}',
    ],
    "dflash": [
        "--mamba-cache-dtype", "auto", "--mamba-ssm-cache-dtype", "float32",
        "--attention-backend", "flash_attn",
        "--speculative-config", '{"method":"dflash","model":"demo","num_speculative_tokens":7}',
    ],
}  # fmt: skip
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": what,
            "parameters": {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]},
        },
    }
    for name, what, key in (
        ("get_weather", "Weather of a city", "city"),
        ("set_alarm", "Set an alarm", "time"),
    )
]


@pytest.fixture(scope="module", params=RECIPES)
def client(request):
    """A client of `paceline serve demo` with the recipe's flags, as a user starts it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "paceline", "serve", "demo", "--port", str(port)]
    server = subprocess.Popen([*command, *RECIPES[request.param], *COMMON], stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            assert server.poll() is None
            try:
                urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (URLError, ConnectionError):  # not there yet, or 503
                pass
            time.sleep(0.25)
        yield OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k")
    finally:
        server.terminate()
        assert server.wait(30) == 0


def test_it_answers_with_drafts(client):
    messages = [{"role": "user", "content": "Calculate 731 - 254."}]
    answer = client.chat.completions.create(model="qwen", messages=messages, temperature=0, max_tokens=200)
    (choice,) = answer.choices
    assert choice.finish_reason == "stop" and choice.message.content.strip().endswith("477")
    assert answer.model_extra["paceline"]["speculation"]["acceptance_length"] > 2
    plain = client.chat.completions.create(
        model="qwen", messages=messages, temperature=0, max_tokens=200,
        extra_body={"speculation": {"enabled": False}},
    )  # fmt: skip
    assert plain.choices[0].message.content == choice.message.content


def test_it_reasons_where_it_is_asked_to(client):
    answer = client.chat.completions.create(
        model="qwen", messages=[{"role": "user", "content": "Calculate 731 - 254."}], temperature=0,
        max_tokens=300, extra_body={"chat_template_kwargs": {"enable_thinking": True}},
    )  # fmt: skip
    message = answer.choices[0].message
    assert message.reasoning and "think>" not in (message.content or "") + message.reasoning


def test_it_calls_a_tool(client):
    answer = client.chat.completions.create(
        model="qwen", messages=[{"role": "user", "content": "What is the weather in Paris?"}], tools=TOOLS,
        temperature=0, max_tokens=200,
    )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Paris"}')
