"""Who computes a norm at the sizes that were timed, asked of tensors without memory: an order of kernels that drifts is seen here."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rooftile import ops  # noqa: F401  declares the operators
from rooftile.core.kernel import OPS
from rooftile.core.spec import Case
from rooftile.cuda import compile as compiler
from rooftile.cuda.launch import recording
from rooftile.ops._shared.cuda_norms import MANY
from rooftile.workbench.explain import blank, imagined

FORWARD = {
    (32768, 768): "cuda.v5_rows",
    (32768, 1024): "cuda.v5_rows",
    (16384, 2048): "cuda.v4_register_row",  # a warp would have 8 vectors a lane
    (64, 768): "cuda.v10_least",  # a row a multiprocessor at most
    (200, 768): "cuda.v4_register_row",  # few rows
    (16384, 4096): "cuda.v4_register_row",
    (4096, 16384): "cuda.v4_register_row",
    (2048, 65536): "cuda.v9_ahead",
    (2048, 40000): "cuda.v6_pipeline",
}
BACKWARD = {
    (32768, 768): "cuda.v6_pipeline",
    (64, 768): "triton",
    (32768, 1024): {"layernorm": "triton", "rmsnorm": "cuda.v6_pipeline"},
    (16384, 4096): "cuda.v6_pipeline",
    (8192, 8192): "cuda.v6_pipeline",
    (4096, 16384): "cuda.v8_exchange",
    (2048, 65536): "cuda.v8_exchange",
    (3, 16384): "cuda.v8_exchange",
}


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_fastest_kernel_timed_is_the_one_that_runs(name, direction):
    for (m, n), kernel in (FORWARD if direction == "forward" else BACKWARD).items():
        with imagined("cuda"):
            x, rows, w = (torch.empty(*shape, dtype=torch.bfloat16, device="cuda") for shape in ((m, n), (m,), (n,)))
            call = {"x": x, "weight": w, "bias": w, "eps": 1e-5, "offset": 0.0, "dout": x, "mean": rows, "rstd": rows}
            op = OPS[name] if direction == "forward" else OPS[name].backward
            chosen = op.choose({k: call[k] for k in op.names})
        assert chosen.kernel.name == (kernel if isinstance(kernel, str) else kernel[name]), (m, n, chosen.refused)


def test_without_clusters_long_rows_wait_in_shared_memory():
    """Where v8_exchange refuses, v6_pipeline must not decline what Triton's registers cannot hold: strips of columns read it twice."""
    op = OPS["rmsnorm_backward"]
    with FakeTensorMode():
        x, rows, w = (torch.empty(*shape, dtype=torch.bfloat16, device="cuda") for shape in ((3, 16384), (3,), (16384,)))
        assert op.kernel("cuda.v6_pipeline").declines({"dout": x, "x": x, "weight": w, "rstd": rows, "offset": 0.0}) is None


def test_why_a_rung_declines_is_a_sentence_with_both_numbers():
    short, pipeline = OPS["rmsnorm"].kernel("cuda.v5_rows"), OPS["layernorm_backward"].kernel("cuda.v6_pipeline")
    few, long = {"x": torch.empty(64, 768)}, {"x": torch.empty(8192, 1024)}
    assert short.declines(few) == f"196608 bytes of rows are few turns for a device, which this rung wants {MANY} for"
    assert short.declines(long) == "a row of 4096 bytes has more than the 2048 that a warp holds in 4 vectors a lane"
    assert pipeline.declines(few) == f"196608 bytes of rows are few turns for a device, which this rung wants {MANY} for"
    narrow = {"x": torch.empty(16384, 512)}
    assert pipeline.declines(narrow) == "rows of 2048 bytes and two sums a column leave a multiprocessor 256 threads"


@pytest.mark.parametrize("op", [o for name in ("layernorm", "rmsnorm") for o in (OPS[name], OPS[name].backward)], ids=lambda o: o.spec.name)
def test_every_rung_takes_no_rows(op):
    call = blank(op.spec, Case({"M": 0, "N": 8}, torch.float32, {"eps": 1e-5}), "meta")
    with recording():
        for kernel in op.kernels:
            if kernel.name.startswith("cuda.") and kernel.refuse(call) is None:
                for config in kernel.configs or [None]:
                    kernel.bound(config)(*call.values())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("n", [1024, 2048, 16384])
@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
def test_rows_at_once_and_held_weights_fit_the_registers(name, n):
    """No case of the grid has a float32 weight beside four vectors a thread, the most that stays in registers."""
    call = blank(OPS[name].backward.spec, Case({"M": 4096, "N": n}, torch.bfloat16, {"eps": 1e-5, "affine": "float32"}), "meta")
    forward = blank(OPS[name].spec, Case({"M": 4096, "N": n}, torch.bfloat16, {"eps": 1e-5, "affine": "float32"}), "meta")
    with recording() as seen:
        for kernel, args in ((OPS[name].backward.kernel("cuda.v6_pipeline"), call), (OPS[name].kernel("cuda.v5_rows"), forward)):
            if kernel.refuse(args) is None:
                for config in kernel.configs[:3]:
                    kernel.bound(config)(*args.values())
    made = {s.instance: compiler.compiled(s.source, s.instance, "sm_90a") for s in seen}
    assert made and {instance: m.spill_bytes for instance, m in made.items() if m.spill_bytes} == {}
