"""The rungs of attention below Hopper's in the simulator: edges of tiles, strides, what they refuse, and a fault planted in each hard part."""

import math
import re

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.cuda.source import Source
from rooftile.ops.attention import ladder_kernels as ladder
from rooftile.ops.attention import reference
from rooftile.workbench import check, gatekeeper

FORWARD = {k.name.removeprefix("cuda."): k for k in ladder.FORWARD}
BACKWARD = {k.name.removeprefix("cuda."): k for k in ladder.BACKWARD}
NAMES = OPS["attention_backward"].names


def problem(rung, t, s, causal, d=16, h=1, b=1):
    """The arguments of the backward, whose second to fourth and last two are the forward's. Every rung in the dtype it is hardest to be right in."""
    dtype = torch.float16 if rung == "v4_mma" else torch.float32
    gen = torch.Generator().manual_seed(t + s)
    q, k, v, dout = (torch.randn(b, n, h, d, generator=gen).to(dtype) for n in (t, s, s, t))
    out, lse = reference.attention(*(x.double() for x in (q, k, v)), causal, d**-0.5)
    return dout, q, k, v, out.to(dtype), lse.float(), causal, d**-0.5


def forward(rung, call, level="checks"):
    with simulator.active(level):
        return FORWARD[rung].run(*call[1:4], *call[6:])


def backward(rung, call, level="checks", seed=None):
    with simulator.active(level, seed):
        return BACKWARD[rung].run(*call)


def close(got, wanted, unit):
    """Within a few roundings to the dtype, as a share of the largest element or of one. NaN is not."""
    for g, w in zip(got, wanted, strict=True):
        finite = w.isfinite()
        if not torch.equal(g.double()[~finite], w[~finite]):
            return False
        g, w = g.double()[finite], w[finite]
        if w.numel() and not float((g - w).abs().max()) <= 16 * unit * max(1.0, float(w.abs().max())):
            return False
    return True


def right(rung, call, level="checks", sides="both"):
    wide = [x.double() if isinstance(x, torch.Tensor) else x for x in call]
    unit = torch.finfo(call[0].dtype).eps
    return (sides == "backward" or close(forward(rung, call, level), reference.attention(*wide[1:4], *wide[6:]), unit)) and (
        sides == "forward" or close(backward(rung, call, level), reference.attention_backward(*wide), unit)
    )


# T and S: one, one less and one more than a tile, keys without queries, queries without keys, rows that see nothing
EDGES = [(1, 1, True), (64, 64, True), (63, 65, False), (65, 129, True), (129, 40, True), (3, 0, False), (0, 3, True)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("rung", FORWARD)
@pytest.mark.parametrize("t, s, causal", EDGES)
def test_edges(t, s, causal, rung):
    assert right(rung, problem(rung, t, s, causal))


@pytest.mark.parametrize("rung", FORWARD)
def test_a_query_that_sees_nothing_gives_exactly_nothing(rung):
    call = problem(rung, 70, 5, True)
    out, lse = forward(rung, call)
    dq, _, _ = backward(rung, call)
    assert not out[:, :65].any() and (lse[..., :65] == -math.inf).all() and lse[..., 65:].isfinite().all()
    assert not dq[:, :65].any() and dq[:, 66:].any(-1).all()


@pytest.mark.parametrize("rung", FORWARD)
def test_any_strides_give_the_bits_of_dense_tensors(rung):
    """Heads before positions, q, k and v of one tensor, a gradient that is one number everywhere."""
    dout, q, k, v, out, lse, *rest = problem(rung, 33, 33, True, h=2, b=2)
    dout = dout[:1, :1, :1, :1].expand(q.shape)
    one = torch.stack([q, k, v], 2)
    first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (out, lse)]
    strided, dense = (dout, *one.unbind(2), *first, *rest), (dout.contiguous(), q, k, v, out, lse, *rest)
    assert all(map(torch.equal, forward(rung, strided), forward(rung, dense)))
    assert all(map(torch.equal, backward(rung, strided), backward(rung, dense)))


@pytest.mark.parametrize("rung", ["v2_online", "v3_tiled", "v4_mma"])
def test_the_order_of_threads_and_blocks_is_in_no_bit(rung):
    call = problem(rung, 70, 90, True, h=2)
    assert all(map(torch.equal, backward(rung, call, "values", seed=3), backward(rung, call, "values")))


@pytest.mark.parametrize("rung", ["v3_tiled", "v4_mma"])
def test_keys_past_the_end_where_scores_are_far_below_zero(rung):
    """lse near -400: the keys past S score 0, and exp(0 - lse) is infinite."""
    dout, q, k, v, *_ = problem(rung, 9, 40, False)
    q, k = q.abs() * 9, -k.abs() * 9
    out, lse = reference.attention(q, k, v, False, 0.25)
    assert all(
        x.isfinite().all()
        for x in (*forward(rung, (dout, q, k, v, out, lse, False, 0.25)), *backward(rung, (dout, q, k, v, out, lse, False, 0.25)))
    )


def _wide_head(call, d):
    return {n: x.new_zeros(*x.shape[:-1], d) if isinstance(x, torch.Tensor) and x.ndim == 4 else x for n, x in call.items()}


def _long(call):
    return {n: call[n][:, :1].expand(1, 2**17, 1, 16) if n != "lse" else call[n] for n in ("dout", "q", "k", "v", "out", "lse")}


REFUSED = {
    ("v4_mma", "the tensor is float32"): lambda c: {n: x.float() if isinstance(x, torch.Tensor) else x for n, x in c.items()},
    ("v4_mma", "D=24, it is written for multiples of 16 up to 128"): lambda c: _wide_head(c, 24),
    ("v4_mma", r"k with strides .* at 2 bytes past"): lambda c: {
        **c,
        "k": torch.cat([c["k"].reshape(-1)] * 2)[1 : 1 + c["k"].numel()].view(c["k"].shape),
    },
    ("v4_mma", r"v with strides \[80, 20, 20, 1\]"): lambda c: {**c, "v": c["v"].new_zeros(1, 4, 1, 20)[..., :16]},
    ("v3_tiled", "D=144, it is written for at most 128"): lambda c: _wide_head(c, 144),
    ("v2_online", "D=144, it is written for at most 128"): lambda c: _wide_head(c, 144),
    ("v1_naive", "17179869184 pairs of query and key, it keeps at most 536870912 in memory"): _long,
    ("v2_online", "17179869184 pairs of query and key, it goes through at most 2147483648"): _long,
}


@pytest.mark.parametrize("rung, said", REFUSED)
def test_what_it_refuses(rung, said):
    call = REFUSED[rung, said](dict(zip(NAMES, problem("v4_mma", 4, 4, False))))
    with simulator.active("checks"):
        assert re.search(said, BACKWARD[rung].refuse(call) or "")
    assert FORWARD[rung].refuse(dict(zip(("q", "k", "v"), problem(rung, 4, 4, False)[1:4]))) is not None  # no GPU and no simulator


def test_the_simulator_poses_layouts_of_the_smallest_case_that_a_kernel_takes():
    points = check.grid([OPS["attention"], OPS["attention_backward"]], use="smoke")
    with simulator.active():
        kept = [p for p in gatekeeper.affordable([p for p in points if p.kernel.name.startswith("cuda.")]) if p.variant != "normal"]
    of = {name: {(p.case.dims["T"], p.case.dims["S"]) for p in kept if p.kernel.name == name} for name in ("cuda.v4_mma", "cuda.v5_hopper")}
    # (5, 131) costs next to nothing, and v5_hopper refuses heads of 16
    assert of == {"cuda.v4_mma": {(5, 131)}, "cuda.v5_hopper": {(130, 67)}}


# ---- faults ------------------------------------------------------------------------------------------------------------------

# rung, side, what stands there (the n-th place), what comes in its place; every barrier and wait by itself is for the thorough run
PLANTED = [
    ("v1_naive", "forward", "if (i_s < seen(", 0, "if (i_s <= seen("),
    ("v2_online", "forward", "rOut[i] *= rescale;", 0, ""),
    ("v2_online", "backward", "i_t >= begin", 0, "i_t > begin"),
    ("v3_tiled", "forward", "out.r[r][g][e] *= rescale;", 0, ";"),
    ("v3_tiled", "forward", "__syncthreads();  // the keys are read", 0, "//"),
    ("v3_tiled", "backward", "+ 16 * c < sees", 1, "+ 16 * c <= sees"),
    ("v4_mma", "forward", "sum[h] *= rescale;", 0, "sum[h] += 0.0f;"),
    ("v4_mma", "forward", "copy_wait<1>();", 0, "copy_wait<2>();"),
    ("v4_mma", "backward", "8 * h < sees", 0, "8 * h <= sees"),
]  # fmt: skip
THREE_TILES = 133, 140  # the third is the first to come where another was
SOURCES = {"v1_naive": "V1", "v2_online": "V2", "v3_tiled": "V3", "v4_mma": "V4"}


def faulty(rung, side, text, tmp_path, monkeypatch):
    path = tmp_path / "planted.cu"
    path.write_text(text)
    monkeypatch.setattr(ladder, SOURCES[rung], Source(path))
    try:
        return not right(rung, problem(rung, *THREE_TILES, True), "all", side)
    except simulator.Found:
        return True


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rung, side, line, nth, instead", PLANTED)
def test_a_planted_fault_is_seen(rung, side, line, nth, instead, tmp_path, monkeypatch):
    parts = getattr(ladder, SOURCES[rung]).text.split(line)
    assert len(parts) > nth + 1, line
    text = line.join(parts[: nth + 1]) + instead + line.join(parts[nth + 1 :])
    assert faulty(rung, side, text, tmp_path, monkeypatch)


@pytest.mark.parametrize("rung", FORWARD)
def test_without_a_fault_none_is_seen(rung):
    assert right(rung, problem(rung, *THREE_TILES, True), "all")


BARRIERS = [
    (rung, i)
    for rung in ("v3_tiled", "v4_mma")
    for i, line in enumerate(getattr(ladder, SOURCES[rung]).text.splitlines())
    if re.search(r"^\s*(__syncthreads\(\)|copy_wait<1>\(\)|copy_commit\(\));", line)
]


@pytest.mark.thorough
@pytest.mark.parametrize("rung, line", BARRIERS)
def test_no_barrier_or_wait_can_be_taken_away(rung, line, tmp_path, monkeypatch):
    lines = getattr(ladder, SOURCES[rung]).text.splitlines()
    lines[line] = "//" + lines[line]
    assert faulty(rung, "both", "\n".join(lines) + "\n", tmp_path, monkeypatch)
