"""The peer in another interpreter, with a made-up `vllm` in place of the real one."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.bench.peers import vllm as peers
from paceline.bench.peers.base import PeerUnavailable
from paceline.bench.peers.vllm import VllmPeer

FAKE = """
import types
__version__ = "0.0"
print("noise on stdout")

class SamplingParams:
    def __init__(self, **values):
        self.values = values

class LLM:
    def __init__(self, model, **values):
        {on_load}

    def generate(self, prompts, params, use_tqdm):
        count = params.values["max_tokens"]{surplus}
        answer = types.SimpleNamespace(token_ids=[0] * count)
        return [types.SimpleNamespace(outputs=[answer]) for _ in prompts]
"""


def interpreter(folder: Path, on_load: str = "pass", surplus: str = "") -> str:
    """A Python whose `vllm` and `torch` are made up."""
    (folder / "vllm.py").write_text(FAKE.format(on_load=on_load, surplus=surplus))
    (folder / "torch.py").write_text('__version__ = "0"\n')
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(folder))} exec {sys.executable} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[VllmPeer]:
    started = VllmPeer.start(interpreter(tmp_path), tmp_path / "model")
    yield started
    started.close()


def stops(process: int) -> bool:
    """Whether the kernel reports a process as stopped, soon."""
    for _ in range(100):
        if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
        time.sleep(0.02)
    return False


def test_answers_in_its_turn_and_is_stopped_between(peer: VllmPeer) -> None:
    peer.wait_ready()
    assert stops(peer._process.pid)
    assert peer.seconds([[1, 2], [3, 4]], 5) >= 0
    assert peer.seconds([[1, 2]], 5) >= 0
    assert stops(peer._process.pid)


def test_reports_versions_and_thread_binding(peer: VllmPeer) -> None:
    peer.wait_ready()
    found = peer.environment()
    assert found["vllm"] == "0.0" and found["arguments"]["enforce_eager"] is False
    assert "model" not in found["arguments"], "a machine's paths are nobody's business"
    (process,) = found["thread_binding"]
    assert sum(process["threads_by_cores"].values()) == 1


def test_close_leaves_no_process(tmp_path: Path) -> None:
    started = VllmPeer.start(interpreter(tmp_path), tmp_path)
    started.wait_ready()
    started.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(started._process.pid, 0)


@pytest.mark.parametrize("python", [None, "/nowhere/python"])
def test_no_interpreter(python: str | None, tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="VLLM_PYTHON"):
        VllmPeer.start(python, tmp_path)


def test_a_peer_that_fails_to_load_says_why(tmp_path: Path) -> None:
    started = VllmPeer.start(interpreter(tmp_path, 'raise ValueError("no such model")'), tmp_path)
    with pytest.raises(PeerUnavailable, match="no such model"):
        started.wait_ready()
    started.close()


def test_a_peer_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "START_TIMEOUT_S", 0.2)
    started = VllmPeer.start(interpreter(tmp_path, "import time; time.sleep(60)"), tmp_path)
    monkeypatch.setattr(peers, "STOP_TIMEOUT_S", 0.1)
    with pytest.raises(PeerUnavailable, match="no answer"):
        started.wait_ready()
    started.close()


def test_a_wrong_number_of_tokens_is_refused(tmp_path: Path) -> None:
    started = VllmPeer.start(interpreter(tmp_path, surplus=" - (params.values['max_tokens'] > 1)"), tmp_path)
    started.wait_ready()
    with pytest.raises(PeerUnavailable, match="4 tokens instead of 5"):
        started.seconds([[1]], 5)
    started.close()
