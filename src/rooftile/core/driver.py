"""NVIDIA's driver by its C interface."""

from __future__ import annotations

import ctypes
import functools
from typing import Any


@functools.cache
def libcuda() -> Any:
    return ctypes.CDLL("libcuda.so.1")
