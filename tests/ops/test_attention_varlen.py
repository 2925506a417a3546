"""What the grid cannot say of attention_varlen: that it is `attention` of each sequence, what is said of wrong offsets, and wrong kernels of its own kind."""

import math

import pytest
import torch

from rooftile import attention, attention_varlen
from rooftile.core.kernel import OPS, Kernel
from rooftile.workbench.check import Problem

VARLEN, BACKWARD = OPS["attention_varlen"], OPS["attention_varlen_backward"]
CU_Q, CU_K = torch.tensor([0, 3, 3, 10, 11], dtype=torch.int32), torch.tensor([0, 5, 9, 9, 13], dtype=torch.int32)


def qkv(grad=False):
    gen = torch.Generator().manual_seed(0)
    return tuple(torch.randn(n, h, 16, generator=gen).requires_grad_(grad) for n, h in ((11, 4), (13, 2), (13, 2)))


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window": (2, 1), "softcap": 2.0}, {"causal": True, "sinks": torch.arange(4.0)}]
)
def test_each_sequence_is_attention_of_a_batch_of_one(options):
    q, k, v = qkv(grad=True)
    out, lse = attention_varlen(q, k, v, CU_Q, CU_K, 7, 5, return_lse=True, **options)
    for b in range(4):
        rows, keys = slice(*CU_Q[b : b + 2].tolist()), slice(*CU_K[b : b + 2].tolist())
        own, own_lse = attention(q[None, rows], k[None, keys], v[None, keys], return_lse=True, **options)
        torch.testing.assert_close(out[rows], own[0])
        torch.testing.assert_close(lse[:, rows], own_lse[0])
    upstream = torch.randn(out.shape)
    grads = torch.autograd.grad(out, (q, k, v), upstream)
    assert not grads[1][5:9].any() and not grads[2][5:9].any()  # keys without a query


def test_offsets_of_two_dtypes_reach_the_kernels_as_one(monkeypatch):
    """Either may be int32 or int64, and cuda.v5_hopper's gradient, which reads both as the first one's, refused the call."""
    given = []
    monkeypatch.setattr(VARLEN, "launch", lambda *args, **how: given.append(args[3:5]) or type(VARLEN).launch(VARLEN, *args, **how))
    q, k, v = qkv(grad=True)
    mixed = [attention_varlen(q, k, v, *cu, 7, 5) for cu in ((CU_Q.long(), CU_K), (CU_Q, CU_K.long()), (CU_Q, CU_K))]
    assert torch.equal(mixed[0], mixed[2]) and torch.equal(mixed[1], mixed[2])
    assert [[x.dtype for x in cu] for cu in given] == [[torch.int64] * 2] * 2 + [[torch.int32] * 2]


def test_queries_without_keys_are_zero():
    q, k, v = qkv()
    out, lse = attention_varlen(q, k, v, CU_Q, CU_K, 7, 5, return_lse=True)
    assert not out[3:10].any() and bool((lse[:, 3:10] == -math.inf).all()) and bool(lse[:, :3].isfinite().all())


@pytest.mark.parametrize(
    "change, said",
    [
        ({"cu_seqlens_q": CU_Q[:-1]}, "B is 4 in cu_seqlens_k, but 3 in cu_seqlens_q"),
        ({"cu_seqlens_q": torch.tensor([0, 3, 3, 10, 12])}, "cu_seqlens_q goes from 0 to 12, and q has 11 rows"),
        ({"cu_seqlens_k": torch.tensor([0, 9, 5, 9, 13])}, "a sequence of k has -4 rows, and max_seqlen_k is 9|a sequence of k has 9 rows"),
        ({"max_seqlen_q": 6}, "a sequence of q has 7 rows, and max_seqlen_q is 6"),
        ({"max_seqlen_k": -1}, "max_seqlen_k is -1, and must be 0"),
        ({"cu_seqlens_q": CU_Q.float()}, "cu_seqlens_q is float32, takes int64, int32|cu_seqlens_q is float32, takes int32, int64"),
        ({"dropout_p": 2.0}, "p is 2.0, it lies between 0 and 1"),
        ({"q": [1.0], "dropout_p": 0.5}, "attention_varlen: q must be a tensor, got list"),
        ({"cu_seqlens_k": [0, 13]}, "attention_varlen: cu_seqlens_k must be a tensor, got list"),
    ],
)
def test_a_wrong_call_names_both_sides(change, said):
    q, k, v = qkv()
    call = {"q": q, "k": k, "v": v, "cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K, "max_seqlen_q": 7, "max_seqlen_k": 5, **change}
    with pytest.raises(ValueError, match=said):
        attention_varlen(**call)


def _moved(cu):
    """The border between the first two sequences that have rows one further on."""
    cu = cu.clone()
    cu[1:-1] += 1
    return cu


PLANTED = {
    "keys of a neighbour": (VARLEN, "cu_seqlens_k"),
    "queries of a neighbour": (VARLEN, "cu_seqlens_q"),
    "the gradient with keys of a neighbour": (BACKWARD, "cu_seqlens_k"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_seen(name):
    op, what = PLANTED[name]

    def run(*args):
        call = dict(zip(op.names, args))
        return op.spec.reference(**{**call, what: _moved(call[what]), "max_seqlen_q": 45, "max_seqlen_k": 60})

    case = next(c for c in op.spec.cases if "smoke" in c.use)
    assert Problem(op.spec, case, "normal", "cpu").judge(Kernel("planted", run)).status == "failed"


def test_a_batch_may_have_no_sequences():
    """Seen red: it was refused, and what a rank of many is dealt may be nothing."""
    x, sinks = torch.empty(0, 2, 16, requires_grad=True), torch.zeros(2, requires_grad=True)
    cu = torch.zeros(1, dtype=torch.int32)
    out, lse = attention_varlen(x, x, x, cu, cu, 0, 0, sinks=sinks, causal=True, return_lse=True)
    out.sum().backward()
    assert out.shape == (0, 2, 16) and lse.shape == (2, 0) and x.grad.shape == x.shape and torch.equal(sinks.grad, torch.zeros(2))
    with pytest.raises(ValueError, match="cu_seqlens_q has 0 elements, needs 1 at least"):
        attention_varlen(x, x, x, cu[:0], cu[:0], 0, 0)
    for q, k in ((torch.ones(3, 2, 16), x), (x, torch.ones(4, 2, 16))):
        with pytest.raises(ValueError, match=f"there are no sequences, .* but {len(q)} queries and {len(k)} keys"):
            VARLEN(q, k, k, cu, cu, None, None, len(q), len(k), 0.25, -1, -1, 0.0, 0.0, False)
