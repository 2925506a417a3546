"""cuda.v3_pipeline of the norms of a sum: every way its rows are dealt, x_bias's gradient of what was written, and who is asked first."""

import pytest
import torch

from faulty_kernels import rewritten
from rooftile import ops  # noqa: F401  declares the operators
from rooftile.core.kernel import OPS
from rooftile.core.spec import Case
from rooftile.cuda import compile as compiler
from rooftile.cuda import simulator
from rooftile.cuda.launch import recording
from rooftile.ops._shared import cuda_partials, sum_pipeline
from rooftile.ops._shared.cuda_norms import MANY
from rooftile.workbench.check import Problem
from rooftile.workbench.explain import imagined

EPS = {"eps": 1e-5}
MASTER = {**EPS, "affine": "float32"}
GPT2 = {**MASTER, "stream": "io", "lacks": "f32"}
RMS = {"eps": 1e-6, "offset": 1.0}
DROPS = {"p": 0.3, "eps": 1e-5, "norm": "layer"}
CASES = {
    "gpt2": ("add_layernorm", Case({"M": 53, "N": 768}, torch.bfloat16, GPT2)),
    "lanes without a column": ("add_layernorm", Case({"M": 27, "N": 712}, torch.bfloat16, GPT2)),
    "rows beside each other in a warp": ("add_layernorm", Case({"M": 131, "N": 64}, torch.bfloat16, {**EPS, "lacks": "io"})),
    "a block a row": ("add_layernorm", Case({"M": 7, "N": 2048}, torch.bfloat16, {**EPS, "lacks": "io"})),
    "a float32 stream": ("add_layernorm", Case({"M": 29, "N": 768}, torch.bfloat16, {**MASTER, "lacks": "f32"})),
    "float32": ("add_layernorm", Case({"M": 29, "N": 264}, torch.float32, {**EPS, "lacks": "io"})),
    "x's bias and no parameters": ("add_layernorm", Case({"M": 29, "N": 768}, torch.bfloat16, {**EPS, "affine": "none", "lacks": "io"})),
    "a weight as it came": ("dropout_add_norm", Case({"M": 13, "N": 1024}, torch.bfloat16, DROPS)),
    "a weight and x's bias": ("add_layernorm", Case({"M": 29, "N": 768}, torch.float16, {**EPS, "affine": "weight", "lacks": "f32"})),
    "no bias for x": ("add_layernorm", Case({"M": 29, "N": 768}, torch.bfloat16, MASTER)),
    "rmsnorm": ("add_rmsnorm", Case({"M": 29, "N": 768}, torch.bfloat16, {**RMS, "affine": "float32"})),
    "a mask": ("dropout_add_norm", Case({"M": 29, "N": 768}, torch.bfloat16, DROPS)),
}


def of(name):
    op = OPS[f"{name}_backward"]
    return op, op.kernel("cuda.v3_pipeline")


@pytest.mark.sampled(7)
@pytest.mark.parametrize("which", CASES)
def test_every_deal_of_rows_makes_the_same_gradients(which):
    """Two blocks take row after row, the last group is not whole; two runs have the same bits, and x's bias the sum of the rows that were written."""
    name, case = CASES[which]
    op, kernel = of(name)
    call, seen = op.spec.draw(case), set()
    wanted = op.spec.reference(*call.values())
    assert kernel.refuse(call) is not None  # here is no GPU
    for config in (kernel.heuristic(call), *kernel.configs):
        with simulator.active():
            assert kernel.refuse(call) is None
            with recording() as launched:
                kernel.bound(config)(*call.values())
        instance = next(s.instance for s in launched if s.instance.startswith("backward"))
        if instance in seen:
            continue
        seen.add(instance)
        with simulator.active("all"):
            made = kernel.bound(config)(*call.values())
        with simulator.active():
            again = kernel.bound(config)(*call.values())
        for a, b, c in zip(made, again, wanted):
            assert torch.equal(a, b), instance
            loose = 2e-2 if a.dtype.itemsize == 2 else 2e-3 if case.dtype.itemsize == 2 else 1e-5
            torch.testing.assert_close(a, c, rtol=loose, atol=loose)
        if "lacks" in case.params:
            written = made[0].double().sum(0)
            assert (made[3].double() - written.to(made[3].dtype).double()).abs().max() <= (1e-5 if made[3].dtype == torch.float32 else 3e-2)
    assert len(seen) > 4


FAULTS = {
    "of what was not rounded": ("unpack<R>(rF, rDr);", "for (int k = 0; k < WIDTH; ++k) rF[k] = rAway[k];"),
    "without the last row": ("rDxb[v][k] += rF[k];", "rDxb[v][k] += i + 1 < turns ? rF[k] : 0.0f;"),
    "without a third of the partial rows": ("P - i_r : 0; left > 0;", "P - i_r - part / 2 : 0; left > 0;"),
    "of dsum": ("unpack<R>(rF, rDr);", "unpack<R>(rF, sAt[v * SLOT + THREADS]);"),
    "the row before's statistics": ("ask_ahead(gRstd_next, rest > 1)", "ask_ahead(gRstd_next - step, rest > 1)"),
    "a row that is not there": ("rest > STAGES", "rest >= STAGES"),
    "the slots of another row": ("sAt = sAt == sFirst +", "sAt = sAt != sFirst +"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_refused(fault, tmp_path, monkeypatch):
    op, kernel = of("add_layernorm")
    module, source = (cuda_partials, "ADD_ROWS") if "partial rows" in fault else (sum_pipeline, "V3")
    monkeypatch.setattr(module, source, rewritten(getattr(module, source), *FAULTS[fault], tmp_path))
    if fault == "of what was not rounded":  # an error of less than dx's own rounding: what is written is what must be summed
        call = op.spec.draw(Case({"M": 53, "N": 768}, torch.bfloat16, GPT2))
        with simulator.active():
            dx, _, _, dx_bias = kernel.bound(kernel.heuristic(call))(*call.values())
        assert (dx_bias.double() - dx.double().sum(0)).abs().max() > 1e-3
        return
    with simulator.active("all"):
        verdict = Problem(op.spec, Case({"M": 53, "N": 768}, torch.bfloat16, GPT2), "normal", "cpu").judge(kernel)
    assert verdict.status == "failed", verdict


def chosen(name, m, n, lacks=False):
    with imagined("cuda"):
        x, rows, w = (torch.empty(*shape, dtype=torch.bfloat16, device="cuda") for shape in ((m, n), (m,), (n,)))
        call = {"dout": x, "dsum": x, "sum": x, "weight": w, "bias": w, "mean": rows, "rstd": rows, "offset": 0.0, "x_bias": w if lacks else None,
                "seed": rows, "p": 0.1, "norm": "layer"}  # fmt: skip
        op = OPS[f"{name}_backward"]
        return op.choose({k: call[k] for k in op.names}).kernel.name


def test_large_calls_are_its_own():
    for name in ("add_layernorm", "add_rmsnorm", "dropout_add_norm"):
        assert chosen(name, 32768, 768) == chosen(name, 16384, 4096) == "cuda.v3_pipeline"
        assert chosen(name, 64, 768) == "triton"
    assert chosen("add_layernorm", 32768, 768, lacks=True) == "cuda.v3_pipeline"
    call = {"sum": torch.empty(64, 768)}
    assert of("add_layernorm")[1].declines(call) == f"196608 bytes of rows are few turns for a device, which this rung wants {MANY} for"


@pytest.mark.parametrize(
    "n, lacks, lanes, blocks, stages",
    [(768, True, 32, 1, 2), (1024, False, 32, 1, 2), (1024, True, 64, 6, 3), (1536, False, 128, 4, 3), (4096, False, 256, 2, 3)],
)
def test_a_row_is_a_warps_while_its_registers_hold_the_sums(n, lacks, lanes, blocks, stages):
    """Blocks of a multiprocessor each write their sums."""
    x, w = torch.empty(8192, n, dtype=torch.bfloat16, device="meta"), torch.empty(n, dtype=torch.bfloat16, device="meta")
    call = {"dout": x, "sum": x, "weight": w, "bias": w, "x_bias": w if lacks else None}
    d, _ = sum_pipeline._deal(x, x, 3 if lacks else 2, True, sum_pipeline.pick(call))
    assert (d.lanes, d.per, d.stages) == (lanes, blocks, stages)


def test_rows_whose_sums_no_block_holds_are_refused():
    op, kernel = of("add_layernorm")
    for n, params, words in (
        (12296, EPS, "N=12296 is longer than the 12288 columns whose 2 sums 512 threads hold"),
        (8200, {**EPS, "lacks": "io"}, "N=8200 is longer than the 8192 columns whose 3 sums 512 threads hold"),
    ):
        call = op.spec.draw(Case({"M": 1, "N": n}, torch.bfloat16, params))
        with simulator.active():
            assert kernel.refuse(call) == words


@pytest.mark.sampled(5)
@pytest.mark.parametrize("n", [768, 1024, 3072, 8192])
def test_three_sums_and_a_float32_weight_fit_the_registers(n):
    """`rooftile build` asks for weights of the stream's type alone."""
    kernel = of("add_layernorm")[1]
    x, rows, w = (torch.empty(*shape, dtype=dtype, device="meta") for shape, dtype in (
        ((4096, n), torch.bfloat16), ((4096,), torch.float32), ((n,), torch.float32)))  # fmt: skip
    with recording() as seen:
        for config in (kernel.pick({"sum": x}), *kernel.configs):
            kernel.bound(config)(x, x, x, w, w, rows, rows, w)
    made = {s.instance: compiler.compiled(s.source, s.instance, "sm_90a") for s in seen if s.instance.startswith("backward")}
    assert made and {instance: m.spill_bytes for instance, m in made.items() if m.spill_bytes} == {}
