"""The binding of cuBLASLt, on a library that is its header put into Python, and on its own where the CUDA build of PyTorch is installed."""

import ctypes
import functools
import os
import threading
import types
import weakref

import pytest
import torch
import torch.nn.functional as F

from library_of_products import LEAN, PROTOTYPES, SIZES, Library, in_the_machines_place
from rooftile.cuda import cublaslt

STREAM = 0x5EA


@pytest.fixture
def install(monkeypatch):
    """Puts a library in the place of the machine's."""
    with in_the_machines_place(monkeypatch, STREAM) as put:
        yield put


def placed(t, beyond=0):
    """A copy of t, `beyond` bytes past a multiple of 256: how tensors are aligned is part of a plan, and a CPU's are at whim."""
    memory = torch.empty(t.numel() + 256, dtype=t.dtype)
    return memory[(beyond - memory.data_ptr()) % 256 // t.itemsize :][: t.numel()].view(t.shape).copy_(t)


def tensors(m=24, k=32, n=40, dtype=torch.bfloat16, seed=0):
    gen = torch.Generator().manual_seed(seed)
    made = [torch.randn(*s, generator=gen).div(k**0.25).to(dtype) for s in ((m, k), (n, k), (n,))]
    return [placed(t) for t in (*made, torch.empty(m, n, dtype=dtype), torch.empty(m, n, dtype=dtype))]


def gelu(x, w, b, aux, out, **how):
    cublaslt.product(out, x, w.t(), "gelu", aux, b, **how)


def slope(pre):
    at = pre.double().requires_grad_()
    return torch.autograd.grad(F.gelu(at, approximate="tanh").sum(), at)[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [True, False])
def test_gelu_in_the_epilogue(install, dtype, with_bias):
    library = install()
    x, w, b, aux, out = tensors(dtype=dtype)
    gelu(x, w, b if with_bias else None, aux, out)
    exact = x.double() @ w.double().t() + (b.double() if with_bias else 0)
    assert torch.equal(aux, exact.to(dtype)) and torch.equal(out, F.gelu(exact, approximate="tanh").to(dtype))
    assert library.log == [(0, STREAM, (24, 40))]


def test_the_gradient_of_gelu_in_the_epilogue(install):
    install()
    g, w, _, pre, out = tensors(24, 40, 32)
    pre.normal_()
    cublaslt.product(out, g, w.t().contiguous(), "gelu_backward", pre)
    assert torch.equal(out, ((g.double() @ w.double().t()) * slope(pre)).to(out.dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("result", ["same", "float32"])
@pytest.mark.parametrize("across", [(False, False), (False, True), (True, False), (True, True)])
def test_plain_products_of_factors_as_they_lie(install, dtype, result, across):
    """NN, NT, TN and TT: forward a weight is read across, for its gradient the rows are. And added to what is there."""
    library = install()
    gen = torch.Generator().manual_seed(0)
    left, right = (
        placed(torch.randn(*((c, r) if flip else (r, c)), generator=gen).to(dtype)) for (r, c), flip in zip(((24, 32), (32, 40)), across)
    )
    left, right = (t.t() if flip else t for t, flip in zip((left, right), across))
    out = placed(torch.empty(24, 40, dtype=dtype if result == "same" else torch.float32))
    cublaslt.product(out, left, right, algorithm=1)
    exact = left.double() @ right.double()
    assert torch.equal(out, exact.to(out.dtype)) and library.log[-1][0] == 1
    cublaslt.product(out, left, right, add=out)
    assert torch.equal(out, (exact.to(out.dtype).double() + exact).to(out.dtype)) and len(cublaslt._plans) == 2
    other = placed(torch.randn(24, 48, generator=gen).to(out.dtype))[:, :40]  # rows further apart than out's
    before = other.clone()
    cublaslt.product(out, left, right, add=other)
    assert torch.equal(out, (other.double() + exact).to(out.dtype)) and torch.equal(other, before)


def test_a_plain_product_with_a_bias(install):
    install()
    x, w, b, _, out = tensors()
    cublaslt.product(out, x, w.t(), bias=b)
    made = x.double() @ w.double().t() + b.double()
    assert torch.equal(out, made.bfloat16())
    add = placed(torch.randn(24, 40, generator=torch.Generator().manual_seed(1)).bfloat16())
    assert cublaslt.cannot(out, x, w.t(), b, add) == cublaslt.off_gpu(out)  # on a GPU nothing
    cublaslt.product(out, x, w.t(), bias=b, add=add)
    assert torch.equal(out, (made + add.double()).bfloat16())


def test_what_it_cannot_make_is_a_sentence(install, monkeypatch):
    install()
    monkeypatch.setattr(cublaslt, "off_gpu", lambda t: None)
    x, w, b, _, out = tensors()
    assert cublaslt.cannot(out, x, w.t(), b, out) is None
    for call, said in (
        ((out, x, w.t(), b, out.float()), "add is torch.float32, out is torch.bfloat16"),
        ((out, x, w.t(), placed(b, 2), out), "bias begins 2 bytes past a multiple of 16"),
        ((out[:, :33], x, w[:33].t(), b[:33], out[:, :33].contiguous()), "add has rows 66 bytes apart"),
        ((out, x[:, :0], w[:, :0].t(), b, out), "there is nothing to multiply"),
    ):
        assert said in cublaslt.cannot(*call)


def test_what_can_be_read_as_it_lies():
    x = placed(torch.zeros(24, 32, dtype=torch.bfloat16))
    assert all(map(cublaslt.rows_or_columns, (x, x.t(), x[:, 8:16], x[:1], x[:, :8].t())))
    assert not any(
        map(
            cublaslt.rows_or_columns,
            (x[:0], x[:, :0], x[:, 1:], x[:, ::2], x[:1].expand(24, 32), x[:, :1].expand(24, 32), placed(torch.zeros(4, 9).half())),
        )
    )


def test_rows_that_lie_apart(install):
    install()
    x, w, b, aux, out = tensors()
    wide_x, wide_w = (torch.full((t.shape[0], t.shape[1] + 16), float("nan"), dtype=t.dtype) for t in (x, w))
    wide_x[:, 8:40], wide_w[:, :32] = x, w
    wide_aux, wide_out = torch.zeros(24, 56, dtype=x.dtype), torch.zeros(24, 64, dtype=x.dtype)
    gelu(x, w, b, aux, out)
    gelu(wide_x[:, 8:40], wide_w[:, :32], b, wide_aux[:, 8:48], wide_out[:, 16:56])
    assert torch.equal(wide_aux[:, 8:48], aux) and torch.equal(wide_out[:, 16:56], out)
    assert wide_aux[:, :8].count_nonzero() == wide_aux[:, 48:].count_nonzero() == wide_out[:, :16].count_nonzero() == 0


def test_the_stride_of_a_single_row_says_nothing(install):
    install()
    x, w, b, aux, out = tensors(m=1)
    gelu(x.as_strided((1, 32), (0, 1)), w, b, aux.as_strided((1, 40), (3, 1)), out)
    assert torch.equal(aux, (x.double() @ w.double().t() + b.double()).bfloat16())


def test_one_plan_a_shape_and_each_call_its_own_addresses(install):
    library = install()
    first, second = tensors(), tensors(seed=1)
    expected = [t.clone() for t in (first[3], first[4]) if gelu(*first) is None]
    gelu(*second)
    plans = lambda: library.counts["cublasLtMatmulAlgoGetHeuristic"] / 2  # noqa: E731  asked with a workspace and without
    assert plans() == library.counts["cublasLtCreate"] == 1
    assert torch.equal(first[3], expected[0]) and torch.equal(first[4], expected[1])  # the second call wrote into its own
    exact = second[0].double() @ second[1].double().t() + second[2].double()
    assert torch.equal(second[3], exact.bfloat16())
    for other in (tensors(m=32), tensors(dtype=torch.float16)):
        gelu(*other)
    gelu(first[0], first[1], None, *first[3:])
    assert plans() == len(cublaslt._plans) == 4
    gelu(placed(first[0], 16), *first[1:])  # algorithms that want more than 16 bytes must not be asked for
    assert plans() == len(cublaslt._plans) == 5


def test_descriptors_end_with_their_plan(install):
    library = install()
    gelu(*tensors())
    assert len(library.alive) == 7  # a handle, a description, two preferences, three layouts
    cublaslt._plans.clear()
    assert list(library.alive.values()) == ["handle"]


@pytest.mark.parametrize("offered, asked, runs", [(5, 0, 0), (5, 3, 3), (8, 7, 7), (2, 3, 0), (4, 4, 0)])
def test_the_algorithm_asked_for_runs_in_the_workspace_it_wants(install, offered, asked, runs):
    """The fake refuses a workspace that is not what the answer said. What is offered without one is not asked for by rank."""
    library = install(offered=offered, lean=(20, 20))
    gelu(*tensors(), algorithm=asked)
    assert library.log[0][0] == runs


def test_sums_in_parts_are_not_one_algorithm():
    """Another number of parts may need less workspace; it is another sum."""
    answers = [types.SimpleNamespace(workspace=w, holds=tile) for w, tile in ((100, 0), (50, 0), (4, 24), (0, 24), (0, 20))]
    plan = types.SimpleNamespace(answers=answers, tile=lambda answer: answer.holds)
    assert [cublaslt.Plan._best(plan, tiles) for tiles in ((), (24,), (29, 20))] == [0, 3, 4]


LISTED = {"none": (32768, 2304, 768), "wave": (768, 3072, 32768), "gelu": (24, 40, 32)}  # M, N, K


@pytest.mark.parametrize(
    "kind, how, runs",
    [
        ("none", {"tiles": (24, 20, 29)}, 1),  # by tile, not by rank
        ("none", {"tiles": (24, 20, 20), "parted": (1,)}, 2),  # one that parts the sum is another algorithm
        ("none", {"tiles": (24, 23, 31)}, 0),  # nothing matches: the library's first
        ("gelu", {"tiles": (24, 20, 28)}, 2),
        ("wave", {"tiles": (209, 458), "lean": (20, 21)}, 1),
        ("wave", {"tiles": (209, 29), "lean": (20, 458)}, LEAN + 1),  # only offered without a workspace
        ("wave", {"tiles": (209, 29)}, 0),
        ("none", {"tiles": (24, 20, 29), "lean": (29, 20)}, LEAN + 1),  # the same tile, whose count nobody clears
        ("none", {"tiles": (24, 23), "lean": (23,)}, 0),  # not for want of a workspace another tile than the library's first
        ("none", {"tiles": (24, 23), "parted": (0,), "lean": (24,)}, 0),  # nor another algorithm
        ("none", {"tiles": (23, 20), "lean": (20, 20)}, LEAN),
    ],
)
def test_a_tile_is_preferred(install, monkeypatch, kind, how, runs):
    """The preferences of large shapes, on a small product."""
    library, call = install(**how), tensors()
    tiles = cublaslt.preferred(torch.device("cpu"), *LISTED[kind], kind if kind == "gelu" else "none")
    monkeypatch.setattr(cublaslt, "preferred", lambda *shape: tiles)
    monkeypatch.setattr(cublaslt, "LONG", 1 if kind == "wave" else 10**9)
    if kind == "gelu":
        gelu(*call)
    else:
        cublaslt.product(call[4], call[0], call[1].t())
    assert library.log[-1][0] == runs
    exact = call[0].double() @ call[1].double().t() + (call[2].double() if kind == "gelu" else 0)
    assert torch.equal(call[3] if kind == "gelu" else call[4], exact.bfloat16())


GPT2, LLAMA = (32768, 768, 3072), (16384, 2048, 8192)


def test_what_is_preferred_is_what_was_fastest():
    """Products of GPT-2's step and of a Llama's; none where the heuristic's first was, and none of what was not asked for."""
    of = functools.partial(cublaslt.preferred, torch.device("cpu"))
    m, e, f = GPT2
    assert of(m, 3 * e, e) == of(m, e, e) == of(m, e, 3 * e) == (20,)
    assert of(m, f, e) == (29,) and of(8192, 50304, e) == (201, 197)
    assert of(m, e, f) == of(50304, e, 16384) == (20,) and of(e, e, m) == ()
    assert of(f, e, m) == of(e, f, m) == (458,) and of(3 * e, e, m) == (20,)
    m, e, f = LLAMA
    assert of(m, e, e) == of(m, 3072, e) == of(m, e, 3072) == of(m, f, e) == of(128256, e, 1024) == (29,)
    assert of(m, 2 * f, e) == of(1024, 128256, e) == (197, 201)
    assert of(m, e, f) == of(m, e, 2 * f) == of(e, e, m) == of(3072, e, m) == of(2 * f, e, m) == ()
    assert of(4096, 4096, 4096) == of(8192, 8192, 8192) == of(128, 8192, 8192) == of(512, 768, 768) == ()


def test_the_preferences_are_of_one_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, tiles in (((9, 0), (20,)), ((8, 0), ()), ((10, 0), ())):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        cublaslt.preferred.cache_clear()
        assert cublaslt.preferred(torch.device("cuda", 0), 32768, 768, 768) == tiles
    cublaslt.preferred.cache_clear()


def test_the_workspace_is_held_until_the_product_is_under_way(install, monkeypatch):
    """Given back earlier it could be another thread's, on the same stream, whose kernel comes first."""
    made, alive, new = [], [], torch.Tensor.new_empty

    def watched(*args, **how):
        t = new(*args, **how)
        made.append(weakref.ref(t))
        return t

    monkeypatch.setattr(torch.Tensor, "new_empty", watched)
    install(before_matmul=lambda: alive.extend(ref() is not None for ref in made))
    gelu(*tensors(), algorithm=2)
    assert alive == [True] and made[0]() is None


FAILING = [f for f in PROTOTYPES if "Destroy" not in f]


@pytest.mark.parametrize("function", FAILING)
def test_a_status_is_a_sentence_with_its_number(install, function):
    install(fails={function: 13})
    with pytest.raises(RuntimeError, match=rf"^{function}.*: cuBLASLt says EXECUTION_FAILED \(status 13\)$"):
        gelu(*tensors())


def test_no_algorithm(install):
    install(offered=0)
    with pytest.raises(RuntimeError, match=r"none of 0 algorithms for \[24, 32\] by \[32, 40\] in torch.bfloat16 can be used"):
        gelu(*tensors())


def test_what_cannot_be_planned_is_a_sentence(install):
    library = install()
    x, w, b, aux, out = tensors()
    for call, said in (
        (lambda: gelu(x, w[:, :24], b, aux, out), r"right is \[24, 40\], it must be \[32, 40\]"),
        (lambda: gelu(x, w, b[1:], aux, out), r"bias is \[39\], it must be \[40\]"),
        (lambda: gelu(x, w, b, aux[1:], out), r"aux is \[23, 40\], it must be \[24, 40\]"),
        (lambda: gelu(x.float(), w, b, aux, out), "out is torch.bfloat16 on cpu, left is torch.float32 on cpu"),
        (lambda: gelu(x, w, b, aux.t().contiguous().t(), out), r"aux is \[24, 40\] with strides \[1, 24\], it must be rows of neighbours"),
        (lambda: cublaslt.product(out, x, w.t(), "none", aux), "'none' takes no aux, one was given"),
        (lambda: cublaslt.product(out, x, w.t(), "gelu"), "'gelu' takes an aux, none was given"),
        (lambda: cublaslt.product(out, x, w.t(), bias=b, add=out[1:]), r"add is \[23, 40\], it must be \[24, 40\]"),
        (lambda: cublaslt.product(out, x, w.t(), "gelu", aux, b, add=out), "takes no epilogue but a bias, and 'gelu' was asked for"),
        (lambda: cublaslt.product(out, x, w.t(), add=out[1:]), r"add is \[23, 40\], it must be \[24, 40\]"),
        (lambda: cublaslt.product(out, x, w.t(), add=out.float()), "add is torch.float32, out is torch.bfloat16"),
        (lambda: cublaslt.product(out.float(), x, w.t(), bias=b), "out is torch.float32 on cpu, left is torch.bfloat16 on cpu"),
        (lambda: gelu(x[:1].expand(24, 32), w, b, aux, out), r"strides \[0, 1\]"),
        (lambda: gelu(*tensors(k=30)), "left has rows 60 bytes apart"),
        (lambda: gelu(placed(x, 2), w, b, aux, out), "left begins 2 bytes past a multiple of 16"),
        (lambda: cublaslt.product(out, x, w, "gelu_backward", aux, b), "no epilogue 'gelu_backward' with a bias"),
        (lambda: cublaslt.product(out, x, w, "relu", aux), "no epilogue 'relu' without a bias"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    assert library.counts["cublasLtMatmulDescCreate"] == 0 and not cublaslt._plans


def test_threads_share_a_plan(install):
    """Addresses stand in the plan's descriptor: who launches holds its lock, and what happens without is planted: another's addresses are written
    between a call's own and its product. (Two threads that race in earnest have brought the interpreter down.)"""
    first, second = tensors(), tensors(seed=1)
    wanted = [(x.double() @ w.double().t() + b.double()).bfloat16() for x, w, b, *_ in (first, second)]
    held = []

    def call(c):
        return c[4], c[0], c[1].t(), c[3], c[2]

    install(before_matmul=lambda: held.append(plan.lock.locked()))
    cublaslt._plans.clear()
    plan = cublaslt.Plan(*call(first), 164, None, 256)
    threads = [threading.Thread(target=plan.launch, args=(*call(c), None, 0)) for c in (first, second)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [torch.equal(c[3], e) for c, e in zip((first, second), wanted)] == [True, True] and held == [True, True]

    install(before_matmul=lambda: plan._point(second[3].data_ptr(), second[2].data_ptr()))
    cublaslt._plans.clear()
    plan = cublaslt.Plan(*call(first), 164, None, 256)
    first[3].zero_()
    plan.launch(*call(first), None, 0)
    assert not torch.equal(first[3], wanted[0])


# ---- finding it ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def looking(monkeypatch):
    """A machine with CUDA 12: what was tried, and what answers."""
    tried, there = [], {}

    def load(path, mode=0):
        tried.append((path, bool(mode & os.RTLD_NOLOAD)))
        if tried[-1] not in there:
            raise OSError(path)
        return Library()

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(cublaslt.ctypes, "CDLL", load)
    monkeypatch.setattr(cublaslt, "_packaged", lambda name: [f"/packages/nvidia/cublas/lib/{name}"])
    cublaslt._find.cache_clear()
    yield tried, there
    cublaslt._find.cache_clear()


NAME = "libcublasLt.so.12"
PLACES = [(NAME, True), (f"/packages/nvidia/cublas/lib/{NAME}", False), (NAME, False)]


@pytest.mark.parametrize("place", PLACES)
def test_the_loaded_library_comes_first(looking, monkeypatch, place):
    tried, there = looking
    there[place] = True
    monkeypatch.setattr(cublaslt, "_SIGNATURES", {})
    assert cublaslt.missing() is None and tried == PLACES[: PLACES.index(place) + 1]


def test_none_is_a_sentence(looking, monkeypatch):
    assert f"{NAME} is neither loaded, nor in 1 folders of pip packages" in cublaslt.missing()
    with pytest.raises(RuntimeError, match="install the CUDA build of PyTorch"):
        cublaslt._library()
    cublaslt._find.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "this one is built without CUDA" in cublaslt.missing()
    assert cublaslt.off_gpu(torch.ones(1)) == "cuBLASLt needs a CUDA device, the tensor is on cpu"


def test_packages_are_searched(tmp_path, monkeypatch):
    for folder in ("cu13", "cublas"):
        (tmp_path / folder / "lib").mkdir(parents=True)
        (tmp_path / folder / "lib" / "libcublasLt.so.13").touch()
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(cublaslt.importlib.util, "find_spec", lambda name: spec)
    assert [p.split("/")[-3] for p in cublaslt._packaged("libcublasLt.so.13")] == ["cu13", "cublas"]
    monkeypatch.setattr(cublaslt.importlib.util, "find_spec", lambda name: None)
    assert cublaslt._packaged("libcublasLt.so.99") == []


def test_signatures_are_the_headers():
    assert cublaslt._SIGNATURES == PROTOTYPES and ctypes.sizeof(cublaslt.Answer) == 96
    assert (cublaslt.Answer.workspace.offset, cublaslt.Answer.status.offset) == (64, 72)


@pytest.mark.skipif(cublaslt.missing() is not None, reason="needs the CUDA build of PyTorch, but no GPU")
def test_the_library_itself_knows_our_attributes():
    """It keeps what is set, says the size it has, and refuses another."""
    library, made = cublaslt._library(), ctypes.c_void_p()
    assert library.cublasLtMatmulDescCreate(ctypes.byref(made), 68, 0) == 0
    for attribute, size in SIZES.items():
        value = (ctypes.c_uint64 if size == 8 else ctypes.c_uint32)({3: 1, 4: 0, 7: 164}.get(attribute, 4096))
        assert library.cublasLtMatmulDescSetAttribute(made, attribute, ctypes.byref(value), 2) == 7
        assert library.cublasLtMatmulDescSetAttribute(made, attribute, ctypes.byref(value), size) == 0
        kept, written = type(value)(), ctypes.c_size_t()
        get = library.cublasLtMatmulDescGetAttribute
        get.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        assert get(made, attribute, ctypes.byref(kept), size, ctypes.byref(written)) == 0
        assert (kept.value, written.value) == (value.value, size)
    assert library.cublasLtMatmulDescDestroy(made) == 0
    assert library.cublasLtGetStatusName(15) == b"CUBLAS_STATUS_NOT_SUPPORTED"
