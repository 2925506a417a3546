"""What the grid cannot say of reduce_sum: long sums of small numbers, any strides, its gradient's shape."""

import pytest
import torch

from rooftile.core.kernel import OPS, Kernel
from rooftile.core.spec import Case
from rooftile.cuda import simulator
from rooftile.ops import reduce_sum
from rooftile.workbench.check import Problem

VECTOR = OPS["reduce_sum"].kernel("cuda.v5_vector")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_float32_sums_of_narrow_numbers(device):
    """Ones in bfloat16 would stop at 256, in a chain of float32 at 2^24."""
    assert reduce_sum(torch.ones(40000, dtype=torch.bfloat16, device=device)) == 39936  # 40000 rounded to 8 bits
    assert reduce_sum(torch.ones(2**25, device=device)) == 2**25


def test_the_sum_does_not_depend_on_the_strides():
    x = torch.randn(37, 53).mul(4).round()
    assert reduce_sum(x) == reduce_sum(x.t()) == reduce_sum(x[:, ::2]) + reduce_sum(x[:, 1::2])
    assert reduce_sum(torch.tensor(2.5)) == 2.5 and reduce_sum(torch.empty(0, 3)) == 0


def test_the_gradient_is_one_number_everywhere():
    x = torch.randn(3, 4, requires_grad=True)
    (3 * reduce_sum(x)).backward()
    assert torch.equal(x.grad, torch.full((3, 4), 3.0)) and x.grad.is_contiguous()


def test_messages_name_what_is_taken():
    with pytest.raises(ValueError, match="x is int64, takes float32"):
        reduce_sum(torch.ones(3, dtype=torch.int64))


def test_double_precision_added_in_single_is_refused():
    """The gate measures float64 by float64's own roundoff; were it float32's, this kernel would pass."""
    problem = Problem(OPS["reduce_sum"].spec, Case({"...": (12289,)}, torch.float64), "normal", "cpu")
    assert problem.judge(Kernel("single", lambda x: x.float().sum().double())).status == "failed"
    assert problem.judge(Kernel("double", lambda x: x.view(-1, 1).sum(0).sum())).status == "passed"


@pytest.mark.parametrize("config", VECTOR.configs, ids=lambda c: "-".join(map(str, c.values())))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_config_of_the_vector_rung(config, dtype):
    """Every turn of the loops: blocks that stride, a last turn that is not full, elements after the last vector."""
    share = config["threads"] * config["each"] * 16 // dtype.itemsize
    x = torch.arange(2 * share + 16 * 40 + 1).remainder(5).to(dtype)
    with simulator.active("checks") as reports:
        assert VECTOR.bound(config)(x) == x.sum()
    assert len(reports) == 2  # two stages


def test_a_warps_request_in_every_rung():
    """32 floats are 4 sectors; of 16 bytes a lane 16. The trees have no bank conflict; the sums a warp leaves take one wavefront."""
    x = torch.ones(2**14)
    sectors, wavefronts = {}, {}
    for kernel in OPS["reduce_sum"].kernels[:-1]:
        if kernel.sources:
            with simulator.active("all") as reports:
                assert kernel.bound(kernel.heuristic({"x": x}))(x) == 2**14
            accesses = [a for r in reports for a in r.accesses]
            sectors[kernel.name] = max(a.per_request for a in accesses if a.space == "global" and not a.store)
            wavefronts[kernel.name] = max((a.per_request for a in accesses if a.space == "shared"), default=0)
    assert sectors == {"cuda.v5_vector": 16, "cuda.v4_shuffle": 4, "cuda.v3_dynamic": 4, "cuda.v2_shared": 4, "cuda.v1_atomics": 4}
    assert wavefronts == {"cuda.v5_vector": 1, "cuda.v4_shuffle": 1, "cuda.v3_dynamic": 1, "cuda.v2_shared": 1, "cuda.v1_atomics": 0}
