"""What this device is, and its measured ceilings: bandwidth and matrix rate by dtype."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import warnings
from dataclasses import dataclass
from functools import partial

import torch

from rooftile.core import timing
from rooftile.core.driver import libcuda
from rooftile.core.record import Environment, Record, Status, append, cache_folder, read

_GIB = 2**30


@functools.lru_cache
def slug(where: torch.device) -> str:
    """nvidia-h200: the name under which a device's records are kept."""
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else where.type
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@dataclass(frozen=True)
class Ceilings:
    """Measured on the device, not read off a datasheet. GB/s counts bytes read plus bytes written."""

    copy_gbps: float
    matmul_tflops: dict[str, float]  # by dtype: bfloat16, float16, float32 (true fp32, no tf32)
    fill_gbps: float = 0.0  # PyTorch's writing alone
    pins_gbps: float = 0.0  # what the memory's clock and bus can carry, as the driver tells them; 0 where it does not

    def floor_us(self, moved: float, operations: float, dtype: torch.dtype) -> float:
        """The time no kernel beats: the larger of moving the bytes and doing the arithmetic."""
        rate = self.matmul_tflops.get(str(dtype).removeprefix("torch."), self.matmul_tflops["float32"])
        return max(moved / self.copy_gbps / 1e3, operations / rate / 1e6)

    def believable_us(self, moved: float, operations: float, dtype: torch.dtype) -> float:
        """What is faster than this was measured wrongly: a twentieth more than was ever seen, or for bytes what no memory can carry."""
        carried = max(1.05 * max(self.copy_gbps, self.fill_gbps), self.pins_gbps)
        return max(moved / carried / 1e3, self.floor_us(0, operations, dtype) / 1.05)


def ceilings(where: torch.device, refresh: bool = False) -> Ceilings:
    """From this machine's cache, or measured now (about a second) and kept there, where that can be."""
    file = cache_folder() / "ceilings" / f"{slug(where)}.jsonl"
    try:
        if not refresh and (kept := list(read(file))):
            return _from(kept[-1])
    except (OSError, ValueError, KeyError):  # damaged, or somebody else's: begun again
        with contextlib.suppress(OSError):
            file.unlink()
    record = measure(where)
    try:
        append(file, [record])
    except OSError as error:
        warnings.warn(
            f"the device's ceilings cannot be kept in {file.parent} ({error.strerror}): they are measured every time; set ROOFTILE_CACHE to a "
            "folder that can be written", RuntimeWarning, stacklevel=2)  # fmt: skip
    return _from(record)


def _from(r: Record) -> Ceilings:
    rates = {n.removeprefix("matmul_"): v for n, v in r.extra.items() if n.startswith("matmul_")}
    return Ceilings(r.extra["copy_gbps"], rates, r.extra.get("fill_gbps", 0.0), r.extra.get("pins_gbps", 0.0))


def _pins_gbps(where: torch.device) -> float:
    """Twice the memory's clock times its width, 0 if the driver does not say."""
    try:
        driver = libcuda()
    except OSError:
        return 0.0
    kilohertz, bits = ctypes.c_int(0), ctypes.c_int(0)
    for number, attribute in ((kilohertz, 36), (bits, 37)):  # CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, _GLOBAL_MEMORY_BUS_WIDTH
        if driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, where.index or 0):
            return 0.0
    return 2 * kilohertz.value * bits.value / 8 / 1e6


def measure(where: torch.device) -> Record:
    gpu = where.type == "cuda"
    n = 2 * _GIB if gpu else 64 * 2**20
    source, target = torch.empty(n, dtype=torch.uint8, device=where).random_(), torch.empty(n, dtype=torch.uint8, device=where)
    found = {"copy_gbps": 2 * n / timing.best(partial(target.copy_, source), where) / 1e3}
    found["fill_gbps"] = n / timing.best(partial(target.fill_, 1), where) / 1e3
    if gpu and (pins := _pins_gbps(where)):
        found["pins_gbps"] = pins
    del source, target
    side = 8192 if gpu else 512
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        a, b = (torch.randn(side, side, device=where).to(dtype) for _ in range(2))
        found[f"matmul_{str(dtype).removeprefix('torch.')}"] = 2 * side**3 / timing.best(partial(torch.mm, a, b), where) / 1e6
    return Record("device.ceilings", "measured", slug(where), Status.PASSED, extra=found, method=f"median of {timing.REPEATS}, sustained",
                  environment=vars(Environment.here()))  # fmt: skip
