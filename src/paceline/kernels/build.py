"""Compiles an operator's C++ sources at first use and loads them with ctypes.

Every operator folder may hold ``*.cpp`` files with a plain C ABI (no torch or Python headers, so that a build
takes seconds). They become one shared library a folder, kept under ``$XDG_CACHE_HOME/paceline/kernels`` by a
hash of the sources, the flags and the CPU's features. Without a compiler, or with
``PACELINE_KERNELS=reference``, ``library`` returns None, says so once, and the operators run their reference.

The objects are compiled with OpenMP but not linked to a runtime: ``GOMP_*`` resolve to the one that torch has
loaded, so that the process has ONE thread pool (two pools of spinning threads on the same cores cost more
than the work).
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

import torch

KERNELS = Path(__file__).parent
# No -ffast-math and no contraction: which products are fused is written in the source, so that the same row
# gets the same arithmetic in every instantiation of a kernel.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden"]
FLAGS += ["-fno-math-errno", "-ffp-contract=off"]
ISA_NAMES = {0: "cpu-generic", 1: "cpu-avx2", 2: "cpu-avx512", 3: "cpu-avx512bf16"}


class KernelBuildWarning(RuntimeWarning):
    """Native kernels are not available; the slower torch reference runs instead."""


@cache
def library(op: str, march: str = "native") -> ctypes.CDLL | None:
    """The compiled library of ``kernels/<op>``, or None where the reference must run (said once).

    march: the CPU that the compiler aims at; tests build for lesser ones than their own.
    """
    sources = sorted((KERNELS / op).glob("*.cpp"))
    if not sources or not native_wanted():
        return None
    try:
        omp = _openmp_runtime()
        path = _compiled(op, sources, [*FLAGS, f"-march={march}"], link_openmp=omp is None)
        if omp is not None:
            ctypes.CDLL(omp, mode=ctypes.RTLD_GLOBAL)  # loaded already: makes its symbols visible to ours
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        _warn_once(
            f"native CPU kernels are off ({_first_line(error)}); the slower torch reference runs. "
            "Install g++ (for example: apt install g++) to have them."
        )
        return None


@cache
def native_wanted() -> bool:
    """False (said once) if ``PACELINE_KERNELS=reference`` asks for the torch reference."""
    choice = os.environ.get("PACELINE_KERNELS", "auto")
    if choice not in ("auto", "reference"):
        _warn_once(f"PACELINE_KERNELS={choice!r} means nothing: use 'auto' or 'reference'. Taken as 'auto'.")
    if choice == "reference":
        _warn_once("native CPU kernels are off (PACELINE_KERNELS=reference); the torch reference runs.")
    return choice != "reference"


def isa(op: str) -> str:
    """Which code of ``op`` runs on the CPU: one of ISA_NAMES, or 'torch' for the reference."""
    lib = library(op)
    return "torch" if lib is None else ISA_NAMES[lib.paceline_isa()]


def declare(lib: ctypes.CDLL, name: str, arguments: str, checked: bool = False) -> Callable[..., int | None]:
    """Function ``name`` of ``lib``; a letter an argument: p pointer, i int64, f float.

    It returns nothing, or if ``checked`` an int64 that is not 0 where an index was out of range.
    """
    function = getattr(lib, name)
    kinds = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}
    function.argtypes = [kinds[letter] for letter in arguments]
    function.restype = ctypes.c_int64 if checked else None
    return cast(Callable[..., int | None], function)


def address(lib: ctypes.CDLL, name: str) -> int:
    """Where function ``name`` of ``lib`` lies, for native code that calls it itself."""
    return ctypes.cast(getattr(lib, name), ctypes.c_void_p).value or 0


def _compiled(op: str, sources: list[Path], flags: list[str], link_openmp: bool) -> Path:
    """Path of the library, compiled unless it is in the cache. Raises OSError, CalledProcessError."""
    parts = [p.name.encode() + p.read_bytes() for p in [*sources, *sorted(KERNELS.glob("*.h"))]]
    parts += [repr((flags, link_openmp, os.environ.get("CXX"))).encode(), _cpu_features()]
    target = _cache_dir() / f"{op}-{hashlib.sha256(b''.join(parts)).hexdigest()[:20]}.so"
    if target.exists():
        return target
    compiler = _compiler()
    with open(target.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # dropped when a process dies, so no stale lock can block us
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as work:
                os.replace(_run_compiler([compiler, *flags], sources, Path(work), link_openmp), target)
    return target


def _run_compiler(compile_: list[str], sources: list[Path], work: Path, link_openmp: bool) -> Path:
    """Compile and link apart: linking without -fopenmp is what keeps a second OpenMP runtime out."""
    jobs, objects = [], []
    for source in sources:
        objects.append(str(work / (source.stem + ".o")))
        command = [*compile_, "-I", str(KERNELS), "-c", str(source), "-o", objects[-1]]
        jobs.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for job in jobs:
        output, _ = job.communicate()
        if job.returncode:
            raise subprocess.CalledProcessError(job.returncode, compile_, output)
    out = work / "library.so"
    link = [compile_[0], "-shared", *objects, "-o", str(out), *(["-fopenmp"] if link_openmp else [])]
    subprocess.run(link, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return out


def _compiler() -> str:
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["g++", "c++"]:
        if found := shutil.which(name):
            return found
    raise FileNotFoundError(f"no C++ compiler: {wanted or 'g++'} not found")


@cache
def _openmp_runtime() -> str | None:
    """The OpenMP library that torch mapped into this process: GNU's, or Intel's (which has GOMP_* too)."""
    torch.get_num_threads()
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split()[-1]
            if Path(path).name.startswith(("libgomp", "libiomp5")):
                return path
    return None


@cache
def _cpu_features() -> bytes:
    """What -march=native looks at: two machines that share a home must not run each other's code."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    picked = sorted(
        {
            line
            for line in lines
            if line.startswith(("flags", "Features", "model", "CPU part"))
            and not line.startswith("model name")
        }
    )
    return "\n".join([platform.machine(), *picked]).encode()


@cache
def _cache_dir() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline" / "kernels"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if os.access(root, os.W_OK):
            return root
    except OSError:
        pass
    root = Path(tempfile.mkdtemp(prefix="paceline-kernels-"))  # read-only home: compile anew in each process
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, KernelBuildWarning, stacklevel=3)


def _first_line(error: Exception) -> str:
    output = getattr(error, "output", None) or str(error)
    lines = [line for line in str(output).splitlines() if "error" in line] or str(output).splitlines() or [""]
    return lines[0].strip()
