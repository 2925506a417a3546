"""What whoever reads or writes caches of keys and values asks of them before its operator does."""

import torch
from torch import Tensor

WITH_E4M3 = (89, 90, 100, 101, 103, 110, 120, 121)  # whose Triton knows it


def of_8_bits(op: str, k_cache: Tensor, v_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None) -> bool:
    """Whether both are float8_e4m3fn; ValueError where they differ, are of other 8 bits, or have scales that no other dtype takes."""
    keys, values = (str(x.dtype).removeprefix("torch.") for x in (k_cache, v_cache))
    if keys != values:
        raise ValueError(f"{op}: v_cache is {values}, but k_cache is {keys}")
    if k_cache.dtype == torch.float8_e4m3fn:
        return True
    if k_cache.itemsize == 1:
        raise ValueError(f"{op}: k_cache is {keys}, of 8 bits it takes float8_e4m3fn")
    scaled = next((n for n, x in (("k_scale", k_scale), ("v_scale", v_scale)) if x is not None), None)
    if scaled is not None:
        raise ValueError(f"{op}: {scaled} is for caches of float8_e4m3fn, this one is {keys}")
    return False
