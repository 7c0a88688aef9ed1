"""Many clients of every kind at once: no hang, no wrong text, nothing left held."""

from __future__ import annotations

import asyncio
import random

import httpx2
import pytest

from tests.serve.harness import running

COMPLETIONS = "/v1/completions"
PROMPTS = ["the cat", "in the man and the", [9, 8, 7, 6, 5] * 30, "a"]


def body_of(index):
    chooser = random.Random(index)
    return {
        "prompt": chooser.choice(PROMPTS),
        "max_tokens": chooser.randint(1, 40),
        "temperature": chooser.choice([0.0, 0.8]),
        "seed": index % 8,
        "ignore_eos": True,
        "speculation": {"enabled": chooser.random() < 0.7},
    }


async def whole(client, index):
    answer = await client.post(COMPLETIONS, json=body_of(index))
    return answer.json()["choices"][0]["text"]


async def streamed(client, index):
    text = ""
    body = {**body_of(index), "stream": True}
    async with client.stream("POST", COMPLETIONS, json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                text += httpx2.Response(200, text=line[6:]).json()["choices"][0]["text"]
    return text


async def leaves(client, index):
    body = {**body_of(index), "stream": True, "max_tokens": 300}
    async with client.stream("POST", COMPLETIONS, json=body) as response:
        async for _ in response.aiter_lines():
            return


async def refused(client, index):
    bad = random.Random(index).choice([{"prompt": [5] * 900}, {"prompt": "a", "top_p": 2}, {}])
    assert (await client.post(COMPLETIONS, json=bad)).status_code == 400


@pytest.mark.slow
def test_a_crowd(folder):
    kinds = [whole, streamed, leaves, refused]

    async def ask_all(url, count):
        gate = asyncio.Semaphore(24)
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=url, timeout=120, limits=limits) as client:

            async def one(index):
                async with gate:
                    return await kinds[index % len(kinds)](client, index)

            return await asyncio.gather(*(one(index) for index in range(count)))

    with running(
        folder, max_num_seqs=6, max_model_len=512, num_blocks=24,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    ) as server:  # fmt: skip
        answers = asyncio.run(ask_all(server.url, 120))
        server.at_rest()
        for index, text in enumerate(answers):
            if text is not None:
                assert text == server.complete(**body_of(index))["choices"][0]["text"]
        assert server.metric("vllm:prefix_cache_hits_total") > 0


def test_a_known_prefix_is_not_read_again_until_it_is_forgotten(server):
    prompt = [7 + i % 90 for i in range(200)]
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0.7, "seed": 3, "ignore_eos": True}
    answers = [server.complete(**body) for _ in range(2)]
    assert server.metric("paceline:checkpoints") > 0
    assert server.http.post("/reset_prefix_cache").status_code == 200
    answers.append(server.complete(**body))
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached == [0, 192, 0]
    for answer in answers[1:]:
        assert answer["choices"] == answers[0]["choices"]
        assert answer["paceline"]["speculation"] == answers[0]["paceline"]["speculation"]
