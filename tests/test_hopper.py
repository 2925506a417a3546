"""The headers for Hopper (mbarrier, tma, pipeline, wgmma) in the simulator: values, planted faults, and a whole matrix product; and what NVRTC makes of them."""

import functools
import re
from pathlib import Path

import pytest
import torch

from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from rooftile.cuda.tensor_map import SliceMap, TensorMap
from test_simulator import floats, marked, run, zeros

FOLDER = Path(__file__).parent / "cuda"
HOPPER, PLANTED, GEMM = (Source(FOLDER / f"{name}.cu") for name in ("hopper", "hopper_planted", "gemm_hopper"))
bf16 = torch.bfloat16
NAMES = {"__half": torch.float16, "__nv_bfloat16": bf16, "E4M3": torch.float8_e4m3fn}


@pytest.fixture(params=["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def clean(request):
    """Runs a kernel on CPU tensors: in the simulator, where nothing may be found, and on a GPU."""
    return simulated if request.param == "sim" else on_gpu


def simulated(source: Source, instance: str, grid, block, arguments, shared=0, **knobs) -> None:
    report = run(source, instance, grid, block, arguments, shared, **knobs)
    assert [str(f) for f in report.findings] == []


def on_gpu(source: Source, instance: str, grid, block, arguments, shared=0) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("wgmma is Hopper's")
    there: dict[int, torch.Tensor] = {}

    def send(a):
        if isinstance(a, SliceMap):
            return SliceMap(send(a.tensor), *a.box[3:], a.swizzle)
        if isinstance(a, TensorMap):
            return TensorMap(send(a.tensor), a.box, a.swizzle)
        return there.setdefault(id(a), a.cuda()) if isinstance(a, torch.Tensor) else a

    launch(source, instance, grid, block, *map(send, arguments), shared=shared)
    for a in arguments:
        home = a.tensor if isinstance(a, TensorMap) else a
        if isinstance(home, torch.Tensor):
            home.copy_(there[id(home)])


# ---- copies ------------------------------------------------------------------------------------------------------------------


def bulk_case():
    x, out, total = floats(192), zeros(192), zeros(64)
    want = (2 * x).view(3, 64)
    return ("bulk", (3,), (64,), [out, total, x, 64]), [(out, want.view(-1)), (total, want.sum(0))]


def last_case():
    x, out = floats(4), zeros(4)
    return ("last", (1,), (2,), [out, x]), [(out, x)]


def policies_case(size):
    x, out = floats(128), zeros(384)
    return ("policies", (1,), (32,), [out, x, size]), [(out, torch.cat([x, x[:-4], zeros(4), x]))]


def through_global_case():
    x, out = floats(64), zeros(64)
    return ("through_global", (1,), (64,), [out, zeros(64), x]), [(out, x.flip(0) + x[63])]


def ring_case():
    x, out = floats(7, 64), zeros(64)
    i = torch.arange(7.0)
    stored = torch.cat([i[:, None].expand(7, 32), -i[:, None].expand(7, 32)], 1).flip(1)
    return ("ring", (1,), (128,), [out, x, 7]), [(out, (x + x[:, :1] + i[:, None] * stored + i[:, None]).sum(0))]


def ping_pong_case():
    x, out = floats(64), zeros(64)
    want = x.clone()
    for _ in range(3):
        want = want * 2 + 1
    return ("ping_pong", (1,), (128,), [out, x, 3]), [(out, want)]


def boxes_case():
    """Boxes of 1 x 2 x 2 x 16 from coordinate 0 of the outermost axis, 4 elements further to the right: edges on every side."""
    x, out = floats(1, 3, 5, 40), torch.full((3, 5, 48), 9.0)
    want = out.clone()
    want[:, :, 4:44] = x[0]
    want[:, :, 44:] = 0.0
    t_out, t_x = TensorMap(out, (1, 2, 16)), TensorMap(x, (1, 1, 2, 16))
    return ("boxes", (3, 3, 3), (32,), [t_out, t_x, 2 * 16 * 4, 4], 1024), [(out, want)]


def slices_case(row=8, begin=10, length=13):
    """Of 13 rows from row 10 on those from the 8th, on the second of three heads and past its columns: 5 by 12, and zeros behind."""
    x, out = floats(50, 3, 40), zeros(8, 16)
    want = out.clone()
    there = x[begin + row : begin + length, 1, 28:][:8]
    want[: len(there), :12] = there
    return ("slices", (1,), (32,), [out, SliceMap(x, 8, 16), 28, 1, row, begin, length]), [(out, want)]


def attend_case():
    q, k, v = (floats(rows, 64 + i, dtype=bf16)[:, :64].contiguous() for i, rows in enumerate((64, 320, 320)))
    o = zeros(64, 64)
    weights = (q.float() @ k.float().T / 8).softmax(1).to(bf16).float()
    maps = [TensorMap(t, (64, 64), 128) for t in (q, k, v)]
    return ("attend", (1,), (160,), [o, *maps, 5, 0.125], 5 * 64 * 128), [(o, weights @ v.float())]


def operand_stored_case():
    x, out, unpacked = floats(16, 128), zeros(16, 128), zeros(16, 128)
    want = torch.exp2(x).to(bf16).float()
    return ("operand_stored", (1,), (32,), [out, unpacked, x]), [(out, want), (unpacked, want)]


CASES = {
    "operand_stored": operand_stored_case,
    "bulk": bulk_case,
    "last": last_case,
    "policies": functools.partial(policies_case, 1 << 40),
    "policies_of_few": functools.partial(policies_case, 512),
    "through_global": through_global_case,
    "ring": ring_case,
    "ping_pong": ping_pong_case,
    "boxes": boxes_case,
    "slices": slices_case,
    "attend": attend_case,
}


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", CASES)
def test_copies(name, clean):
    call, wanted = CASES[name]()
    clean(HOPPER, *call)
    for got, want in wanted:
        torch.testing.assert_close(
            got, want, **({"rtol": 1e-2, "atol": 1e-2} if name in ("attend", "operand_stored") else {})
        )  # rounded to bfloat16


def test_a_copy_that_is_under_way_when_a_blocks_turn_is_up_comes_in_its_next():
    """Of 100 orders some end a turn with the thread that asked for it: nobody is left to run, and yet nobody waits for ever."""
    for seed in range(1, 101):
        call, [(out, x)] = last_case()
        simulated(HOPPER, *call, seed=seed, level="values")
        assert torch.equal(out, x)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_copies_in_any_order(name, seed):
    call, wanted = CASES[name]()
    simulated(HOPPER, *call, seed=seed)
    for got, want in wanted:
        torch.testing.assert_close(
            got, want, **({"rtol": 1e-2, "atol": 1e-2} if name in ("attend", "operand_stored") else {})
        )  # rounded to bfloat16


@pytest.mark.parametrize(
    "row, begin, length", [(0, 0, 50), (0, 0, 1), (0, 42, 8), (48, 0, 50), (16, 20, 16), (4, 0, 4), (0, 50, 0), (120, 3, 4)]
)
def test_a_slice_ends_where_it_ends(row, begin, length, clean):
    call, [(out, want)] = slices_case(row, begin, length)
    clean(HOPPER, *call)
    assert torch.equal(out, want)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("x, y", [(0, 0), (-8, 40), (64, -3), (80, 0)])
def test_a_tile_as_it_lies_in_shared_memory(swizzle, x, y, clean):
    width = (swizzle or 128) // 2
    source, out = floats(50, 72, dtype=torch.float16), zeros(16 * width, dtype=torch.float16)
    clean(HOPPER, f"tile<__half, {32 * width}>", (1,), (32,), [out, TensorMap(source, (16, width), swizzle), x, y], 32 * width)
    padded = zeros(300, 300, dtype=torch.float16)
    padded[100:150, 100:172] = source
    box = padded[100 + y : 116 + y, 100 + x : 100 + x + width]
    at = torch.arange(16 * width) * 2
    if swizzle:  # bits 4 to 6 of the address are exclusive-ored with bits 7 to 9, as many as the swizzle is wide
        at = at ^ ((at >> 7) % (swizzle // 16) << 4)
    assert torch.equal(out[at // 2], box.reshape(-1))


# ---- products ----------------------------------------------------------------------------------------------------------------


def operand(rows: int, name: str, swizzle: int, major: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, TensorMap]:
    """128 bytes of K: its values, the tensor as it is stored (K or the rows along the last axis) and the map that `bring` wants."""
    dtype = NAMES[name]
    values = torch.randn(rows, 128 // dtype.itemsize, generator=torch.Generator().manual_seed(seed)).to(dtype)
    stored = values.T.contiguous() if major else values
    line = (swizzle or 16) // dtype.itemsize
    return values.float(), stored, TensorMap(stored, (64 if major else rows, line), swizzle)


def allowed(name: str) -> dict[str, float]:
    """Hopper adds products of E4M3 with some 14 bits; a value from another place is off by ones."""
    return {"rtol": 1e-3, "atol": 2e-2} if name == "E4M3" else {"rtol": 1e-5, "atol": 1e-4}


LAYOUTS = [(n, 64, s, a, b) for n in ("__half", "__nv_bfloat16") for s in (0, 32, 64, 128) for a in (0, 1) for b in (0, 1)]
LAYOUTS += [("E4M3", 64, s, 0, 0) for s in (0, 32, 64, 128)]
LAYOUTS += [(name, n, 128, 0, 0) for name in ("__nv_bfloat16", "E4M3") for n in (8, 16, 32, 96, 128, 192, 256)]
LAYOUTS += [("__nv_bfloat16", 128, 128, 0, 1), ("__half", 192, 64, 1, 1)]


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name, n, swizzle, a_major, b_major", LAYOUTS)
def test_product(name, n, swizzle, a_major, b_major, clean):
    a, _, t_a = operand(64, name, swizzle, a_major, 1)
    b, _, t_b = operand(n, name, swizzle, b_major, 2)
    d = zeros(64, n)
    clean(HOPPER, f"product<{name}, {n}, {swizzle}, {a_major}, {b_major}>", (1,), (128,), [d, t_a, t_b], (64 + n) * 128)
    torch.testing.assert_close(d, a @ b.T, **allowed(name))


@pytest.mark.parametrize("name, n, b_major", [("__half", 64, 0), ("__nv_bfloat16", 128, 1), ("__nv_bfloat16", 256, 0), ("E4M3", 64, 0)])
def test_product_with_a_from_registers(name, n, b_major, clean):
    a, stored, _ = operand(64, name, 128, 0, 1)
    b, _, t_b = operand(n, name, 128, b_major, 2)
    d = floats(64, n)
    want = d + a @ b.T
    clean(HOPPER, f"product_registers<{name}, {n}, {b_major}>", (1,), (128,), [d, as_bytes(stored, name), t_b], n * 128)
    torch.testing.assert_close(d, want, **allowed(name))


def as_bytes(t: torch.Tensor, name: str) -> torch.Tensor:
    return t.view(torch.uint8) if name == "E4M3" else t


def test_every_value_of_e4m3(clean):
    """All 256 bit patterns, each times one: NaN at both ends, subnormals, 448."""
    every = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    a = torch.zeros(64, 128).to(torch.float8_e4m3fn)
    a[:, 0] = torch.ones(64).to(torch.float8_e4m3fn)
    for first in range(0, 256, 64):
        b = torch.zeros(64, 128).to(torch.float8_e4m3fn)
        b[:, 0] = every[first : first + 64]
        d = zeros(64, 64)
        clean(
            HOPPER, "product<E4M3, 64, 128, 0, 0>", (1,), (128,), [d, TensorMap(a, (64, 128), 128), TensorMap(b, (64, 128), 128)], 128 * 128
        )
        assert torch.equal(d[0].nan_to_num(7.5), every[first : first + 64].float().nan_to_num(7.5)) and torch.equal(
            d[0].isnan(), d[63].isnan()
        )


def test_product_of_stored_tiles(clean):
    a, b, d = floats(64, 64, dtype=bf16), floats(64, 64, dtype=bf16).flip(0).contiguous(), zeros(64, 64)
    clean(HOPPER, "product_stored", (1,), (128,), [d, a, b])
    torch.testing.assert_close(d, a.float() @ b.float().T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("swizzle", [0, 32, 64])
def test_another_swizzle_than_the_maps_gives_wrong_values(swizzle, clean):
    a, stored, _ = operand(64, "__half", 128, 0, 1)
    maps = [TensorMap(stored, (64, (swizzle or 128) // 2), swizzle) for _ in range(2)]
    d = zeros(64, 64)
    # a box of another width brings fewer bytes than the kernel announces, which would show as a timeout: make up for it in lines
    if swizzle:
        maps = [TensorMap(stored.view(-1, swizzle // 2), (64 * 128 // swizzle, swizzle // 2), swizzle) for _ in range(2)]
    clean(HOPPER, "product<__half, 64, 128, 0, 0>", (1,), (128,), [d, *maps], 128 * 128)
    assert (d - a @ a.T).abs().max() > 1


# ---- the whole ---------------------------------------------------------------------------------------------------------------


def gemm(clean, m: int, n: int, k: int, stages: int, grid: int, **knobs) -> None:
    a, b = floats(m, k, dtype=bf16), floats(n, k + 1, dtype=bf16)[:, :k].contiguous()
    c = torch.full((m, n), torch.nan, dtype=bf16)
    maps = [TensorMap(c, (64, 64), 128), TensorMap(a, (128, 64), 128), TensorMap(b, (128, 64), 128)]
    clean(GEMM, f"gemm<{stages}>", (grid,), (384,), [*maps, m, n, k], stages * 32768 + 4 * 8192, **knobs)
    want = (a.float() @ b.float().T).to(bf16)
    torch.testing.assert_close(c, want, rtol=8e-3, atol=1e-3)  # one rounding to bfloat16 of sums that differ in the last bits


SHAPES = [(200, 136, 200, 3, 2), (128, 128, 64, 4, 1), (8, 8, 8, 2, 1), (129, 264, 456, 2, 5)]


@pytest.mark.parametrize("shape", SHAPES)
def test_gemm(shape, clean):
    gemm(clean, *shape)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("shape", SHAPES[::3])
def test_gemm_in_any_order(shape, seed):
    gemm(simulated, *shape, seed=seed)


# ---- faults ------------------------------------------------------------------------------------------------------------------

X = lambda: TensorMap(floats(64, 64, dtype=bf16), (64, 64), 128)  # noqa: E731
BUGS = {
    "misaligned_tile": (64, lambda: [zeros(64, dtype=bf16), X()]),
    "tile_read_before_its_barrier": (64, lambda: [zeros(64, dtype=bf16), X()]),
    **{
        name: (64, lambda: [zeros(64)])
        for name in ("too_few_arrive", "too_many_arrive", "never_initialised", "names_other_threads", "waits_alone")
    },
}


def bug(name: str):
    if name in BUGS:
        return BUGS[name]
    if PLANTED.functions[name].parameters[0].name == "gD":
        return 128, lambda: [zeros(128 * 32), floats(64 * 16, dtype=bf16)]
    return 64, lambda: [zeros(64), floats(64)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("name", PLANTED.functions)
def test_planted(name, seed):
    threads, arguments = bug(name)
    report = run(PLANTED, name, (1,), (threads,), arguments(), seed=seed, bound=1 << 24)
    (wanted,) = marked(PLANTED, name)
    found = {(line, f.kind) for f in report.findings for line in (f.line, f.other_line)}
    assert wanted in found, "\n".join(map(str, report.findings))
    if name.startswith("waits_for_too_few"):  # what was waited for is free
        assert len(report.findings) == 1, "\n".join(map(str, report.findings))
    assert all(f.file == str(PLANTED.path) and f.sentence for f in report.findings)


ORDERING = re.compile(
    r"__syncthreads\(\);|mbarrier_(fence|wait|expect|arrive|arrive_expect)\(.*?\);|fence_async(_global)?\(\);|bulk_(commit|wait|wait_read)(<0>)?\(\);|"
    r"barrier_(sync|arrive)\(.*?\);|(producer|consumer)_\w+\(.*\);|while \(!mbarrier_test.*|wgmma_(fence|commit|wait<.>)\(.*?\);"
)
NEEDED = [
    (s, i) for s in (HOPPER, GEMM) for i, line in enumerate(s.text.splitlines()) if ORDERING.search(line) and not line.startswith("//")
]


@pytest.mark.thorough
@pytest.mark.parametrize("source, line", NEEDED, ids=[f"{s.path.stem}-{i + 1}" for s, i in NEEDED])
def test_no_barrier_fence_or_wait_can_be_taken_away(source, line, tmp_path):
    lines = source.text.splitlines()
    lines[line] = ORDERING.sub(";", lines[line], count=1)
    path = tmp_path / source.path.name
    path.write_text("\n".join(lines) + "\n")
    assert faults(Source(path), max((f.line, f.name) for f in source.functions.values() if f.line <= line or source is GEMM)[1])


def faults(source: Source, name: str) -> list[str]:
    """Of one kernel of these files, called as above."""
    more = zeros(64, 64)
    maps = [operand(64, "__half", 128, 0, seed)[2] for seed in (1, 2)]
    x = floats(50, 72, dtype=torch.float16)
    c, ab = zeros(72, 136, dtype=bf16), floats(136, 200, dtype=bf16)
    calls = {
        "tile": ("tile<__half, 2048>", (1,), (32,), [zeros(1024, dtype=torch.float16), TensorMap(x, (16, 64), 128), 0, 0], 2048),
        "product": ("product<__half, 64, 128, 0, 0>", (1,), (128,), [more, *maps], 128 * 128),
        "product_registers": (
            "product_registers<__half, 64, 0>",
            (1,),
            (128,),
            [more, operand(64, "__half", 128, 0, 1)[1], maps[1]],
            64 * 128,
        ),
        "product_stored": ("product_stored", (1,), (128,), [more, floats(64, 64, dtype=bf16), floats(64, 64, dtype=bf16)]),
        "gemm": (
            "gemm<2>",
            (1,),
            (384,),
            [TensorMap(c, (64, 64), 128), TensorMap(ab[:72], (128, 64), 128), TensorMap(ab, (128, 64), 128), 72, 136, 200],
            98304,
        ),
    }
    return list(map(str, run(source, *(calls.get(name) or CASES[name]()[0]), bound=1 << 24).findings))


@pytest.mark.parametrize("name", [*HOPPER.functions, "gemm"])
def test_the_same_calls_are_clean_with_all_of_them(name):
    assert faults(GEMM if name == "gemm" else HOPPER, name) == []
