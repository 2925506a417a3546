"""The simulator: every planted bug is named with its line, no correct kernel is suspected, and the counts are the hardware's."""

import itertools
import re
from pathlib import Path

import pytest
import torch

from rooftile.cuda import simulator
from rooftile.cuda.source import Source
from rooftile.workbench import inputs

FOLDER = Path(__file__).parent / "cuda"
PLANTED, CORRECT, HEADERS = (Source(FOLDER / f"{name}.cu") for name in ("planted", "correct", "headers"))


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


def counts(*shape: int) -> torch.Tensor:
    return zeros(*shape, dtype=torch.int32)


def run(source: Source, instance: str, grid, block, arguments, shared=0, **knobs) -> simulator.Report:
    return simulator.run(source, source.function(instance), (*grid, 1, 1)[:3], (*block, 1, 1)[:3], arguments, shared, **knobs)


def marked(source: Source, name: str) -> list[tuple[int, str]]:
    """Lines of one kernel that end in a comment of one word, with the word."""
    first = source.functions[name].line
    lines = source.text.splitlines()
    last = next(i for i in range(first, len(lines)) if lines[i] == "}")
    return [(i + 1, m[1]) for i in range(first, last) if (m := re.search(r"// (\w+)$", lines[i]))]


BUGS = {
    "no_barrier_before": ((1,), (128,), lambda: [zeros(128), floats(128)]),
    "no_barrier_after": ((1,), (64,), lambda: [zeros(64), floats(256)]),
    "global_off_by_one": ((1,), (128,), lambda: [zeros(64), floats(64), 64]),
    "shared_off_by_one": ((1,), (64,), lambda: [zeros(64), floats(64)]),
    "dynamic_too_small": ((1,), (64,), lambda: [zeros(64), floats(64)], 252),
    "misaligned_float4": ((1,), (64,), lambda: [zeros(64), floats(512)]),
    "misaligned_shared": ((1,), (128,), lambda: [zeros(64), floats(128)]),
    "divergent_branches": ((1,), (64,), lambda: [zeros(64)]),
    "left_before_barrier": ((1,), (64,), lambda: [zeros(64), 40]),
    "mask_of_all": ((1,), (64,), lambda: [zeros(64), floats(64)]),
    "mask_without_me": ((1,), (64,), lambda: [zeros(64), floats(64)]),
    "reads_lane_outside": ((1,), (64,), lambda: [zeros(64), floats(64)]),
    "lane_has_left": ((1,), (64,), lambda: [zeros(64), floats(64), 20]),
    "blocks_race": ((2,), (64,), lambda: [zeros(64), floats(128)]),
    "flag_without_fence": ((2,), (1,), lambda: [zeros(64), counts(1)]),
    "never_written": ((1,), (32,), lambda: [zeros(32)]),
    "tail_not_masked<float>": ((1,), (64,), lambda: [zeros(50), floats(50), 50]),
    "tail_not_masked<__nv_bfloat16>": ((1,), (64,), lambda: [zeros(50, dtype=torch.bfloat16), floats(50, dtype=torch.bfloat16), 50]),
    "waits_for_ever": ((1,), (64,), lambda: [counts(64), counts(1)]),
    "counts_for_ever": ((1,), (64,), lambda: [counts(64)]),
    "read_before_wait": ((1,), (32,), lambda: [zeros(32), floats(64)]),
    "syncwarp_forgotten": ((1,), (64,), lambda: [zeros(64), floats(64)]),
    "narrow_by_value": ((1,), (64,), lambda: [zeros(64), floats(64, dtype=torch.bfloat16)]),
}


def test_every_planted_kernel_is_run():
    assert {name.partition("<")[0] for name in BUGS} == set(PLANTED.functions)


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("name", BUGS)
def test_planted(name, seed):
    grid, block, arguments, *shared = BUGS[name]
    report = run(PLANTED, name, grid, block, arguments(), *shared, seed=seed, bound=1 << 24)
    (wanted,) = marked(PLANTED, name.partition("<")[0])
    # two lines take part in a race or a divergence; which of them is met second is the schedule's choice
    found = {(line, f.kind) for f in report.findings for line in (f.line, f.other_line)}
    assert wanted in found, "\n".join(map(str, report.findings))
    assert all(f.file == str(PLANTED.path) and f.sentence for f in report.findings)


def test_a_timeout_says_where_every_thread_is():
    report = run(PLANTED, "waits_for_ever", (1,), (64,), [counts(64), counts(1)], bound=1 << 22)
    (finding,) = report.findings
    assert f"1 in line {finding.line}" in finding.sentence and f"63 in line {finding.line + 3} in __syncthreads" in finding.sentence


def test_what_nobody_has_set_is_no_zero(tmp_path):
    """Seen red: on a new stack, and on one where another had left a zero, the sum was right."""
    (tmp_path / "unset.cu").write_text("""__global__ void unset(float* gOut, const float* gX, int n) {
  float rX[4], sum = 0.0f;
  for (int k = 0; k < n; ++k) rX[k] = gX[k];
  for (int k = 0; k < 4; ++k) sum += rX[k];
  gOut[threadIdx.x] = sum;
}
""")
    x = torch.tensor([1.0, 2.0, 3.0, 0.0])
    for n in (4, 3):
        out = zeros(64)
        assert not run(Source(tmp_path / "unset.cu"), "unset", (1,), (64,), [out, x, n]).findings
        assert (out == 6).all() == (n == 4)


@pytest.mark.parametrize("number, found", [("int", "an address that is in no buffer"), ("long long", "")])
def test_rows_further_apart_than_31_bits_reach(number, found, tmp_path):
    """Rows and batches of the gate's layout `far`: a product in 32 bits goes round, one in 64 finds its row, of which alone there is memory, and is
    remembered who touched it."""
    path = tmp_path / "rows.cu"
    path.write_text(
        f"""#include <rooftile/base.cuh>
        extern "C" __global__ void rows(float* out, const float* x, long long batches, long long apart) {{
          const {number} b = blockIdx.y, r = blockIdx.x;
          out[(3 * b + r) * 32 + threadIdx.x] = x[b * ({number})batches + r * ({number})apart + (int)threadIdx.x];
        }}"""
    )
    near = floats(2, 3, 32)
    far, out = inputs.LAYOUTS["far"](near), zeros(2, 3, 32)
    reached = [sum(i * s for i, s in zip(at, far.stride())) for at in itertools.product(range(2), range(3), range(1))]
    assert (
        torch.equal(far, near)
        and all(abs(a - b) >= 32 for a, b in itertools.combinations(reached, 2))
        and min(reached[2], reached[3]) > 2**31
    )
    report = run(Source(path), "rows", (3, 2), (32,), [out, far, *far.stride()[:2]], level="all")
    assert found in str(report.findings[:1]) and bool(report.findings) is bool(found) and torch.equal(out, near) is not bool(found)


def scan_arguments():
    x = torch.randint(-9, 9, (1000,), dtype=torch.int32)
    return [counts(1000), x, counts(16), counts(16), counts(16), counts(1), 1000], x.cumsum(0).int()


def tree_arguments(dtype=torch.float32):
    x = floats(3000, dtype=dtype)
    return [zeros(1), x, 3000], x.float().sum()[None]


def matmul_arguments():
    a, b = floats(40, 50), floats(50, 36)
    return [zeros(40, 36), a, b, 40, 36, 50], a @ b


def pipeline_arguments():
    x = floats(5, 4, 64)
    return [zeros(64), x, 5], x.sum((0, 1)).roll(-1)


def byte_arguments():
    x = torch.arange(64, dtype=torch.uint8) * 3
    return [zeros(64, dtype=torch.uint8), x, counts(4)], x.flip(0)


def pair_arguments():
    x, b = floats(200, dtype=torch.float16), floats(100, dtype=torch.bfloat16)
    scale = torch.arange(1, 5).repeat(25).repeat_interleave(2)
    return [zeros(200, dtype=torch.float16), x, b, 100], ((x.double() ** 2 + scale).half() + b.half().repeat_interleave(2))


FINE = {
    "tree<float, 256>": ((3,), (256,), tree_arguments),
    "tree<__nv_bfloat16, 128>": ((2,), (128,), lambda: tree_arguments(torch.bfloat16)),
    "matmul<16>": ((3, 3), (16, 16), matmul_arguments),
    "pipeline": ((1,), (64,), pipeline_arguments),
    "look_back<64>": ((16,), (64,), scan_arguments),
    "last_block": ((9,), (32,), lambda: ([zeros(1), zeros(9), floats(9), counts(1)], floats(9).sum()[None])),
    "spin_lock": ((9,), (32,), lambda: ([counts(1), counts(1)], counts(1) + 9)),
    "warps_alone": ((1,), (128,), lambda: ([zeros(128), floats(128)], None)),
    "bytes": ((1,), (64,), byte_arguments),
    "half_pairs": ((2,), (64,), pair_arguments),
    "transpose<1, false>": ((2, 2), (32, 32), lambda: ([zeros(64, 64), floats(64, 64), 64], floats(64, 64).T)),
    "strided": ((1,), (32,), lambda: ([zeros(32), floats(96), 3], floats(96)[::3])),
    "narrow": ((1,), (32,), lambda: ([zeros(32), floats(32, dtype=torch.bfloat16)], floats(32, dtype=torch.bfloat16).float())),
    "variables": ((1,), (64,), lambda: ([zeros(64, dtype=torch.int32)], (torch.arange(64) % 3 + 5).int())),
    "vectors": ((1,), (32,), lambda: ([zeros(128), floats(128)], floats(128).view(16, 2, 4).flip(1).reshape(-1))),
}


def test_every_correct_kernel_is_run():
    assert {name.partition("<")[0] for name in FINE} == set(CORRECT.functions)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("name", FINE)
def test_no_false_alarm(name, seed):
    grid, block, make = FINE[name]
    arguments, want = make()
    report = run(CORRECT, name, grid, block, arguments, seed=seed)
    assert [str(f) for f in report.findings] == []
    if want is not None:
        torch.testing.assert_close(arguments[0], want, rtol=2e-5, atol=2e-5)


ORDERING = re.compile(r"__syncthreads\(\);|__syncwarp\(\);|__threadfence\(\);|rooftile::copy_(wait<1>|commit)\(\);")
NEEDED = [i for i, line in enumerate(CORRECT.text.splitlines()) if ORDERING.search(line)]


@pytest.mark.parametrize("line", NEEDED)
def test_no_barrier_fence_or_wait_can_be_taken_away(line, tmp_path):
    lines = CORRECT.text.splitlines()
    lines[line] = ORDERING.sub("", lines[line])
    (tmp_path / "less.cu").write_text("\n".join(lines) + "\n")
    source = Source(tmp_path / "less.cu")
    name = max((f.line, f.name) for f in source.functions.values() if f.line <= line)[1]
    instance = next(i for i in FINE if i.partition("<")[0] == name)
    grid, block, make = FINE[instance]
    assert run(source, instance, grid, block, make()[0]).findings


@pytest.mark.parametrize("instance, wavefronts", [("transpose<0, false>", 32), ("transpose<1, false>", 1), ("transpose<0, true>", 1)])
def test_bank_conflicts_of_a_transpose(instance, wavefronts):
    report = run(CORRECT, instance, (2, 2), (32, 32), [zeros(64, 64), floats(64, 64), 64])
    ((line, _),) = marked(CORRECT, "transpose")
    (load,) = [a for a in report.accesses if a.line == line and a.space == "shared"]
    assert load.per_request == wavefronts and load.requests == 4 * 32 and not load.store


@pytest.mark.parametrize("stride, sectors", [(0, 1), (1, 4), (2, 8), (8, 32), (32, 32)])
def test_sectors(stride, sectors):
    report = run(CORRECT, "strided", (1,), (32,), [zeros(32), floats(1024), stride])
    ((line, _),) = marked(CORRECT, "strided")
    (load,) = [a for a in report.accesses if a.line == line and a.space == "global" and not a.store]
    assert load.per_request == sectors


def test_sectors_of_narrow_numbers_given_to_a_function():
    report = run(CORRECT, "narrow", (1,), (32,), [zeros(32), floats(32, dtype=torch.bfloat16)])
    assert {(a.store, a.bytes, a.per_request) for a in report.accesses} == {(False, 2, 2), (True, 4, 4)}


def test_sixteen_bytes_go_a_quarter_warp_at_a_time():
    report = run(CORRECT, "vectors", (1,), (32,), [zeros(128), floats(128)])
    assert {(a.space, a.per_request) for a in report.accesses} == {("shared", 4), ("global", 16)}


# ---- the device headers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, name, n", [(torch.float32, "float", 4), (torch.float16, "__half", 8), (torch.bfloat16, "__nv_bfloat16", 8), (torch.float32, "float", 2)])  # fmt: skip
def test_vectors(dtype, name, n):
    x = floats(1000, dtype=dtype)
    out = torch.zeros_like(x)
    report = run(HEADERS, f"twice<{name}, {n}>", (8,), (64,), [out, x, 1000])
    assert not report.findings and torch.equal(out, 2 * x)
    assert {a.bytes for a in report.accesses} == {n * x.element_size()}


@pytest.mark.parametrize("threads", [32, 96, 1024])
def test_reductions(threads):
    x = floats(threads)
    out = zeros(threads, 4)
    report = run(HEADERS, "reductions", (1,), (threads,), [out, x])
    eight = x.view(-1, 8).sum(1).repeat_interleave(8)
    assert not report.findings
    torch.testing.assert_close(out, torch.stack([*(v.expand(threads) for v in (x.sum(), x.max(), x.min())), eight], 1))


@pytest.mark.parametrize("case", ["normal", "masked", "nan", "huge"])
def test_online_softmax(case):
    x = floats(3, 200) * (1e30 if case == "huge" else 1)
    if case == "masked":
        x[0, ::2], x[1] = -torch.inf, -torch.inf
    if case == "nan":
        x[2, 7] = torch.nan
    out = zeros(3, 200)
    report = run(HEADERS, "softmax_online", (3,), (64,), [out, x, 200])
    assert not report.findings
    torch.testing.assert_close(out, x.softmax(1), equal_nan=True)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_asynchronous_copies(size):
    n = 64 * size // 4
    x, out = floats(n), zeros(n)
    report = run(HEADERS, f"copies<{size}>", (1,), (64,), [out, x, n - 8], 64 * size)
    assert not report.findings and torch.equal(out, torch.cat([x[:-8], zeros(8)]))
    # Two warps ask once each, and not again as the bytes arrive.
    asked = {(a.space, a.store): (a.bytes, a.requests, a.per_request) for a in report.accesses if a.asynchronous}
    assert asked["shared", True] == (size, 2, size / 4) and asked["global", False][1] == 2
    assert {a.asynchronous for a in report.accesses if not a.store and a.space == "shared"} == {False}


def test_tensors_behind_addresses():
    tensors = [zeros(100), zeros(3), zeros(64)]
    addresses = torch.tensor([t.data_ptr() for t in tensors])

    def numbered(sizes, reaches):
        layout = torch.tensor([*sizes, *(t << 32 | c for t, n in enumerate(sizes) for c in range(-(-n // 40)))])
        return run(HEADERS, "number_tensors", (len(layout) - 3,), (64,), [addresses, layout, 3, 40], reaches=reaches).findings

    assert not numbered((100, 3, 64), tensors)
    for t, x in enumerate(tensors):
        assert torch.equal(x, 1000.0 * t + torch.arange(len(x)))
    (found,) = numbered((100, 4, 64), tensors)
    assert found.kind == "out_of_bounds" and "tensor 1 behind the addresses, which has 12 bytes" in found.sentence
    (found,) = numbered((100, 3, 64), tensors[:1])
    assert found.kind == "out_of_bounds"


@pytest.mark.parametrize("dtype, name", [(torch.float16, "__half"), (torch.bfloat16, "__nv_bfloat16")])
def test_tensor_core_tile(dtype, name):
    a, b, d = floats(16, 16, dtype=dtype), floats(16, 8, dtype=dtype), zeros(16, 8)
    report = run(HEADERS, f"tile_product<{name}>", (1,), (32,), [d, a, b])
    assert not report.findings
    torch.testing.assert_close(d, a.float() @ b.float())


def test_ldmatrix_fragments():
    x = torch.arange(256).half()
    out = counts(32, 6)
    assert not run(HEADERS, "fragments", (1,), (32,), [out, x]).findings
    lane = torch.arange(32)
    pairs = out.view(torch.float16).view(32, 6, 2)
    tiles = x.view(4, 8, 8)
    for i in range(4):
        want = tiles[i].T[lane // 4].view(32, 4, 2)[lane, lane % 4]
        assert torch.equal(pairs[:, i], want)
    for i in range(2):
        assert torch.equal(pairs[:, 4 + i], tiles[i][lane // 4].view(32, 4, 2)[lane, lane % 4])


@pytest.mark.parametrize("seed", [None, 1])
def test_release_and_acquire(seed):
    out = counts(5)
    report = run(HEADERS, "message", (5,), (32,), [out, counts(1), counts(1)], seed=seed)
    assert not report.findings and out.tolist() == [42] * 5


@pytest.mark.parametrize("seed", [None, 1])
def test_relaxed_words(seed):
    out, words = torch.zeros(6, dtype=torch.int32), torch.zeros(6, dtype=torch.int64)
    assert not run(HEADERS, "relay", (6,), (32,), [out, words], seed=seed).findings
    assert out.tolist() == [0, 1, 3, 6, 10, 15]
