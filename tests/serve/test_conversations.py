"""Conversations whose prompts grow: what is known is not read again, and nothing else changes."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.serve.harness import running
from tests.tiny import TARGETS, make_target

TEMPLATE = """\
{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]\
{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Each prompt begins with the whole prompt before it."""
CHAT = "/v1/chat/completions"
BLOCK = 64
SYSTEM = {"role": "system", "content": "You are an agent with a shell. " * 6}
TOOLS = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}]
SAMPLED = {"max_tokens": 24, "ignore_eos": True, "logit_bias": {"0": -100, "1": -100, "2": -100}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    place = tmp_path_factory.mktemp("conversations")
    (place / "t.jinja").write_text(TEMPLATE)
    folder = make_target(place / "tiny", replace(TARGETS["plain"], max_position_embeddings=8192))
    with running(
        folder, max_model_len=8192, max_num_seqs=4, prefix_checkpoints=64,
        chat_template=str(place / "t.jinja"),
        tool_call_parser="qwen3_coder", enable_auto_tool_choice=True,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    ) as server:  # fmt: skip
        yield server


@pytest.fixture(autouse=True)
def cold(server):
    forget(server)
    yield
    server.at_rest()


def forget(server):
    """Let the server forget every prefix before the next request."""
    assert server.http.post("/reset_prefix_cache").status_code == 200


def ask(server, messages, **more):
    response = server.post(CHAT, {"messages": messages, "tools": TOOLS, **SAMPLED, **more})
    assert response.status_code == 200, response.text
    return response.json()


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def known(answer, again=False):
    """Tokens of an answer's prompt that a request which goes on from it need not read; the same one again
    reads the last, for its logits."""
    return (answer["usage"]["prompt_tokens"] - again) // BLOCK * BLOCK


def told(answer):
    """What must not depend on what was known."""
    return answer["choices"], answer["paceline"]["speculation"]


def agent_turns(server, turns):
    """A loop of calls and results; each turn's messages with its answer."""
    messages, found = [SYSTEM, {"role": "user", "content": "Tidy the folder."}], []
    for turn in range(turns):
        answer = ask(server, messages, seed=turn, temperature=0.8 if turn % 2 else 0.0)
        found.append((list(messages), answer))
        content = answer["choices"][0]["message"]["content"]
        call = {"name": "shell", "arguments": f'{{"command": "ls {turn}"}}'}
        messages.append(
            {"role": "assistant", "content": content,
             "tool_calls": [{"id": f"c{turn}", "type": "function", "function": call}]}
        )  # fmt: skip
        messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": f"file{turn} " * 5})
    return found


@pytest.mark.slow
def test_an_agent_loop_of_thirty_turns(server):
    found = agent_turns(server, 30)
    assert cached(found[0][1]) == 0
    for (_, before), (_, after) in itertools.pairwise(found):
        assert cached(after) == known(before)  # all of the turn before, but for the block that it ended in
        assert after["usage"]["prompt_tokens"] > before["usage"]["prompt_tokens"]
    read = sum(answer["usage"]["prompt_tokens"] - cached(answer) for _, answer in found)
    assert read < 0.2 * sum(answer["usage"]["prompt_tokens"] for _, answer in found)
    for turn in (1, 12, 29):
        forget(server)
        messages, answer = found[turn]
        again = ask(server, messages, seed=turn, temperature=0.8 if turn % 2 else 0.0)
        assert cached(again) == 0 and told(again) == told(answer)


def test_a_second_turn_reads_only_what_is_new(server):
    messages = [SYSTEM, {"role": "user", "content": "the cat and the hat " * 4}]
    first = ask(server, messages, temperature=0.7, seed=1)
    messages += [
        {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
        {"role": "user", "content": "and then?"},
    ]
    second = ask(server, messages, temperature=0.7, seed=2)
    assert cached(second) == known(first) > 0
    forget(server)
    again = ask(server, messages, temperature=0.7, seed=2)
    assert cached(again) == 0 and told(again) == told(second)


def test_conversations_share_their_system_prompt(server):
    asked = [[SYSTEM, {"role": "user", "content": text}] for text in ("the man", "a hat", "in there")]
    answers = [ask(server, messages, temperature=0.6, seed=i) for i, messages in enumerate(asked)]
    shared = server.post("/tokenize", {"messages": [SYSTEM], "add_generation_prompt": False}).json()["count"]
    # The second conversation finds where the two part and leaves a state there; the third begins with it.
    assert cached(answers[0]) == 0 and cached(answers[2]) >= shared // BLOCK * BLOCK > 0
    for i, messages in enumerate(asked):
        forget(server)
        assert told(ask(server, messages, temperature=0.6, seed=i)) == told(answers[i])


def test_an_identical_request_gives_an_identical_answer(server):
    messages = [SYSTEM, {"role": "user", "content": "the cat"}]
    first, *others = [ask(server, messages, temperature=0.9, seed=5) for _ in range(4)]
    assert all(cached(other) == known(first, again=True) > 0 for other in others)
    assert all(told(other) == told(first) for other in others)


def test_many_conversations_at_once_share_what_they_can(server):
    """Four turns of six conversations side by side: more than run at once."""

    def talk(number):
        messages = [SYSTEM, {"role": "user", "content": f"question {number} " * 6}]
        found = []
        for turn in range(4):
            answer = ask(server, messages, temperature=0.5, seed=number * 10 + turn)
            found.append((list(messages), number * 10 + turn, answer))
            content = answer["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "go on"}]
        return found

    with ThreadPoolExecutor(6) as pool:
        talks = list(pool.map(talk, range(6)))
    for found in talks:
        assert all(cached(after) >= known(before) for (*_, before), (*_, after) in itertools.pairwise(found))
    for messages, seed, answer in (found[-1] for found in talks):
        forget(server)
        assert told(ask(server, messages, temperature=0.5, seed=seed)) == told(answer)
