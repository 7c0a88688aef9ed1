"""Compilation at first use, one thread pool, and the fallback that says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline import kernels
from paceline.kernels import build

PROBE = """
import warnings
import torch
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    from paceline import kernels
    from paceline.kernels.attention import sigmoid_gate
    from paceline.kernels.linear import make_linear
    from paceline.kernels.norm import rms_norm
    from paceline.kernels.swiglu import swiglu
    x = torch.randn(3, 8)
    layer = make_linear(torch.randn(8, 8), deterministic=True)
    both = torch.cat([layer(x), rms_norm(x, torch.ones(8), 1e-6, True)], 1)
    y = sigmoid_gate(swiglu(both), x.view(3, 2, 4))
    assert y.isfinite().all()
    live = kernels.live()
ours = [w for w in seen if issubclass(w.category, kernels.build.KernelBuildWarning)]
print(len(ours), "|", ours[0].message if ours else "", "|", *sorted(set(live.values())), "|", layer.kind)
"""


def probe(**environment: str) -> list[str]:
    """Run the operators in a fresh process -> count of warnings, the first, what is live, linear's kind."""
    env = {**os.environ, "PYTHONPATH": str(build.KERNELS.parents[1]), **environment}
    done = subprocess.run([sys.executable, "-c", PROBE], env=env, capture_output=True, text=True, check=True)
    return [part.strip() for part in done.stdout.strip().split("|")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment,message",
    [
        ({"PACELINE_KERNELS": "reference"}, "PACELINE_KERNELS=reference"),
        ({"CXX": "/nowhere/g++"}, "/nowhere/g++ not found"),
        ({"CXX": "false"}, "false"),
    ],
    ids=["asked for", "no compiler", "broken compiler"],
)
def test_fallback_runs_and_says_so_once(environment, message, tmp_path):
    count, text, live, kind = probe(XDG_CACHE_HOME=str(tmp_path), **environment)
    assert count == "1" and message in text and live == "torch" and kind.startswith("torch-")


@pytest.mark.slow
def test_an_unknown_choice_is_named():
    count, text, *_ = probe(PACELINE_KERNELS="fast")
    assert count == "1" and "'fast'" in text and "'reference'" in text


@pytest.mark.slow
def test_two_processes_may_build_at_once(tmp_path):
    if build.library("swiglu") is None:
        pytest.skip("no compiler")
    code = "from paceline.kernels import build; assert build.library('swiglu') is not None"
    env = {**os.environ, "PYTHONPATH": str(build.KERNELS.parents[1]), "XDG_CACHE_HOME": str(tmp_path)}
    jobs = [subprocess.Popen([sys.executable, "-W", "error", "-c", code], env=env) for _ in range(2)]
    assert [job.wait() for job in jobs] == [0, 0]
    assert len(list(tmp_path.rglob("*.so"))) == 1


def test_live_names_every_operator():
    live = kernels.live()
    assert {"attention", "linear", "norm", "swiglu"} <= set(live)
    assert set(live.values()) <= {"torch", *build.ISA_NAMES.values()}
    assert set(kernels.live("cuda").values()) == {"torch"}


def test_one_openmp_runtime():
    """The operators run on torch's own threads: two pools would fight for the cores."""
    if build.library("linear") is None:
        pytest.skip("no native kernels here")
    torch.randn(300, 300) @ torch.randn(300, 300)
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    assert len([p for p in paths if Path(p).name.startswith(("libgomp", "libiomp", "libomp."))]) == 1
