"""Who is timed beside us, and what a missing library is told."""

import importlib.util
import inspect
import sys
from dataclasses import replace

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.workbench import bench, peers


@pytest.mark.parametrize(("library", "op"), peers.LIBRARIES, ids=lambda x: x)
def test_a_library_computes_an_operator_there_is(library, op):
    assert library in peers.PACKAGES and op in OPS


@pytest.mark.parametrize(("library", "op"), peers.LIBRARIES, ids=lambda x: x)
def test_a_library_is_given_what_the_operator_takes(library, op):
    """Seen red: gated_mlp got a residual that Liger's did not take, and no record had a time of it."""
    inspect.signature(peers.LIBRARIES[library, op]).bind(**dict.fromkeys(OPS[op].names))


@pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is not None, reason="Liger is installed here")
def test_a_library_that_is_missing_is_a_sentence():
    with pytest.raises(RuntimeError, match=r"liger_kernel\.ops\.softmax cannot be imported .*pip install liger-kernel"):
        peers.function("liger", OPS["softmax"].spec)(torch.ones(2, 2))


def test_a_bench_beside_a_library_that_is_missing_does_not_begin(monkeypatch):
    monkeypatch.setattr(bench, "_case", lambda *_: pytest.fail("it began"))
    monkeypatch.setitem(sys.modules, "quack", None)
    with pytest.raises(ValueError, match=r"^peer quack: quack cannot be imported .*pip install quack-kernels"):
        bench.bench(["gelu"], ["torch", "quack"], "cpu", "", None, None)


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if op.spec.forward is None and peers.function("torch", op.spec)])
def test_pytorchs_own_takes_what_the_operator_takes(name):
    """Seen red: adamw_measured's took its arguments by place, and no record had a time of PyTorch's."""
    spec, here = OPS[name].spec, torch.device("cpu")
    small = [c for c in spec.cases if "smoke" in c.use and c.dims.get("N", 0) % (c.params.get("block_n") or 1) == 0]
    peers.peer_run("torch", spec, small[0], spec.draw(small[0], 0, here), here)()


def test_what_is_compiled_has_no_workers_to_wait_for():
    """Seen on a GPU: all was recorded, and the process stood at its end until it was killed, as Inductor waited for its workers."""
    from torch._inductor import config

    with config.patch(compile_threads=8):
        assert peers.function("compile", OPS["gelu"].spec) is not None and config.compile_threads == 1


def test_a_library_is_not_asked_for_what_it_does_not_have():
    assert peers.function("liger", OPS["adamw"].spec) is None


@pytest.mark.parametrize("name", peers.COMPILABLE)
def test_what_is_compiled_of_adamw_is_pytorchs_step(name):
    spec = OPS[name].spec
    case = next(c for c in spec.cases if "smoke" in c.use and c.dtype == torch.float32)
    calls = [spec.draw(case, 0, torch.device("cpu")) for _ in range(2)]
    made = torch.compile(peers.COMPILABLE[name], backend="eager", fullgraph=True)(**calls[0])
    torch.testing.assert_close(made, spec.peer(**calls[1]))
    for tensors in ("params", "exp_avgs", "exp_avg_sqs"):
        torch.testing.assert_close(calls[0][tensors], calls[1][tensors])
    masters = next(c for c in spec.cases if c.params.get("master") and "smoke" in c.use)
    with pytest.raises(NotImplementedError, match="PyTorch's AdamW has no masters, scale, which the case wants"):
        peers.COMPILABLE[name](**spec.draw(masters, 0, torch.device("cpu")))


def test_a_peer_that_computes_something_else_is_not_timed(monkeypatch):
    op = OPS["softmax"]
    case = next(c for c in op.spec.cases if "smoke" in c.use)
    call = op.spec.draw(case, 0, torch.device("cpu"))
    own = peers.peer_run("torch", op.spec, case, call, torch.device("cpu"))
    monkeypatch.setitem(peers.LIBRARIES, ("liger", "softmax"), lambda x: torch.softmax(x, 0))
    fact, run = bench._peer(op.spec, case, call, torch.device("cpu"), "liger", own)
    assert run is None and fact["status"] == "error" and "away from PyTorch" in fact["message"]
    monkeypatch.setitem(peers.LIBRARIES, ("liger", "softmax"), lambda x: torch.softmax(x, -1))
    assert bench._peer(op.spec, case, call, torch.device("cpu"), "liger", own)[1] is not None


def test_a_call_that_a_peer_does_not_take_is_a_fact_and_the_bench_goes_on():
    def refuses():
        raise RuntimeError("no multiple of 128, it is 136")

    assert bench._refusal(refuses) == "RuntimeError: no multiple of 128, it is 136"
    assert bench._refusal(lambda: None) == ""


def test_small_calls_are_timed_beside_every_peer_that_takes_them(monkeypatch):
    monkeypatch.setattr(bench.timing, "hosts", lambda versions, where: {n: 7.0 if n == bench.YARDSTICK else 3.0 for n in versions})
    monkeypatch.setitem(peers.LIBRARIES, ("liger", "softmax"), lambda x: 1 / 0)
    made = []

    class Session:
        where = torch.device("cpu")

        def record(self, op, kernel, case, **facts):
            made.append((kernel, case, facts["status"], facts.get("extra")))

    op = OPS["softmax"]
    case = next(c for c in op.spec.cases if "call" in c.use)
    bench._calls(Session(), op, case, ["torch", "liger", "quack"])
    took = {"host_us": 3.0, "layer_norm_us": 7.0}
    assert made == [("reference", f"host-{case.id}", "passed", took), ("peer.torch", f"host-{case.id}", "passed", took),
                    ("peer.liger", f"host-{case.id}", "error", None), *made[3:]]  # fmt: skip


@pytest.mark.parametrize("name", peers.DRAWING)
def test_what_draws_its_own_mask_is_timed_and_nobody_is_held_to_it(name):
    where = torch.device("cpu")
    for op in (OPS[name], OPS[name].backward):
        for case in (c for c in op.spec.cases if "smoke" in c.use):
            call = op.spec.draw(case, 0, where)
            assert peers.own_run(op.spec, case, call, where) is None
            fact, run = bench._peer(op.spec, case, call, where, "torch", None)
            assert run is not None and fact == {"status": "passed", "errors": {}}
            made, wanted = bench._results(run()), bench._results(op.spec.empty_returns(call))
            for a, b in zip(made, [t for t in wanted if t.numel()]):
                assert a.shape == b.shape


@pytest.mark.parametrize("name", peers.AHEAD)
def test_beside_a_forward_that_makes_the_gradients_peers_make_them_too(name, monkeypatch):
    where, op = torch.device("cpu"), OPS[name]
    case = next(c for c in op.spec.cases if "smoke" in c.use)
    call, asked = op.spec.draw(case, 0, where), []
    own = peers.peer_run("torch", op.spec, case, call, where)
    real = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda loss, leaves: asked.append(len(leaves)) or real(loss, leaves))
    with torch.no_grad():
        fact, run = bench._peer(op.spec, case, call, where, "torch", own)
    assert run is not None and fact["errors"] == {"to_torch": 0.0} and set(asked) == {len(op.spec.backward.leaves)}
    assert bench.distance(op.spec, op.kernel("chunked").run, call, own) < 1e-5
    assert peers.peer_run("torch", op.backward.spec, case, op.backward.spec.draw(case, 0, where), where) is None


@pytest.mark.parametrize("name", ["softmax", "attention_mask", "dropout", "rope_overwrite", "adamw"])
def test_nobody_is_timed_who_is_wrong_at_that_size(name):
    """Seen red: what was not written, NaN, was 0 away from PyTorch's result, and so was all that writes in place or that PyTorch has nothing of."""
    op, here = OPS[name], torch.device("cpu")
    case = next(c for c in op.spec.cases if "smoke" in c.use)
    call = op.spec.draw(case, 0, here)
    own, limit = peers.own_run(op.spec, case, call, here), bench.LIMIT[op.spec.io(call)]
    assert bench.distance(op.spec, op.spec.reference, call, own) <= limit
    assert bench.distance(op.spec, lambda *args: op.spec.empty_returns(call), call, own) > limit


@pytest.mark.parametrize("name", peers.AHEAD)
def test_and_so_do_we(name):
    """What is timed returns the gradients of a loss of 1; what is held to PyTorch's result is the forward's."""
    where, op = torch.device("cpu"), OPS[name]
    case = next(c for c in op.spec.cases if "smoke" in c.use and c.dtype == torch.float32)
    call = op.spec.draw(case, 0, where)
    session = bench.Session("cpu")
    session.hold([op])
    leaves = {n: call[n].requires_grad_() for n in op.spec.backward.leaves if call[n] is not None}
    wanted = torch.autograd.grad(op.spec.peer(**call), list(leaves.values()))
    with torch.no_grad():
        _, run = bench._candidate(session, op, op.kernel("chunked"), call, None)
        timed = [run(), bench._both_ways(op, lambda: op(*call.values()), call)()]
    for made in timed:
        for a, e in zip(made if isinstance(made, tuple) else [made], wanted, strict=True):
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-6)
    other = OPS["linear_cross_entropy"]
    assert bench._both_ways(other, run, call) is run


FLEX = {  # where its mask, its cap and its heads are not those of the plain call
    "attention": ["keys before the first query, so the diagonal", "two heads read a key head"],
    "attention_options": [
        "a window that crosses tiles",
        "a mask of each head, two read a key head",
        "one mask for all heads, queries that see nothing, causal",
        "a mask in a window",
        "the same of fewer queries, causal",
        "sinks in a window, queries that see nothing but theirs",
        "sinks and a cap, both edges in three tiles of keys",
        "a bias a head, for both batches",
        "a bias for all heads, a cap",
    ],
    "attention_varlen": ["more keys than queries and fewer", "sinks in a window, queries that see theirs alone"],
}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(("name", "why"), [(n, w) for n, whys in FLEX.items() for w in whys])
def test_flex_attention_is_told_what_the_case_says(name, why):
    """Uncompiled on a CPU. Causal and windows are aligned to the last key, of each sequence."""
    spec = OPS[name].spec
    case = replace(next(c for c in spec.cases if why in c.why), dtype=torch.float32)
    call = spec.draw(case)
    made = peers.peer_run("flex", spec, case, call, torch.device("cpu"))()
    torch.testing.assert_close(made, spec.reference(**call)[0], rtol=1e-4, atol=1e-5)


def test_a_library_is_not_asked_for_options_that_it_lacks():
    spec = OPS["attention_options"].spec
    call = spec.draw(next(c for c in spec.cases if "smoke" in c.use))
    with pytest.raises(NotImplementedError, match="has no bias, dropout, which the case wants"):
        peers.function("fa4", spec)(**call)


def test_flash_attention_2_is_asked_by_name():
    """On a CPU its namesake there answers."""
    q, k, v = torch.randn(2, 5, 4, 16), *torch.randn(2, 2, 5, 4, 16)
    run = peers.function("fa2", OPS["attention"].spec)
    torch.testing.assert_close(run(q, k, v, True, 0.25), OPS["attention"].spec.reference(q, k, v, True, 0.25)[0])
    for call, why in (((q, k[:, :3], v[:, :3], True, 0.25), "5 queries, 3 keys"), ((q, k, v[..., :8], False, 0.25), "8 and 16")):
        with pytest.raises(NotImplementedError, match=why):
            run(*call)


def test_a_peer_that_writes_fewer_bytes_is_not_timed(monkeypatch):
    """Seen in a record: Liger gave the sum of a float32 stream in bfloat16, which is close enough, and was 1.15 times as fast as who writes float32."""
    op, here = OPS["add_rmsnorm"], torch.device("cpu")
    case = next(c for c in op.spec.cases if c.dtype == torch.bfloat16 and op.spec.draw(c, 0, here)["residual"].dtype == torch.float32)
    call = op.spec.draw(case, 0, here)
    own = peers.peer_run("torch", op.spec, case, call, here)

    def narrow(**call):
        out, total = op.spec.peer(**call)
        return out, total.to(out.dtype)

    monkeypatch.setitem(peers.LIBRARIES, ("liger", "add_rmsnorm"), narrow)
    fact, run = bench._peer(op.spec, case, call, here, "liger", own)
    assert run is None and fact["status"] == "error" and "gives torch.bfloat16 where PyTorch gives torch.float32" in fact["message"]
