"""Which reads are the last to leave the L2: one rule for Triton and for CUDA C++, in what Triton compiles."""

import re
import sys

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from rooftile.core.kernel import OPS
from rooftile.cuda.source import INCLUDE
from rooftile.ops._shared.policy import MANY, evict_last
from rooftile.workbench.check import with_gradients
from rooftile.workbench.explain import blank

READS = ("swiglu", "residual_add", "dropout", "bias_mask_scale_add", "add_layernorm", "softmax_backward", "embedding")


def test_the_rule_is_one_and_begins_where_it_says():
    header = (INCLUDE / "rooftile" / "policy.cuh").read_text()
    assert eval(re.search(r"MANY = (.*?);", header)[1]) == MANY
    half = torch.empty(MANY // 4, dtype=torch.bfloat16, device="meta")
    assert evict_last(half, half, None) == "" and evict_last(half, half, half[:1]) == "evict_last"


@pytest.mark.parametrize("name", READS)
def test_what_is_launched_says_it_of_large_tensors_alone(name, monkeypatch):
    op = next(o for o in with_gradients(list(OPS.values())) if o.spec.name == name)
    kernel = next(k for k in op.kernels if k.name == "triton")
    said = []
    for module in [m for n, m in sys.modules.items() if n.startswith("rooftile.ops.") and hasattr(m, "launch")]:
        monkeypatch.setattr(module, "launch", lambda *args, POLICY=None, **meta: said.append(POLICY))
    calls = [blank(op.spec, c, "meta") for c in op.spec.cases if {"smoke", "bench"} & set(c.use)]
    calls.sort(key=lambda call: max(t.nbytes for t in call.values() if isinstance(t, torch.Tensor)))
    for call in (calls[0], calls[-1]):
        kernel.bound(kernel.heuristic(call))(*call.values())
    assert [p for p in said if p is not None] == ["", "evict_last"]


@pytest.mark.parametrize("policy", ["", "evict_last"])
def test_triton_hands_it_to_the_hardware(policy):
    from rooftile.ops.residual_add.triton_kernels import _add

    arguments = dict.fromkeys(("gX", "gResidual", "gOut"), "*bf16") | dict.fromkeys(
        ("N", "tiles", "stride_x", "stride_residual", "stride_out"), "i32"
    )
    constants = {"SOLE": True, "BLOCK": 1024, "POLICY": policy}
    source = ASTSource(_add, arguments | dict.fromkeys(constants, "constexpr"), constants)
    ptx = compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    loads = re.findall(r"ld\.global\S*", ptx)
    assert len(loads) >= 2 and all(("evict_last" in load or "cache_hint" in load) == bool(policy) for load in loads), loads
