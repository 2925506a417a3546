"""Tensor maps: what the copy engine cannot take is told, what the driver is given, how a launch packs and a replay renews them."""

import ctypes
import gc
import re
import struct
import weakref
from pathlib import Path

import pytest
import torch

import test_cuda_launch
from rooftile.core import replay
from rooftile.cuda import compile as compiler
from rooftile.cuda import launch as launcher
from rooftile.cuda import tensor_map
from rooftile.cuda.source import Source
from rooftile.cuda.tensor_map import TensorMap
from test_simulator import run, zeros

TEXT = """
#include "rooftile/tma.cuh"
using namespace rooftile;
__global__ void both(float* gOut, const __grid_constant__ TensorMap tX, int N, const __grid_constant__ rooftile::TensorMap tY) { gOut[0] = N; }
"""


@pytest.fixture(autouse=True)
def poison():
    """Not here: filling fresh memory is an operation, and what computes is not recorded."""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "k.cu").write_text(TEXT)
    return Source(tmp_path / "k.cu")


def half(*shape: int) -> torch.Tensor:
    return zeros(*shape, dtype=torch.float16)


@pytest.mark.parametrize(
    ("tensor", "box", "swizzle", "sentence"),
    [
        (half(2, 2, 2, 2, 8), (1, 1, 1, 1, 8), 0, "it has 5 axes, a tensor map 2 to 4"),
        (half(8), (8,), 0, "it has 1 axes, a tensor map 2 to 4"),
        (zeros(4, 8, dtype=torch.complex64), (4, 8), 0, "[4, 8] complex64: the copy engine has no such type"),
        (half(8, 8), (8,), 0, "the box [8] has 1 axes, the tensor 2"),
        (half(300, 8), (257, 8), 0, "the box [257, 8] has an axis that is not from 1 to 256"),
        (half(8, 0), (8, 8), 0, "an axis is not from 1 to 4294967295"),
        (half(8, 64), (8, 64), 16, "the swizzle is 0, 32, 64 or 128 bytes, got 16"),
        (half(8, 64), (8, 12), 0, "a line of the box has 24 bytes, it must be a multiple of 16"),
        (half(8, 64), (8, 32), 128, "a line of the box has 64 bytes, it must be the 128 of the swizzle"),
        (half(8, 64).T, (8, 8), 0, "the last axis must be contiguous, its stride is 64"),
        (half(8, 65)[:, 1:], (8, 8), 0, "the address must be a multiple of 16, it is 2 beyond one"),
        (half(8, 65)[:, :64], (8, 8), 0, "a stride is 130 bytes, it must be a multiple of 16"),
        (half(1, 64).expand(8, 64), (8, 8), 0, "a stride is 0 bytes, it must be a multiple of 16"),
    ],
)
def test_what_the_engine_cannot_take_is_told(tensor, box, swizzle, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        TensorMap(tensor, box, swizzle)


def test_an_axis_of_one_element_may_have_any_stride():
    assert TensorMap(half(8, 65)[:1, :64], (1, 8)).strides == (16,)


class Driver:
    """Of libcuda: writes what it was given where the map belongs."""

    def __init__(self):
        self.given, self.status = [], 0

    def cuTensorMapEncodeTiled(self, place, kind, rank, address, size, stride, box, step, interleave, swizzle, promotion, fill):
        assert place.value % 64 == 0
        self.given.append((kind, rank, [*size], [*stride], [*box], [*step], interleave, swizzle, fill))
        ctypes.memmove(place, struct.pack("2Q", address.value, kind).ljust(128, b"\7"), 128)
        return self.status


@pytest.fixture
def encoder(monkeypatch):
    made = Driver()
    monkeypatch.setattr(tensor_map, "libcuda", lambda: made)
    tensor_map._encoded.cache_clear()
    yield made
    tensor_map._encoded.cache_clear()


def test_the_driver_is_given_everything_innermost_first(encoder):
    x = zeros(3, 4, 72, dtype=torch.bfloat16)[:, 1:, :64]
    made = TensorMap(x, (1, 2, 64), 128)
    assert made.here()[:16] == struct.pack("2Q", x.data_ptr(), 9)
    assert encoder.given == [(9, 3, [64, 3, 3], [144, 576], [64, 2, 1], [1, 1, 1], 0, 3, 0)]
    made.here()
    assert len(encoder.given) == 1  # kept
    made.at(x.data_ptr() + 64)
    assert len(encoder.given) == 2


def test_a_refusal_of_the_driver_is_told(encoder):
    encoder.status = 1
    with pytest.raises(RuntimeError, match=r"cannot encode a tensor map of \[8, 4\] in boxes of \[8, 2\], innermost first: error 1"):
        TensorMap(half(4, 8), (2, 8)).here()


class Launched(test_cuda_launch.Driver):
    """Of libcuda: the arguments of `both`, read as the kernel would."""

    def cuLaunchKernelEx(self, config, function, arguments, extra):
        assert all(p % 8 == 0 for p in (arguments[1], arguments[3]))
        codes = ["P", "128s", "i", "128s"]
        self.launched.append([struct.unpack(c, ctypes.string_at(p, struct.calcsize(c)))[0] for c, p in zip(codes, arguments)])
        return 0


@pytest.fixture
def entry(source, encoder, monkeypatch):
    driver = Launched()
    monkeypatch.setattr(launcher, "libcuda", lambda: driver)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(compiler, "compiled", lambda *what: compiler.Compiled(b"cubin", "symbol", 10, 0, 0))
    made = launcher.Entry(source, "both", -1)  # device -1 is where CPU tensors say they are
    made.driver = driver
    return made


def test_a_launch_passes_them_by_value(entry):
    out, x, y = zeros(4), half(4, 8), half(2, 16)
    entry.go(1, 1, 1, 32, 1, 1, 0, 99, out, TensorMap(x, (2, 8)), 7, TensorMap(y, (2, 8)))
    ((a, b, n, c),) = entry.driver.launched
    assert (a, n) == (out.data_ptr(), 7) and len(b) == len(c) == 128
    assert (b[:8], c[:8]) == (struct.pack("Q", x.data_ptr()), struct.pack("Q", y.data_ptr()))


def test_a_replay_makes_them_anew_for_its_own_tensors(entry):
    def launched(x, n):
        out = torch.empty_like(x)
        given = (1, 1, 1, 32, 1, 1, 0, out, TensorMap(out, (2, 8)), n, TensorMap(x[1:], (2, 8)))
        entry.go(*given[:7], 99, *given[7:])
        replay.recorder() and replay.recorder().note(entry.again, (*given[:7], replay.STREAM, *given[7:]))
        return out

    first, second = zeros(4, 8), zeros(4, 8)
    _, again = replay.record(launched, (first, 7), torch.device("cpu"))
    out = again(second, 7)
    a, b, n, c = entry.driver.launched[-1]
    assert n == 7 and a == out.data_ptr() and out.data_ptr() != first.data_ptr()
    assert (b[:8], c[:8]) == (struct.pack("Q", out.data_ptr()), struct.pack("Q", second[1:].data_ptr()))
    assert again.__name__ == "replay" and len(entry.driver.launched) == 2


def test_a_replay_keeps_no_tensor_of_the_call_it_was_made_of(entry):
    """A shape's replay lives as long as the process, and the queries and keys of a call are gigabytes."""

    def launched(x):
        out = torch.empty_like(x)
        replay.recorder() and replay.recorder().note(entry.again, (out, TensorMap(out, (2, 8)), TensorMap(x, (2, 8))))
        return out

    x = zeros(4, 8)
    out, again = replay.record(launched, (x,), torch.device("cpu"))
    kept = weakref.ref(x), weakref.ref(out)
    del x, out
    gc.collect()
    assert again is not None and [r() for r in kept] == [None, None]


@pytest.mark.gpu
def test_gpu_a_replay_reads_its_own_tensor():
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("tensor copies are Hopper's and later")
    source = Source(Path(__file__).parent / "cuda/hopper.cu")

    def corner(x):
        out = x.new_empty((16, 64))
        launcher.launch(source, "tile<__half, 2048>", 1, 32, out, TensorMap(x, (16, 64)), 0, 0, shared=2048)
        return out

    first, second = (torch.randn(50, 72, device="cuda").half() for _ in range(2))
    assert torch.equal(corner(first), first[:16, :64])
    _, again = replay.record(corner, (first,), first.device)
    assert again is not None and torch.equal(again(second), second[:16, :64])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (lambda m: [zeros(4), half(4, 8), 7, m], "tX is a TensorMap, wants one of rooftile.cuda.tensor_map, got Tensor"),
        (lambda m: [zeros(4), 3, 7, m], "tX is a TensorMap, wants one of rooftile.cuda.tensor_map, got int"),
        (lambda m: [m, m, 7, m], "gOut is float*, wants a tensor, got TensorMap"),
        (lambda m: [zeros(4), m, m, m], "N is int, wants a number, got TensorMap"),
        (lambda m: [zeros(4), m, 7, TensorMap(half(4, 8).to("meta"), (2, 8))], "tY is on meta, the tensor before it on cpu"),
    ],
)
def test_what_does_not_fit_is_told(source, entry, arguments, sentence):
    given = arguments(TensorMap(half(4, 8), (2, 8)))
    with launcher.recording(), pytest.raises(ValueError, match=re.escape(sentence)):
        launcher.launch(source, "both", 1, 32, *given)
    with pytest.raises((ValueError, AttributeError, TypeError, struct.error)):
        entry.go(1, 1, 1, 32, 1, 1, 0, 99, *given)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (lambda m: [zeros(4), half(4, 8), 7, m], "tX is a TensorMap (rooftile.cuda.tensor_map), got a buffer"),
        (lambda m: [zeros(4), 3, 7, m], "tX is a TensorMap (rooftile.cuda.tensor_map), got the number 3"),
        (lambda m: [m, m, 7, m], "gOut is a pointer to float, got a TensorMap"),
        (lambda m: [zeros(4), m, m, m], "N is one int, got a TensorMap"),
    ],
)
def test_what_does_not_fit_the_simulator_is_told(source, arguments, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        run(source, "both", (1,), (32,), arguments(TensorMap(half(4, 8), (2, 8))))
