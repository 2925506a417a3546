"""What this machine can do and what is missing, in sentences."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from rooftile.core import device as dev
from rooftile.core import tune
from rooftile.core.kernel import Limits, shared_memory
from rooftile.core.record import cache_folder, read, unwritable
from rooftile.cuda import compile as nvrtc

RANGES = {"torch": ((2, 11), (2, 16)), "triton": ((3, 6), (3, 10))}


def examine() -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = []

    def say(ok: bool, sentence: str) -> None:
        findings.append({"ok": ok, "sentence": sentence})

    say(sys.version_info >= (3, 11), f"Python {platform.python_version()} (3.11 or later is needed)")
    for package, (low, high) in RANGES.items():
        _package(say, package, low, high)
    _gpu(say)
    lacking = nvrtc.missing()
    say(lacking is None, lacking or "CUDA C++ can be compiled: NVRTC, its headers and cuda-core are here")
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    say(
        compiler is not None,
        f"a C compiler is {'at hand' if compiler else 'missing'}: Triton builds its launcher with one, torch.compile its CPU code",
    )
    simulates = shutil.which(os.environ.get("CXX") or "g++") and shutil.which("addr2line")
    say(bool(simulates), f"g++ and addr2line are {'at hand' if simulates else 'missing'}: rooftile sim runs CUDA C++ on this CPU with them")
    for package, purpose in {
        "ml_dtypes": "the Triton interpreter (rooftile check --device cpu)",
        "tiktoken": "GPT-2 tokens (rooftile train --tokenizer gpt2)",
    }.items():
        there = importlib.util.find_spec(package) is not None
        say(there, f"{package} is {'installed' if there else 'not installed: pip install ' + package}; it serves {purpose}")
    folder = cache_folder()
    why = unwritable(folder)
    kept = f"nothing can be kept in the cache folder {folder} ({why}); set ROOFTILE_CACHE to one that can be written"
    say(not why, kept if why else f"tuning results and ceilings are kept in {folder}")
    return findings


def _package(say: Any, package: str, low: tuple[int, int], high: tuple[int, int]) -> None:
    try:
        found = version(package)
    except PackageNotFoundError:
        return say(False, f"{package} is not installed; {low[0]}.{low[1]} or later is needed")
    major, minor = (int(x) for x in found.split("+")[0].split(".")[:2])
    return say(low <= (major, minor) < high, f"{package} {found} (taken are {low[0]}.{low[1]} up to but not including {high[0]}.{high[1]})")


def _gpu(say: Any) -> None:
    if not torch.cuda.is_available():
        why = "this PyTorch is a CPU build" if torch.version.cuda is None else "the driver shows no device"
        return say(
            False,
            f"no CUDA device: {why}; operators run their PyTorch references, Triton kernels can be interpreted and compiled but not run",
        )
    for i in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(i)
        p, room, whole = torch.cuda.get_device_properties(i), shared_memory(10 * major + minor) // 1024, Limits().shared_bytes // 1024
        say(
            major >= 8,
            f"cuda:{i} is {p.name}, sm_{major}{minor}, {p.multi_processor_count} multiprocessors, {p.total_memory / 2**30:.0f} GiB (sm_80 or later is needed)",
        )
        if room < whole:
            say(
                True,
                f"cuda:{i} gives a block {room} KiB of shared memory: where a kernel's config wants up to {whole}, another config or kernel runs",
            )
    name = dev.slug(torch.device("cuda", 0))
    try:
        entries = sum(1 for source in (tune.path(name), tune.shipped(name)) for _ in read(source))
    except (OSError, ValueError) as error:
        return say(False, f"tuned choices are left out, heuristics choose: {error}")
    return say(
        entries > 0,
        f"{entries} tuned choices are known for {name}; {'rooftile tune adds more' if entries else 'heuristics choose until rooftile tune has run'}",
    )
