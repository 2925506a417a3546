"""Quantisation in CUDA C++ beyond the grid's small cases: every byte, ragged and strided blocks, both halves of the first pass."""

import itertools

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.ops.quantize.spec import BLOCKS
from rooftile.workbench.gauge import _same

EIGHT = ("int8", "float8_e4m3fn", "float8_e5m2")


def same(made, wanted):
    assert len(made) == len(wanted)
    for a, b in zip(made, wanted):
        assert a.dtype == b.dtype and a.shape == b.shape and bool(_same(a, b).all()), f"{int((~_same(a, b)).sum())} of {a.numel()} differ"


def simulated(op, rung, *args, level="checks"):
    """What a rung computes with its own heuristic's config, and the reference's answer."""
    kernel = OPS[op].kernel(rung)
    call = dict(zip(OPS[op].names, args))
    with simulator.active(level):
        assert kernel.refuse(call) is None, kernel.refuse(call)
        made = kernel.bound(kernel.heuristic(call))(*args)
    wanted = OPS[op].spec.reference(*args)
    return (made, wanted) if isinstance(made, tuple) else ((made,), (wanted,))


def bits(*shape):
    """Floats of every exponent: bits drawn at random, NaN and infinity among them."""
    return torch.randint(-(2**31), 2**31, shape, generator=torch.Generator().manual_seed(3)).to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("to", EIGHT)
def test_every_float_becomes_the_byte_that_pytorch_makes_of_it(to):
    """With a largest element of `largest` the scale is 1: what is left is the conversion. Among them all ties and all subnormals."""
    largest = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}[to]
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = every[(every.float().abs() <= largest) | every.isnan()]
    every = torch.cat([every, every.new_tensor([largest] * (-len(every) % 8 + 8))])[None]
    same(*simulated("quantize", "cuda.v2_vector", every[:, every.shape[1] % 8 :].contiguous(), to, 1, 0, False))
    x = torch.cat([bits(1, 4096).nan_to_num(0).clamp(-largest, largest), torch.full((1, 4), largest)], 1)
    same(*simulated("quantize", "cuda.v2_vector", x, to, 1, 0, False))


@pytest.mark.parametrize("to", EIGHT)
@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
def test_every_byte_comes_back(to, out):
    values = torch.arange(-128, 128, dtype=torch.int32).to(torch.int8).view(getattr(torch, to))[None]
    for rung in ("cuda.v2_vector", "cuda.v1_naive"):
        same(*simulated("dequantize", rung, values, torch.full((), 0.37), None, 0, 0, out))


@pytest.mark.parametrize("block", ["token", "1x128", "128x128"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ragged_blocks_of_rows_that_lie_apart(block, dtype):
    wide = torch.randn(150, 320, generator=torch.Generator().manual_seed(1)).to(dtype)
    wide[3, 5], wide[140, 7] = float("nan"), float("inf")
    x = wide[: 150 if block == "128x128" else 9, :296]
    assert x.stride(0) == 320
    same(*simulated("quantize", "cuda.v2_vector", x, "float8_e4m3fn", *BLOCKS[block], True))
    q, scale = OPS["quantize"].spec.reference(x, "int8", *BLOCKS[block], False)
    q = torch.cat([q, torch.zeros(len(q), 24, dtype=torch.int8)], 1)[:, :296]
    same(*simulated("dequantize", "cuda.v2_vector", q, scale, None, *BLOCKS[block], "bfloat16"))


@pytest.mark.parametrize("n", [8, 264, 4096, 16384 + 8])
def test_rows_of_every_deal(n):
    """From a part of a warp to a block of 1024 threads."""
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(n)).bfloat16()
    same(*simulated("quantize", "cuda.v2_vector", x, "float8_e5m2", 1, 0, False))


def test_one_scale_of_a_tensor_that_both_passes_walk_through():
    """Elements that the first pass reads once, those it asks the L2 to keep, what is left over; and the order of the second's blocks."""
    x = torch.randn(33, 4097, generator=torch.Generator().manual_seed(2))
    for at in (0, 70000, x.numel() - 1):  # the largest in each part
        y = x.clone()
        y.view(-1)[at] = -99.0
        same(*simulated("quantize", "cuda.v2_vector", y, "int8", 0, 0, False))
    same(*simulated("quantize_affine", "cuda.v2_vector", x))


@pytest.mark.parametrize("vecs, threads", [(v, t) for v, t in itertools.product((2, 4, 8), (128, 256))])
def test_every_deal_of_a_config(vecs, threads):
    kernel = OPS["quantize"].kernel("cuda.v2_vector")
    x = torch.randn(130, 392, generator=torch.Generator().manual_seed(5)).bfloat16()
    for block in ("token", "1x128", "128x128"):
        args = (x if block == "128x128" else x[:5], "float8_e4m3fn", *BLOCKS[block], False)
        with simulator.active("values"):
            made = kernel.run(*args, config={"vecs": vecs, "threads": threads, "per": 2, "keep": 6})
        same(made, OPS["quantize"].spec.reference(*args))


def test_who_cannot_read_16_bytes_says_so():
    kernel = OPS["quantize"].kernel("cuda.v2_vector")
    with simulator.active("values"):
        call = {"x": torch.zeros(3, 10), "to": "int8", "block_m": 1, "block_n": 128, "power_of_2": False}
        assert "40 bytes, no multiple of the 16" in kernel.refuse(call)
        assert "longer than the 32768 columns" in kernel.refuse({**call, "x": torch.zeros(1, 32772), "block_n": 0})
        back = OPS["dequantize"].kernel("cuda.v2_vector")
        values = {
            "values": torch.zeros(3, 10, dtype=torch.int8),
            "scale": torch.ones(3),
            "zero": None,
            "block_m": 1,
            "block_n": 0,
            "to": "bfloat16",
        }
        assert "10 bytes and 10 apart, no multiples of the 8" in back.refuse(values)


@pytest.mark.gpu
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("rung", ["cuda.v2_vector", "cuda.v1_naive", "triton"])
def test_more_than_2_31_elements(block, rung):
    """Offsets of 64 bits, there and back: the last rows are those of a call with them alone, which the largest element is among."""
    x = torch.empty(2**19 + 128, 4096, dtype=torch.bfloat16, device="cuda").normal_()
    x[-1, -1] = 99.0
    made = []
    for t in (x, x[-128:].clone()):
        call = dict(zip(OPS["quantize"].names, (t, "float8_e4m3fn", *BLOCKS[block], False)))
        kernel = OPS["quantize"].kernel(rung)
        values, scale = kernel.bound(kernel.heuristic(call))(*call.values())
        call = dict(zip(OPS["dequantize"].names, (values, scale, None, *BLOCKS[block], "bfloat16")))
        kernel = OPS["dequantize"].kernel(rung)
        back = kernel.bound(kernel.heuristic(call))(*call.values())
        made.append((values[-128:], scale if scale.dim() == 0 else scale[-1:], back[-128:]))
    same(*made)


def test_nothing_is_brought_back_by_one_scale():
    """Of no rows, and of no columns: the vectors of a whole tensor were counted by a division by its elements."""
    for shape in ((0, 128), (3, 0)):
        values = torch.zeros(shape, dtype=torch.int8)
        with simulator.active():
            kernel = OPS["dequantize"].kernel("cuda.v2_vector")
            assert kernel.run(values, torch.tensor(1.0), None, 0, 0, "float32", config=kernel.configs[0]).shape == shape
