"""A recorded launcher does what the launcher does, on other tensors; what cannot be replayed is not."""

import ctypes

import pytest
import torch
import triton
from triton.backends.nvidia.driver import CudaLauncher

import rooftile
from library_of_products import in_the_machines_place
from rooftile.core import replay
from rooftile.workbench import check
from test_cublaslt import gelu, placed, tensors

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def poison():
    """Not here: filling fresh memory is an operation, and what computes is not recorded."""


def move(stream, to, source, count):
    """A 'kernel': bytes from address to address."""
    ctypes.memmove(to, source, count)


def launch(to, source, count):
    """As ops/_shared/launch.py does it: run, then tell the recorder."""
    move(0, to.data_ptr(), source.data_ptr(), count)
    recorder = replay.recorder()
    if recorder is not None:
        recorder.note(move, (replay.STREAM, to, source, count))


def doubled(x, scale):
    """Two allocations, a view of an allocation, a view of an argument, a result that is a view, and one that is not."""
    pair = x.new_empty((2, x.numel()))
    launch(pair[0], x.view(-1), x.nbytes)
    launch(pair[1], x, x.nbytes)
    out = torch.empty_like(x)
    launch(out, pair[1], x.nbytes)
    return pair.view(2, *x.shape), out


def again(run, *args):
    result, replayed = replay.record(run, args, CPU)
    assert replayed is not None
    return result, replayed


def test_a_replay_is_the_launcher_on_other_tensors():
    _, replayed = again(doubled, torch.randn(3, 5), 2.0)
    for _ in range(3):
        x = torch.randn(3, 5)
        got, want = replayed(x, 2.0), doubled(x, 2.0)
        assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(got, want, strict=True))


def test_results_are_fresh_memory():
    _, replayed = again(doubled, torch.randn(4), 1.0)
    first = replayed(torch.ones(4), 1.0)[1]
    replayed(torch.zeros(4), 1.0)
    assert torch.equal(first, torch.ones(4))


@pytest.mark.parametrize("new", [torch.empty_like, lambda x: torch.empty(x.shape), lambda x: x.new_empty(x.shape)])
def test_a_result_is_the_allocation_and_no_view_of_it(new, monkeypatch):
    """Seen red: PyTorch tells a mode of a detach behind each `torch.empty`, which a replay made again for every call of most operators, at the price of a quarter
    of a call."""
    _, replayed = again(new, torch.randn(3, 4))
    monkeypatch.setattr(torch.Tensor, "as_strided", None)
    out = replayed(torch.randn(3, 4))
    assert out.shape == (3, 4) and out.stride() == (4, 1)


def rows_of_it(x, new=torch.empty):
    out = new(x.numel() // 4, 4)
    launch(out, x, x.nbytes)
    return out


RESULTS = {
    "rows": lambda x: rows_of_it(x).view(x.shape),
    "across": lambda x: rows_of_it(x).t(),
    "part": lambda x: rows_of_it(x)[1:],
    "spread": lambda x: rows_of_it(x)[:1].expand(6, 4),
    "apart": lambda x: rows_of_it(x)[:, ::2],
    "bits": lambda x: rows_of_it(x).view(torch.int32),
    "bytes": lambda x: rows_of_it(x).view(torch.uint8),
    "twice": lambda x: (out := rows_of_it(x), out.view(x.shape), out),
    "shape first": lambda x: ((out := rows_of_it(x)).view(x.shape), out),
    "multiplied": lambda x: (torch.mm(out := rows_of_it(x), out.t()), out.view(x.shape)),
    "the same, known itself": lambda x: ((out := rows_of_it(x, x.new_empty)).view(x.shape), out),
    "multiplied, known itself": lambda x: (torch.mm(out := rows_of_it(x, x.new_empty), out.t()), out.view(x.shape)),
    "none": lambda x: (None, rows_of_it(x).view(x.shape)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_have_their_shapes(name):
    run = RESULTS[name]
    _, replayed = again(run, torch.randn(2, 3, 4))
    x = torch.randn(2, 3, 4)
    got, want = ([made] if isinstance(made, torch.Tensor) else made for made in (replayed(x), run(x)))
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        assert a is None or ((a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype) and torch.equal(a, b))


def test_a_part_in_other_numbers_is_not_replayed():
    """Seen red: it came back in the numbers of the allocation."""
    assert replay.record(lambda x: rows_of_it(x)[1:].view(torch.int32), (torch.randn(2, 3, 4),), CPU)[1] is None


def test_a_result_in_another_shape_is_allocated_so(monkeypatch):
    _, replayed = again(RESULTS["rows"], torch.randn(2, 3, 4))
    x = torch.randn(2, 3, 4)
    monkeypatch.setattr(torch.Tensor, "as_strided", None)
    assert torch.equal(replayed(x), x)


def test_an_empty_part_lies_nowhere():
    """Its address is 0 and no distance from its tensor's, which the next call's lies elsewhere than."""
    seen = []

    def run(x):
        out = torch.empty_like(x)
        for part in (out[x.shape[0] :], x[:0], x.new_empty(0)):
            seen.append(part.data_ptr())
            replay.recorder() and replay.recorder().note(seen.append, (part,))
        return out

    _, replayed = again(run, torch.randn(4, 3))
    replayed(torch.randn(4, 3))
    assert seen == [0] * 6


def test_a_table_is_looked_up_again_with_this_calls_addresses():
    asked, seen = [], []

    def table(addresses, about):
        asked.append((addresses, about))
        return torch.tensor(addresses) + 0  # it computes, and that is not the launcher's doing

    def run(tensors, y):
        found = replay.lookup(table, (*tensors, y), "rest")
        replay.recorder() and replay.recorder().note(seen.append, (found,))
        return torch.empty_like(y)

    first, second = ([torch.randn(3), torch.randn(5)] for _ in range(2))
    y, z = torch.randn(2), torch.randn(2)
    _, replayed = again(run, first, y)
    replayed(second, z)
    assert asked == [(tuple(t.data_ptr() for t in (*first, y)), "rest"), (tuple(t.data_ptr() for t in (*second, z)), "rest")]
    assert len(seen) == 1


def computes(x):
    return launch_on(x + 0)


def launch_on(x):
    out = torch.empty_like(x)
    launch(out, x, x.nbytes)
    return out


kept = torch.zeros(4)


def keeps(x):
    launch(kept, x, x.nbytes)
    return launch_on(x)


def copies(x):
    return launch_on(x.contiguous())


@pytest.mark.parametrize(
    ("run", "x"),
    [(computes, torch.ones(4)), (keeps, torch.ones(4)), (copies, torch.ones(4, 2).t()), (lambda x: x[1:], torch.ones(4))],
    ids=["computes", "keeps", "copies", "view of an argument"],
)
def test_what_is_more_than_launches_is_not_replayed(run, x):
    want = run(x)
    result, replayed = replay.record(run, (x,), CPU)
    assert replayed is None and torch.equal(result, want)


def layer(x, weight, bias):
    """Products of views, one that begins further on, into new memory and into what was allocated, with a launch between them."""
    rows = x.view(-1, x.shape[-1])
    first = torch.addmm(bias, rows, weight.t())
    copied = torch.empty_like(first)
    launch(copied, first, first.nbytes)
    out = torch.empty(rows.shape[0] - 1, weight.shape[1])
    torch.mm(copied[1:], weight, out=out)
    return torch.addmm(out, copied[1:], weight, beta=2, alpha=-1), out.view(-1), torch.mm(rows[1:], weight[2:].t())


def test_products_are_made_again_of_other_tensors():
    _, replayed = again(layer, *(torch.randn(*s) for s in ((2, 3, 5), (7, 5), (7,))))
    memory = torch.randn(100)
    x, weight, bias = memory[3:33].view(2, 3, 5), memory[40:75].view(7, 5), memory[80:87]  # which lie further on in theirs
    assert replayed.__globals__.pop("plain") is layer  # which it could go back to
    for a, b in zip(replayed(x, weight, bias), layer(x, weight, bias), strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()


def test_a_product_of_the_vendors_library_is_made_again(monkeypatch):
    """In a workspace of its own. Where an address is less aligned than the plan's, the launcher runs: an algorithm may want all that it was promised."""
    calls = []

    def run(x, w, b, aux, out):
        calls.append(x)
        gelu(x, w, b, aux, out, algorithm=2)

    with in_the_machines_place(monkeypatch, 0x5EA) as put:
        library = put()
        first, second, beyond = tensors(), tensors(seed=1), tensors(seed=2)
        _, replayed = again(run, *first)
        beyond[0] = placed(beyond[0], 16)
        for call, times in ((second, 1), (beyond, 2), (first, 2)):
            replayed(*call)
            x, w, b, aux, _ = call
            assert torch.equal(aux, (x.double() @ w.double().t() + b.double()).bfloat16()) and len(calls) == times
        assert [entry[0] for entry in library.log] == [2] * 4


def launcher_of_tritons(seen, **more):
    """As Triton has it, of a kernel that nobody compiled; what it calls in the end tells what it is given."""
    made = object.__new__(CudaLauncher)
    scratch = {"global_scratch_size": 0, "global_scratch_align": 1, "profile_scratch_size": 0, "profile_scratch_align": 1, "num_ctas": 1}
    of_3_8 = {"gsan_enabled": False, "arg_annotations": "annotations", "kernel_signature": "signature"}
    vars(made).update(
        {**scratch, **of_3_8, "launch_cooperative_grid": False, "launch_pdl": True, "launch": lambda *a: seen.append(a), **more}
    )
    return made


def flat(given):
    return [x for a in given for x in (flat(a) if isinstance(a, tuple) else [a])]


def test_tritons_launcher_is_passed_by(monkeypatch):
    """With what it would hand on, of this call's tensors; where it has scratch memory to find it is asked."""
    seen = []
    monkeypatch.setattr(triton.runtime.driver, "_active", object())  # of a machine without a GPU there is none to ask for
    for more, straight in (({}, True), ({"global_scratch_size": 8}, False), ({"profile_scratch_size": 8}, False)):
        run = launcher_of_tritons(seen, **more)

        def launcher(x, run=run):
            out = torch.empty_like(x)
            rest = ("function", (4, 1), None, None, None, out, x, x.numel(), 128)
            replay.recorder() and replay.recorder().note(run, (8, 1, 1, replay.STREAM, *rest))
            return out

        _, replayed = again(launcher, torch.randn(3))
        assert seen == []
        with monkeypatch.context() as patch:
            patch.setattr(CudaLauncher, "__call__", lambda self, *a: seen.append("asked"))
            x = torch.randn(3)
            out = replayed(x)
        if not straight:
            assert seen == ["asked"]
            seen.clear()
            continue
        (given,) = seen
        seen.clear()
        run(8, 1, 1, 0, "function", (4, 1), None, None, None, out.data_ptr(), x.data_ptr(), 3, 128)
        assert flat(seen.pop()) == flat(given)


def test_who_must_be_aligned_is_given():
    """What the call allocates is, and of a table that is looked up the replay knows nothing before it is. Seen red: the guard named the table."""
    seen = []

    def run(x):
        table, out = replay.lookup(lambda: torch.zeros(4)), torch.empty_like(x)
        replay.recorder() and replay.recorder().note(lambda *a: seen.append(a), (out, x, table), aligned=64)
        return out

    memory = torch.empty(64)
    at = (-memory.data_ptr() % 64) // 4
    _, replayed = again(run, memory[at : at + 4])
    replayed(memory[at + 16 : at + 20])
    assert len(seen) == 1
    replayed(memory[at + 4 : at + 8])  # goes the long way, where nobody records
    assert len(seen) == 1


def test_products_of_much_let_go_of_what_they_have_read(monkeypatch):
    x, weight, bias = torch.randn(2, 3, 5), torch.randn(7, 5), torch.randn(7)
    held = 4 * (6 * 7 + 6 * 7 + 5 * 5 + 5 * 5 + 5 * 5)
    monkeypatch.setattr(replay, "LITTLE", held)
    assert replay.record(layer, (x, weight, bias), CPU)[1] is not None
    monkeypatch.setattr(replay, "LITTLE", held - 1)
    assert replay.record(layer, (x, weight, bias), CPU)[1] is None


@pytest.mark.parametrize(
    "run",
    [lambda x: torch.mm(x.view(torch.int32).view(torch.float32), x), lambda x: torch.mm(x.view(torch.bfloat16), x.view(torch.bfloat16).t()), lambda x: torch.mm(x, torch.ones(2, 2) + 0)],
    ids=["bits as they were", "other numbers", "its own"],
)  # fmt: skip
def test_products_of_what_was_not_given(run):
    x = torch.randn(2, 2)
    result, replayed = replay.record(run, (x,), CPU)
    assert replayed is None or torch.equal(replayed(x), result)
    assert (replayed is None) == (run(x).dtype != x.dtype or not torch.equal(run(x), x @ x))


def test_one_tensor_twice_says_nothing_of_two():
    def join(x, y):
        out = x.new_empty((2, *x.shape))
        launch(out[0], x, x.nbytes)
        launch(out[1], y, y.nbytes)
        return out

    x, y = torch.randn(4), torch.randn(4)
    assert replay.record(join, (x, x), CPU)[1] is None
    remembered = []
    rehearsal = replay.Rehearsal(join, CPU, remembered.append)
    for _ in range(3):
        assert torch.equal(rehearsal(x, x), torch.stack([x, x])) and not remembered
    assert torch.equal(rehearsal(x, y), torch.stack([x, y]))
    assert torch.equal(remembered[0](y, x), torch.stack([y, x]))


def test_lists_of_tensors_and_guards():
    calls = []

    def all_of(xs):
        calls.append(len(xs))
        out = xs[0].new_empty(sum(x.numel() for x in xs))
        start = 0
        for x in xs:
            launch(out[start : start + x.numel()], x, x.nbytes)
            start += x.numel()
        recorder = replay.recorder()
        if recorder is not None:
            recorder.note(lambda: None, (), unless=lambda: watched)
        return out

    watched = []
    _, replayed = again(all_of, [torch.randn(2), torch.randn(3)])
    xs = [torch.randn(2), torch.randn(3)]
    assert torch.equal(replayed(xs), torch.cat(xs)) and calls == [2]
    watched.append("a profiler")
    assert torch.equal(replayed(xs), torch.cat(xs)) and calls == [2, 2]


def test_a_replay_inside_a_launcher_that_is_recorded_is_seen():
    """As an operator made of others calls them. Seen red: the outer replay launched nothing and gave fresh memory back."""

    def inner(to, x):
        launch(to, x, x.nbytes)

    run = again(inner, torch.empty(3), torch.randn(3))[1]

    def outer(x):
        out = torch.empty_like(x)
        run(out, x)
        return out

    _, replayed = again(outer, torch.randn(3))
    x = torch.randn(3)
    assert torch.equal(replayed(x), x)


@pytest.mark.gpu
@pytest.mark.parametrize("op", check.all_ops(), ids=lambda op: op.spec.name)
def test_an_eager_call_is_the_same_plain_recorded_and_replayed(op):
    case = next(c for c in op.spec.cases if "smoke" in c.use and c.dtype != torch.float16)
    op.forget()
    for seed in (0, 1, 2, 3, 2):
        call = op.spec.draw(case, seed, torch.device("cuda", 0))
        choice = op.choose(call)
        want = check.outcome(op.spec, choice.kernel.bound(choice.config), call)
        got = check.outcome(op.spec, op.launch, call)
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    if choice.kernel.name.startswith("triton") or op.spec.name in ("adamw", "grad_norm"):
        assert [run.__name__ for run in op._memo.values()] == ["replay"]
    op.forget()


@pytest.mark.gpu
def test_a_replay_takes_the_tensors_device_and_stream():
    x = torch.randn(64, 512, device="cuda")
    for _ in range(3):
        rooftile.softmax(x)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = torch.randn(64, 512, device="cuda")
        torch.cuda._sleep(20_000_000)
        y.mul_(3)
        got = rooftile.softmax(y)
    side.synchronize()
    torch.testing.assert_close(got, torch.softmax(y, -1))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = rooftile.softmax(x)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(out, torch.softmax(x, -1))
