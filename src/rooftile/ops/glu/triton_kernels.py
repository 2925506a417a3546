"""Gated linear units. Floor: 3 tensors through memory forward (6 bytes a bf16 element of the result), 5 backward (10 bytes); 2 to 19 operations.
At 4274 GB/s a byte takes the time of about 7 issued instructions of a lane: bytes decide, though GELU's exact form comes near half of that.

gate and up may be views of one tensor, so each has a row stride; contiguous tensors are one row. The backward takes the activation and
its slope from gate again and writes where the caller's gradients lie: in two tensors, or side by side in one. Where the result itself is wanted
again (for the gradient of a weight that it was a factor of), the same pass writes it over dout: 12 bytes an element, where two passes move 16.
"""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu
from rooftile.ops._shared.pointwise import no_rows, place, tile, together, warps
from rooftile.ops._shared.policy import evict_last
from rooftile.ops._shared.triton_activations import activate, activate_with_slope
from rooftile.ops.glu.reference import GELU


@triton.jit
def _forward(gGate, gUp, gOut, N, tiles, stride_gate, stride_up, ACT: tl.constexpr, SOLE: tl.constexpr, BLOCK: tl.constexpr,
             POLICY: tl.constexpr):  # fmt: skip
    i_m, i_n = place(tiles, SOLE, BLOCK)
    rGate = tl.load(gGate + i_m * stride_gate + i_n, mask=i_n < N, eviction_policy=POLICY).to(tl.float32)
    rUp = tl.load(gUp + i_m * stride_up + i_n, mask=i_n < N, eviction_policy=POLICY).to(tl.float32)
    rOut = activate(rGate, ACT) * rUp
    tl.store(gOut + i_m * N + i_n, rOut.to(gOut.dtype.element_ty), mask=i_n < N)


@triton.jit
def _backward(gDout, gGate, gUp, gDgate, gDup, N, tiles, stride_dout, stride_gate, stride_up, stride_dgate, stride_dup,
              ACT: tl.constexpr, AGAIN: tl.constexpr, SOLE: tl.constexpr, BLOCK: tl.constexpr, POLICY: tl.constexpr):  # fmt: skip
    i_m, i_n = place(tiles, SOLE, BLOCK)
    rDout = tl.load(gDout + i_m * stride_dout + i_n, mask=i_n < N, eviction_policy=POLICY).to(tl.float32)
    rGate = tl.load(gGate + i_m * stride_gate + i_n, mask=i_n < N, eviction_policy=POLICY).to(tl.float32)
    rUp = tl.load(gUp + i_m * stride_up + i_n, mask=i_n < N, eviction_policy=POLICY).to(tl.float32)
    rY, rD = activate_with_slope(rGate, ACT)
    tl.store(gDgate + i_m * stride_dgate + i_n, (rDout * rUp * rD).to(gDgate.dtype.element_ty), mask=i_n < N)
    tl.store(gDup + i_m * stride_dup + i_n, (rDout * rY).to(gDup.dtype.element_ty), mask=i_n < N)
    if AGAIN:
        tl.store(gDout + i_m * stride_dout + i_n, (rY * rUp).to(gDout.dtype.element_ty), mask=i_n < N)


def results(call):
    """How many elements come out."""
    return call["gate"].numel() // (2 if call["up"] is None else 1)


def halves(gate, up):
    """Without `up`, gate is both side by side: two views of it."""
    if up is not None:
        return gate, up
    k = gate.shape[-1] // 2
    return gate[..., :k], gate[..., k:]


def gradients(gate, up):
    """Dense memory for the gradients: what is returned, where to write both, and the row strides there."""
    if up is None:
        packed, k = gate.new_empty(gate.shape), gate.shape[-1] // 2
        return (packed, gate.new_empty(0)), (packed[..., :k], packed[..., k:]), 2 * k
    made = gate.new_empty(gate.shape), up.new_empty(up.shape)
    return made, made, 0


def gated(gate, up, act, config):
    g, u = halves(gate, up)
    out = g.new_empty(g.shape)
    m, n, (g, u), strides = together(g, u)
    block = tile(n, config["block"])
    tiles = cdiv(n, block)
    launch(_forward, (m * tiles,), g, u, out, n, tiles, *strides, ACT=act, SOLE=m == 1, BLOCK=block, POLICY=evict_last(g, u),
           num_warps=warps(block, config))  # fmt: skip
    return out


def gated_backward(dout, gate, up, act, config, again=False):
    results, (dgate, dup), apart = gradients(gate, up)
    m, n, (dout, g, u), strides = together(dout, *halves(gate, up))
    block = tile(n, config["block"])
    tiles = cdiv(n, block)
    launch(_backward, (m * tiles,), dout, g, u, dgate, dup, n, tiles, *strides, apart or n, apart or n, ACT=act, AGAIN=again, SOLE=m == 1,
           BLOCK=block, POLICY=evict_last(dout, g, u), num_warps=warps(block, config))  # fmt: skip
    return results


def gated_again(dout, gate, up, act, config):
    return gated_backward(dout, gate, up, act, config, again=True)


def _forms(run, act):
    """The launcher with the signature of its operator: `approximate` is geglu's alone."""
    if act != "gelu":
        return lambda *args, config: run(*args, act, config)
    return lambda *args, config: run(*args[:-1], GELU[args[-1]], config)


# 16 elements a lane and tensor: 4 loads of 16 bytes in flight forward and 6 backward, 130 KB and more a multiprocessor of 2048 threads
_TILES = tuple({"block": b, "warps": w} for b, w in ((4096, 8), (2048, 4), (1024, 4), (2048, 8), (8192, 16), (4096, 4)))
FEW, MANY = 2**16, 2**24  # elements of so few programs that the way through one decides; bytes of enough to even out


def elements(call):
    """Of the result."""
    return call["gate"].numel() // (2 if call["up"] is None else 1)


def pick(call):
    """A result of under 16 MB is 2000 tiles of 4096 or fewer, too few to even out over 132 multiprocessors: a quarter of that each. Of a few rows the way
    through a program decides: 2 elements a lane."""
    out = elements(call)
    if out <= FEW:
        return {"block": 256, "warps": 4}
    return _TILES[0] if out * call["gate"].itemsize >= MANY else {"block": 1024, "warps": 4}


def kernels(act):
    def refuse(call):
        return off_gpu(call["gate"])

    def in_place(call):
        return refuse(call) or no_rows("dout", call["dout"])

    return (
        (Kernel("triton", _forms(gated, act), "two reads, one write, any row strides", refuse, _TILES, pick),),
        (Kernel("triton", _forms(gated_backward, act), "activation and slope from gate again, nothing else saved", refuse, _TILES, pick),),
        (Kernel("triton", _forms(gated_again, act), "the gradient, and the result over dout", in_place, _TILES, pick),),
    )
