"""What the grid's smallest shape does not reach in the simulator: blocks that share a row and take several, one after another, with races watched."""

import pytest
import torch

from faulty_kernels import rewritten
from rooftile import ops  # noqa: F401  declares the operators
from rooftile.core.kernel import OPS
from rooftile.core.spec import Case
from rooftile.cuda import simulator
from rooftile.cuda.launch import recording
from rooftile.ops._shared.cuda_norms import GRADIENTS, short_rows
from rooftile.ops._shared.cuda_shares import Hold, beside_rows, no_room, share, too_wide
from rooftile.ops.softmax import cuda_kernels as softmax_kernels
from rooftile.ops.softmax.reference import allowed
from rooftile.workbench.check import with_gradients

EPS = {"softmax": {}, "rmsnorm": {"eps": 1e-6, "offset": 1.0}, "layernorm": {"eps": 1e-5}}
SUMS = {"add_rmsnorm": {"eps": 1e-6, "offset": 1.0}, "add_layernorm": {"eps": 1e-5, "affine": "float32"}}
SCORES = Case({"B": 1, "H": 1, "T": 7, "N": 2048}, torch.bfloat16, {"scale": 0.5, "causal": True, "masked": True})


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kernel", ["cuda.v6_pipeline", "cuda.v7_cluster"])
@pytest.mark.parametrize("name", EPS)
def test_blocks_take_row_after_row(name, kernel):
    for op in with_gradients([OPS[name]]):
        held_to_the_reference(op, kernel, Case({"M": 7, "N": 2048}, torch.bfloat16, EPS[name]))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("m, n, affine", [(9, 1024, "float32"), (7, 768, "io"), (3, 2048, "none"), (1, 24, "io")])
def test_a_warp_takes_rows_at_once(name, m, n, affine):
    """A last group of rows that is not whole, parameters asked for before and after the sums, and lanes that have no column."""
    kernel, shapes = OPS[name].kernel("cuda.v5_rows"), set()
    call = OPS[name].spec.draw(Case({"M": m, "N": n}, torch.bfloat16, {**EPS[name], **({} if affine == "io" else {"affine": affine})}))
    for config in kernel.configs:
        shape = short_rows(call["x"], m, n, config)
        if shape in shapes:
            continue
        shapes.add(shape)
        with simulator.active("all"):
            agree(kernel.bound(config)(*call.values()), OPS[name].spec.reference(*call.values()))


@pytest.mark.parametrize("affine", ["float32", "io"])
@pytest.mark.parametrize("n", [1024, 1016])
@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
def test_weights_stay_beside_their_gradients(name, n, affine):
    """Four vectors a lane, of which layernorm holds one's weights; 16 rows a turn, of which the last has one."""
    op = OPS[name].backward
    call = op.spec.draw(Case({"M": 33, "N": n}, torch.bfloat16, {**EPS[name], **({} if affine == "io" else {"affine": affine})}))
    with simulator.active("all"):
        agree(op.kernel("cuda.v6_pipeline").bound(GRADIENTS[0])(*call.values()), op.spec.reference(*call.values()))


@pytest.mark.parametrize(
    "m, n, vecs, whole",
    [
        (33, 512, 2, True),
        (33, 504, 2, False),
        (33, 64, 1, True),
        (5, 4096, 2, True),
        (5, 4088, 2, False),
        (3, 12288, 3, True),
        (17, 768, 3, True),
    ],
)
def test_rows_as_wide_as_their_threads_are_not_asked_where_they_end(m, n, vecs, whole):
    op = OPS["layernorm"].backward
    call, kernel = op.spec.draw(Case({"M": m, "N": n}, torch.bfloat16, EPS["layernorm"])), op.kernel("cuda.v6_pipeline")
    run = kernel.bound({"vecs": 2 if vecs < 3 else 4, "threads": 256, "stages": 2, "per": 1})
    with simulator.active(), recording() as launched:
        run(*call.values())
    lanes, held, *_, full = launched[0].instance[:-1].split(", ")[-5:]
    assert (int(held), full) == (vecs, str(whole).lower()) and (int(lanes) * vecs * 8 == n) == whole
    with simulator.active("all"):
        agree(run(*call.values()), op.spec.reference(*call.values()))


@pytest.mark.parametrize("name", SUMS)
def test_gradients_of_sums_row_after_row(name):
    held_to_the_reference(OPS[name].backward, "cuda.v2_rows", Case({"M": 5, "N": 2048}, torch.bfloat16, SUMS[name]))


@pytest.mark.parametrize("kernel", ["cuda.v3_block_row", "cuda.v6_pipeline"])
def test_causal_gradients_end_at_the_diagonal(kernel):
    """What lies beyond it is not read: a row may end within 16 bytes."""
    op = OPS["masked_softmax"].backward
    call = op.spec.draw(SCORES)
    call["dout"] = torch.where(allowed(call["out"], None, True), call["dout"], torch.nan)
    k = op.kernel(kernel)
    with simulator.active("all"):
        agree(k.bound(k.heuristic(call))(*call.values()), op.spec.reference(*call.values()))


@pytest.mark.parametrize("held", [0, 1])
def test_a_row_waits_in_shared_memory_in_registers_and_in_l2(held):
    """2048 columns are 256 vectors: 64 of them parked, 64 held by as many threads, 128 read again."""
    for name, case in {"log_softmax": Case({"M": 2, "N": 2048}, torch.bfloat16), "masked_softmax": SCORES}.items():
        call = OPS[name].spec.draw(case)
        with simulator.active("all"):
            made = OPS[name].kernel("cuda.v5_online").bound({"park": 1024, "each": 4, "held": held, "threads": 128})(*call.values())
        agree(made, OPS[name].spec.reference(*call.values()))


VISITS = [{"cluster": 8, "vecs": 2, "per": 1}, {"cluster": 2, "vecs": 4, "per": 1}, {"cluster": 1, "vecs": 8, "per": 1}]
STAYS = [
    {"cluster": 8, "vecs": 1, "stages": 2, "per": 1},
    {"cluster": 2, "vecs": 2, "stages": 3, "per": 2},
    {"cluster": 1, "vecs": 4, "stages": 2, "per": 1},
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("n", [1000, 4096])
@pytest.mark.parametrize("name", EPS)
def test_warps_wait_for_numbers_alone(name, n):
    """Some of them without a column of the row; backward of norms a row's numbers travel while the one before it is written."""
    for op in with_gradients([OPS[name]]):
        call = op.spec.draw(Case({"M": 5, "N": n}, torch.bfloat16, EPS[name]))
        kernel = op.kernel("cuda.v8_exchange")
        for config in STAYS if "stages" in kernel.configs[0] else VISITS:
            with simulator.active("all"):
                agree(kernel.bound(config)(*call.values()), op.spec.reference(*call.values()))


WAITS = {  # what stands in softmax's v9_ahead.cu, and what comes in its place; 3080 columns end within a warp's
    "whole": ("", ""),
    "the row is not waited for": ("if (own_columns > 0) mbarrier_wait(&sFull[warp()], 0);", ""),
    "nor the blocks of the cluster": ("  cluster_wait();  // nobody", "  // nobody"),
    "nor who has made the barrier": ("  exchange_open(sExchange);\n  __syncwarp();", "  exchange_open(sExchange);"),
    "zeros behind the row": ("sOwn[v * WARP] = nothing<T>();", "sOwn[v * WARP] = {};"),
    "a store behind it": ("if (v * NEXT >= left) break;\n    uint4 rOut;", "uint4 rOut;"),
}


@pytest.mark.parametrize("what", WAITS)
def test_a_row_in_shared_memory_is_waited_for(what, tmp_path, monkeypatch):
    stands, instead = WAITS[what]
    if stands:
        monkeypatch.setattr(softmax_kernels, "V9", rewritten(softmax_kernels.V9, stands, instead, tmp_path))
    x = torch.randn(5, 3080, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    try:
        with simulator.active("all"):
            made = softmax_kernels.ahead(x, config={"cluster": 4, "vecs": 2, "per": 1})
        right = bool((made.float() - torch.softmax(x.float(), -1)).abs().max() < 1e-3)
    except simulator.Found:
        right = False
    assert right == (what == "whole")


def test_a_grid_of_clusters_is_even():
    """A cluster more than fit would run alone, after all others; fewer that take as many turns leave room."""
    x = torch.empty(1000, 131072, dtype=torch.bfloat16, device="meta")
    s = share(x, {"cluster": 8, "vecs": 4, "stages": 2, "per": 2}, Hold(4, 8), tensors=2)
    assert (s.cluster, s.threads, s.vecs, s.per, s.shared) == (8, 512, 4, 1, 131072)
    assert s.blocks(x, 1000, None, "") == 16 * 8 and s.blocks(x, 16, None, "") == 16 * 8 and s.blocks(x, 18, None, "") == 9 * 8


WIDEST, NARROW = {"cluster": 2, "vecs": 8, "stages": 4, "per": 4}, {"cluster": 8, "vecs": 1, "stages": 9, "per": 9}


@pytest.mark.parametrize("n, config", [(131072, WIDEST), (8, NARROW)])
@pytest.mark.parametrize("hold", [Hold(4, 8), Hold(2, 4), Hold(1, 4)])
def test_shares_keep_within_a_multiprocessor(n, config, hold):
    x = torch.empty(3, n, dtype=torch.bfloat16, device="meta")
    s = share(x, config, hold, tensors=2)
    assert s.cluster * s.threads * s.vecs * 8 >= n and s.per * s.threads * (128 if s.vecs > hold.light else 64) <= 65536
    assert s.per * (s.shared + beside_rows(s.cluster, s.threads)) <= 228 * 1024


def test_rows_too_wide_are_refused_in_a_sentence():
    x = torch.empty(2, 1 << 18)
    assert too_wide(x, Hold(4, 8)) == "N=262144 is longer than the 131072 columns that the registers of 8 blocks hold"
    assert no_room(x, 16, 2) == "two rows of 262144 columns and what stays are 655360 bytes for each of 8 blocks, which have 221184"


def held_to_the_reference(op, kernel, case):
    call = op.spec.draw(case)
    k = op.kernel(kernel)
    for config in (k.heuristic(call), {**k.heuristic(call), "stages": 2}):
        with simulator.active("all"):
            assert k.refuse(call) is None
            made = k.bound(config)(*call.values())
        agree(made, op.spec.reference(*call.values()))


def agree(made, wanted):
    for a, b in zip(made if isinstance(made, tuple) else [made], wanted if isinstance(wanted, tuple) else [wanted]):
        largest = float(b.abs().nan_to_num().max() or 1) if b.numel() else 1.0
        torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-2 * min(1.0, largest), equal_nan=True)
