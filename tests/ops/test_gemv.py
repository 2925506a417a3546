"""What the grid cannot say of gemv: matrices stored by columns, long dot products, messages."""

import contextlib
import sys

import pytest
import torch

from faulty_kernels import rewritten, some
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.ops import gemv
from rooftile.ops.gemv import kept_kernels
from rooftile.workbench.check import poisoned

KEPT, SPLIT, VECTOR, WARP, NAIVE = (k for k in OPS["gemv"].kernels if k.sources)
GRADIENTS = next(k for k in OPS["gemv_backward"].kernels if k.sources)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_matrix_stored_by_columns(device):
    a, x = torch.randn(300, 70, device=device).mul(2).round(), torch.randn(300, device=device).mul(2).round()
    assert torch.equal(gemv(a.t(), x), gemv(a.t().contiguous(), x))
    assert torch.equal(gemv(a[:, ::2].t(), x), gemv(a[:, ::2].t().contiguous(), x))


@pytest.mark.parametrize("device", DEVICES)
def test_float32_sums_of_narrow_numbers(device):
    """Ones in bfloat16 would stop at 256."""
    ones = torch.ones(3, 40000, device=device, dtype=torch.bfloat16)
    assert gemv(ones, ones[0]).tolist() == [39936.0] * 3  # 40000 rounded to 8 bits


def test_nothing_in_nothing_out():
    a = torch.empty(4, 0, requires_grad=True)
    y = gemv(a, torch.empty(0))
    assert torch.equal(y, torch.zeros(4))
    y.sum().backward()
    assert a.grad.shape == (4, 0)


def test_messages_have_both_numbers():
    with pytest.raises(ValueError, match="K is 7 in x, but 8 in a"):
        gemv(torch.zeros(2, 8), torch.zeros(7))
    with pytest.raises(ValueError, match="dtype is float16 in x, but float32 in a"):
        gemv(torch.zeros(2, 8), torch.zeros(8, dtype=torch.float16))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "kernel, config",
    [(k, c) for k in (SPLIT, VECTOR) for c in k.configs],
    ids=lambda v: getattr(v, "name", None) or "-".join(map(str, v.values())),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_config_of_the_vector_rungs(kernel, config, dtype):
    """Rows past the last, more turns of the loop than one and a last that is not full, columns after the last vector, slices."""
    width = 16 // dtype.itemsize
    a = torch.arange(5 * (2 * 2048 * width + 24)).remainder(5).sub(2).view(5, -1).to(dtype)[:, : 2 * 2048 * width + 17]
    x = torch.arange(a.shape[1]).remainder(3).sub(1).to(dtype)
    with simulator.active("checks") as reports:
        assert torch.equal(kernel.bound(config)(a, x), (a.double() @ x.double()).to(dtype))
    assert len(reports) == (2 if kernel is SPLIT else 1)  # few wide rows: slices, and a second launch that adds them


KEPT_SHAPES = [(1, 8), (3, 5), (5, 2 * 9216 + 1000), (64, 40), (2, 9217 * 8), (7, 1531 * 8)]


def keeps(rows, k, dtype, *how):
    width = 16 // dtype.itemsize
    a = torch.arange(rows * (k + width)).remainder(7).sub(3).view(rows, -1).to(dtype)[:, :k]
    a = a if a.stride(0) % width == 0 else a.new_zeros(rows, -(-k // width) * width)[:, :k].copy_(a)
    x = torch.arange(k).remainder(5).sub(1).to(dtype)
    with simulator.active(*how), poisoned():
        return torch.equal(KEPT.run(a, x), (a.double() @ x.double()).to(dtype))


@pytest.mark.parametrize("rows, k", KEPT_SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_x_kept_by_blocks_that_read_row_after_row(rows, k, dtype):
    """One block and all places, the last slice short; two waves; columns after the last vector; fewer columns than a vector."""
    assert keeps(rows, k, dtype)


def test_no_warp_races_for_the_sums_of_its_block():
    assert keeps(5, 1200, torch.bfloat16, "all")


KEPT_FAULTS = {  # as it stands, and wrong
    "+ share, vectors) - first": "+ share + 1, vectors) - first",
    "i_m + 1 < M &&": "",
    "    gNext += stride;": "",
    "vectors * WIDTH; k < K": "vectors * WIDTH + 1; k < K",
    "w < WARPS; ++w) total": "w < WARPS - 1; ++w) total",
    "i += AT_ONCE * THREADS": "i += THREADS",
    "  __syncthreads();\n": "",
}


@pytest.mark.parametrize("stands", some(KEPT_FAULTS, *list(KEPT_FAULTS)[::3]))
def test_a_fault_of_kept_is_seen(stands, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_kernels, "KEPT", rewritten(kept_kernels.KEPT, stands, KEPT_FAULTS[stands], tmp_path))
    monkeypatch.setattr(kept_kernels, "processors", lambda a: 132 if a.shape[1] == 9000 else 2)
    with contextlib.suppress(simulator.Found):
        assert not all(keeps(*case) for case in ((5, 9000, torch.float32), (3, 12003, torch.float32), (3, 1200, torch.bfloat16, "all")))


def test_who_keeps_x():
    def call(m, k, dtype=torch.bfloat16):
        return {"a": torch.empty(m, k, dtype=dtype, device="meta"), "x": torch.empty(k, dtype=dtype, device="meta")}

    assert KEPT.declines(call(16, 3145728)) is KEPT.declines(call(1, 1572864, torch.float32)) is None
    assert KEPT.declines(call(16, 3145720)) == "a row has 6291440 bytes, and to fill the device it pays from 6291456"
    assert KEPT.refuse(call(65, 3145728)) == "there are 65 rows, and a block keeps the sums of 64 at most"


@pytest.mark.parametrize("config", GRADIENTS.configs, ids=str)
@pytest.mark.parametrize("dtype, k", [(torch.float32, 40), (torch.float16, 136)])
def test_every_grid_of_the_gradients(config, dtype, k):
    """Rows past a block's last, columns past those of a block that adds; and more shares than one a warp where six blocks walk down."""
    a = torch.arange(203 * k).remainder(7).sub(3).view(203, k).to(dtype)
    x, dout = torch.arange(k).remainder(3).to(dtype), torch.arange(203).remainder(5).to(dtype)
    with simulator.active("checks"):
        da, dx = GRADIENTS.bound(config)(dout, a, x)
    assert torch.equal(da, torch.outer(dout, x)) and torch.equal(dx, (a.double().t() @ dout.double()).to(dtype))


@pytest.mark.parametrize("rows, k", [(3, 8), (203, 1032)])
def test_gradients_apart_by_poisoned_memory(rows, k, monkeypatch):
    """All of both is written, and of the shares no more is read than was written. 203 rows are 13 shares, more than the warps that add them."""
    monkeypatch.setattr(sys.modules["rooftile.ops.gemv.cuda_kernels"], "processors", lambda x: 12)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    a, x, dout = (torch.randint(-3, 4, shape).float() for shape in ((rows, k), (k,), (rows,)))
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with simulator.active("checks") as reports:
            da, dx = GRADIENTS.bound({"per_sm": 3, "apart": 1})(dout, a, x)
    finally:
        torch.use_deterministic_algorithms(before)
    assert torch.equal(da, torch.outer(dout, x)) and torch.equal(dx, a.t() @ dout)
    assert len(reports) == 2  # no third that adds


def test_few_rows_go_both_ways_at_once():
    def picked(rows, dtype):
        return tuple(GRADIENTS.pick({"a": torch.empty(rows, 8, dtype=dtype, device="meta")}).values())

    assert [picked(rows, torch.float32) for rows in (127, 128)] == [(3, 0), (3, 1)]
    assert [picked(rows, torch.bfloat16) for rows in (127, 128)] == [(3, 0), (2, 1)]


def test_what_writes_is_early_and_waits_where_it_adds():
    """The writers need nothing of the launch before them. Who adds waits before it reads, and that launch ends when it has: with it so has the one before."""
    functions = GRADIENTS.sources[0].functions
    assert [n for n, f in functions.items() if f.early] == ["join", "product"]
    text = GRADIENTS.sources[0].text
    product = text[text.index("void ROOFTILE_EARLY __launch_bounds__(256) product") :]
    assert product.index("blockIdx.x) < adders") < product.index("earlier_done();") < product.index("load_global(r, gPartial")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gpu_who_adds_has_waited(dtype):
    """Each call's shares lie where the last call's did: read too soon they are those of another dout."""
    a, x = torch.randint(-3, 4, (8192, 1024), device="cuda").to(dtype), torch.randint(-3, 4, (1024,), device="cuda").to(dtype)
    douts = torch.randint(-3, 4, (30, 8192), device="cuda").to(dtype)
    made = [GRADIENTS.bound(GRADIENTS.pick({"a": a}))(dout, a, x)[1] for dout in douts]
    assert torch.equal(torch.stack(made), (douts.double() @ a.double()).to(dtype))


def test_a_warps_request_in_every_rung():
    """Sectors of 32 bytes for 32 lanes: a thread a row touches one each; a warp a row four in float32; 16 bytes a lane sixteen."""
    a, x = torch.ones(64, 4096), torch.ones(4096)
    sectors = {}
    for kernel in (SPLIT, VECTOR, WARP, NAIVE):
        with simulator.active("all") as reports:
            assert torch.equal(kernel.bound(kernel.heuristic({"a": a, "x": x}))(a, x), torch.full((64,), 4096.0))
        sectors[kernel.name] = max(r.per_request for r in reports[0].accesses if r.space == "global" and not r.store)
    assert sectors["cuda.v1_naive"] > 16 and (sectors["cuda.v2_warp"], sectors["cuda.v3_vector"], sectors["cuda.v4_split"]) == (4, 16, 16)


@pytest.mark.parametrize(
    "a, why",
    [
        (torch.zeros(64, 36, dtype=torch.float16), "rows of a lie 36 elements apart, and it reads 8 at a time"),
        (torch.zeros(64, 64).t(), "neighbours in a row of a lie 64 elements apart, and it reads 4 of them at a time"),
        (torch.zeros(64 * 64 + 1)[1:].view(64, 64), "a begins 4 bytes past a multiple of 16, and it reads 16 bytes at a time"),
    ],
)
def test_what_vectors_cannot_take_is_refused_with_both_numbers(a, why):
    with simulator.active():
        assert SPLIT.refuse({"a": a, "x": torch.zeros(a.shape[1], dtype=a.dtype)}) == why
        assert VECTOR.refuse({"a": a, "x": torch.zeros(a.shape[1], dtype=a.dtype)}) == why
