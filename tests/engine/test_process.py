"""The engine behind a pipe: ready, served, aborted, refused, killed."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys

import pytest

from paceline.config import CacheConfig, EngineConfig, ModelConfig, SamplingParams, SpeculativeConfig
from paceline.engine import client
from paceline.engine.client import EngineProcess
from paceline.engine.messages import Abort, Accepted, Add, Ended, News, Ping, Ready, Refused
from paceline.engine.request import Request
from paceline.errors import CapacityError, CheckpointError
from tests.tiny import make_target


class Conversation:
    """An engine process and what it has said."""

    def __init__(self, folder, **options):
        self.heard = queue.SimpleQueue()
        config = EngineConfig(
            model=ModelConfig(model=str(folder), device="cpu", max_model_len=512),
            cache=CacheConfig(num_blocks=8),
            max_num_seqs=2,
            **options,
        )
        self.engine = EngineProcess(config, self.heard.put)
        self.engine.start()

    def hear(self):
        return self.heard.get(timeout=60)

    def ask(self, request):
        self.engine.send(Add(request))
        while isinstance(answer := self.hear(), News):
            pass  # late news of an earlier request
        events = []
        while isinstance(answer, Accepted) and not (events and events[-1].finish_reason):
            events += self.hear().events
        return answer, events

    def drain(self, idle):
        """Figures once nothing runs; `idle` pings at most."""
        for _ in range(idle):
            self.engine.send(Ping())
            news = self.hear()
            if isinstance(news, News) and not news.figures.running:
                return news.figures
        raise AssertionError("the engine does not come to rest")


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    folder = make_target(tmp_path_factory.mktemp("target"))
    talk = Conversation(folder, speculative=SpeculativeConfig(method="mtp", num_speculative_tokens=3))
    ready = talk.hear()
    assert isinstance(ready, Ready) and ready.info.num_drafts == 3
    assert ready.figures.running == 0 and ready.figures.blocks_used == 0
    yield talk
    talk.engine.close()
    while not isinstance(talk.hear(), Ended):
        pass


def request(name="a", tokens=20, prompt=(5, 6, 7), **changes):
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    return Request(name, list(prompt), params, seed=1, **changes)


def test_events_carry_the_tokens_and_where_they_came_from(talk):
    _, events = talk.ask(request())
    assert sum(len(event.token_ids) for event in events) == 20
    assert events[-1].output.token_ids == [t for event in events for t in event.token_ids]
    stats = events[-1].output.stats
    assert sum(event.accepted for event in events) == stats.num_accepted_tokens
    assert sum(event.drafted for event in events) == stats.num_draft_tokens > 0


def test_drafts_of_one_request_can_be_limited_or_switched_off(talk):
    _, plain = talk.ask(request(max_drafts=0))
    _, short = talk.ask(request(max_drafts=1))
    _, full = talk.ask(request())
    outputs = [events[-1].output for events in (plain, short, full)]
    assert outputs[0].token_ids == outputs[1].token_ids == outputs[2].token_ids
    assert outputs[0].stats.num_draft_tokens == 0
    assert outputs[1].stats.accepted_per_position[1:] == [0, 0]


def test_an_abort_gives_everything_back(talk):
    talk.engine.send(Add(request("long", tokens=400)))
    assert isinstance(talk.hear(), Accepted)
    assert talk.hear().figures.running == 1
    talk.engine.send(Abort("long"))
    figures = talk.drain(idle=50)
    assert (figures.blocks_used, figures.slots_used) == (0, 0)


def test_what_can_never_fit_is_refused_with_the_numbers(talk):
    answer, _ = talk.ask(request(prompt=[5] * 500))
    assert isinstance(answer, Refused) and isinstance(answer.error, CapacityError)
    assert "8 KV blocks" in str(answer.error)


def test_a_killed_engine_is_told(tmp_path):
    talk = Conversation(make_target(tmp_path / "t"))
    assert isinstance(talk.hear(), Ready)
    os.kill(talk.engine.pid, signal.SIGKILL)
    ended = talk.hear()
    assert isinstance(ended, Ended) and "-9" in str(ended.error)
    talk.engine.close()


def test_a_signal_to_the_whole_group_leaves_the_end_to_the_server(talk):
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(talk.engine.pid, number)
    answer, events = talk.ask(request())
    assert isinstance(answer, Accepted) and events[-1].finish_reason == "length"


def test_an_engine_that_hears_nothing_is_ended_with_force(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "GRACE_S", 0.2)
    talk = Conversation(make_target(tmp_path / "t"))
    assert isinstance(talk.hear(), Ready)
    os.kill(talk.engine.pid, signal.SIGSTOP)
    talk.engine.close()
    assert isinstance(talk.hear(), Ended)


def test_a_program_that_forgets_its_engine_ends_nevertheless(tmp_path):
    """The engine ignores SIGTERM, which is all that multiprocessing sends to its children at the end."""
    folder = make_target(tmp_path / "t")
    script = tmp_path / "forgets.py"
    script.write_text(FORGETS.format(folder=str(folder)))
    subprocess.run([sys.executable, script], timeout=60, check=True)


FORGETS = """
import queue
from paceline.config import EngineConfig, ModelConfig
from paceline.engine.client import EngineProcess

if __name__ == "__main__":
    heard = queue.SimpleQueue()
    engine = EngineProcess(EngineConfig(model=ModelConfig(model={folder!r}, device="cpu")), heard.put)
    engine.start()
    heard.get(timeout=50)
"""


def test_a_start_that_fails_says_why(tmp_path):
    folder = make_target(tmp_path / "t")
    (folder / "model.safetensors").write_bytes(b"nothing")
    ended = Conversation(folder).hear()
    assert isinstance(ended, Ended) and isinstance(ended.error, CheckpointError)
