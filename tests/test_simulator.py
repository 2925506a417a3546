"""The simulator: every planted bug is named with its line, no correct kernel is suspected, and the counts are the hardware's."""

import importlib
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import rooftile  # noqa: F401  the operators
from rooftile.core.kernel import OPS, Kernel
from rooftile.cuda import simulator
from rooftile.cuda.source import Source
from rooftile.workbench import gatekeeper

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
    "vectors": ((1,), (32,), lambda: ([zeros(128), floats(128)], floats(128))),
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


# ---- arithmetic of the 16-bit types ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, name", [(torch.float16, "__half"), (torch.bfloat16, "__nv_bfloat16")])
def test_every_rounding_to_16_bits(dtype, name, tmp_path):
    (tmp_path / "convert.cu").write_text(
        f"""#include <cuda_{"fp16" if dtype == torch.float16 else "bf16"}.h>
        __global__ void convert({name}* gOut, float* gBack, const float* gX, int N) {{
          for (int i = threadIdx.x; i < N; i += 32) {{ gOut[i] = {name}(gX[i]); gBack[i] = static_cast<float>(gOut[i]); }}
        }}"""
    )
    every = (
        torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).float()
    )  # each value, what lies halfway to the next, and beside that
    every = every[every.isfinite()].sort().values
    half = (every[1:].double() + every[:-1].double()).div(2).float()
    x = torch.cat([every, half, half.nextafter(torch.tensor(torch.inf)), half.nextafter(torch.tensor(-torch.inf))])
    x = torch.cat([x, torch.tensor([torch.inf, -torch.inf, torch.nan, 65519.0, 65520.0, 3.4e38, 1e-45, -0.0])])
    out, back = torch.zeros_like(x, dtype=dtype), torch.zeros_like(x)
    source = Source(tmp_path / "convert.cu")
    assert not run(source, "convert", (1,), (32,), [out, back, x, len(x)], level="checks").findings
    same = (out.view(torch.int16) == x.to(dtype).view(torch.int16)) | x.isnan()
    assert same.all(), (x[~same][:8], out[~same][:8])
    assert torch.equal(back.nan_to_num(), out.float().nan_to_num()) and back.isnan().sum() == 1


# ---- bad input -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "instance, grid, block, arguments, shared, sentence",
    [
        ("strided", (1,), (32,), [1], 0, "takes 3 arguments, got 1"),
        ("strided", (1,), (32,), [counts(32), zeros(32), 1], 0, "gOut points to float, got int32"),
        ("strided", (1,), (32,), [zeros(32), zeros(32), 1.5], 0, "stride is one int, and 1.5 is none"),
        ("strided", (1,), (32,), [zeros(32), zeros(32), 2**40], 0, "stride is one int, and 1099511627776 is none"),
        ("strided", (1,), (32,), [zeros(32), zeros(32), zeros(1)], 0, "stride is one int, got a buffer of 1 float32"),
        ("strided", (1,), (32,), [zeros(32), 3, 1], 0, "gX is a pointer to float, got the number 3"),
        ("strided", (1, 70000), (32,), [zeros(32), zeros(32), 1], 0, "grid.y is 70000, it must be from 1 to 65535"),
        ("strided", (1,), (64, 32), [zeros(32), zeros(32), 1], 0, "has 2048 threads, at most 1024"),
        ("strided", (1,), (32,), [zeros(32), zeros(32), 1], 300000, "300000 bytes of dynamic shared memory, it must be from 0 to 232448"),
    ],
)
def test_what_does_not_fit_is_one_sentence(instance, grid, block, arguments, shared, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        run(CORRECT, instance, grid, block, arguments, shared)


def source_of(tmp_path, text: str) -> Source:
    (tmp_path / "k.cu").write_text(text)
    return Source(tmp_path / "k.cu")


def test_compile_errors_name_file_and_line(tmp_path):
    source = source_of(tmp_path, "__global__ void k(float* gX) {\n  __shared__ float sX[4];\n  gX[0] = sX[0] + nothing;\n}\n")
    with pytest.raises(ValueError, match=r"k\.cu does not compile: .*k\.cu:3: .*nothing"):
        run(source, "k", (1,), (1,), [zeros(1)])


def test_too_much_static_shared_memory(tmp_path):
    source = source_of(tmp_path, "__global__ void k(float* gX) {\n  __shared__ float sX[20000];\n  sX[0] = gX[0];\n}\n")
    with pytest.raises(ValueError, match=r"k\.cu:2: 80000 bytes of static shared memory, at most 49152"):
        run(source, "k", (1,), (1,), [zeros(1)])


def test_a_machine_without_gxx(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match="there is no no-such-compiler on the PATH: install g\\+\\+"):
        run(source_of(tmp_path, "__global__ void k() {}\n"), "k", (1,), (1,), [])


def test_a_cache_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROOFTILE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ValueError, match="point ROOFTILE_CACHE at one that can"):
        run(source_of(tmp_path, "__global__ void k() { int x = 1; }\n"), "k", (1,), (1,), [])


@pytest.mark.parametrize("body, word", [("gX[0] = 1 / (gX[0] - gX[0]);", "divides"), ("assert(gX[0] > 5);", "assertion")])
def test_what_the_processor_refuses_is_a_finding(body, word, tmp_path):
    source = source_of(tmp_path, f"__global__ void k(int* gX) {{\n  {body}\n}}\n")
    (finding,) = run(source, "k", (1,), (1,), [counts(1)]).findings
    assert finding.kind == "trap" and finding.line == 2 and word in finding.sentence


def test_declarations_of_shared_memory(tmp_path):
    """As people write them: several in one, over several lines, aligned before or after, of types with commas."""
    source = source_of(
        tmp_path,
        """template <typename A, int N> struct Pair { A x[N]; };
template <typename T>
__global__ void k(T* gX) {
  extern __shared__ __align__(128) unsigned char raw[];
  __shared__ __align__(16) T a[4], b[2][
      2];
  alignas(16) __shared__ Pair<T, 4> p;
  __shared__ unsigned long long big;
  volatile __shared__ int word; // __shared__ in a comment
  if (threadIdx.x == 0) {
    a[3] = 1; b[1][1] = 2; p.x[3] = 3; big = 4; word = 5; reinterpret_cast<T*>(raw)[0] = 6;
    gX[0] = a[3] + b[1][1] + p.x[3] + big + word + reinterpret_cast<T*>(raw)[0];
    gX[1] = __LINE__;
  }
}
""",
    )
    x = counts(2)
    assert not run(source, "k<int>", (1,), (32,), [x], 64).findings
    assert x.tolist() == [21, 13]


def test_buffers_that_share_a_storage_and_views(tmp_path):
    source = source_of(
        tmp_path, "__global__ void k(float* gOut, const float* gX, int n) { int i = threadIdx.x; if (i < n) gOut[i] = gX[i] + 1; }\n"
    )
    x = floats(64)
    want = torch.cat([x[32:] + 1, x[32:]])
    assert not run(source, "k", (1,), (32,), [x[:32], x[32:], 32]).findings
    assert torch.equal(x, want)


# ---- as a device of the gate -----------------------------------------------------------------------------------------------------

ADD = """template <typename T> __global__ void add(T* gOut, const T* gX, const T* gY, long long N) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  CONDITION gOut[i] = gX[i] SIGN gY[i];
}
"""


@pytest.fixture
def launcher(monkeypatch):
    """rooftile.cuda.launch, or the part of it that the simulator meets where it is not there."""
    try:
        return importlib.import_module("rooftile.cuda.launch")
    except ModuleNotFoundError:
        module = types.ModuleType("rooftile.cuda.launch")
        module.simulator = None

        def launch(source, instance, grid, block, *arguments, shared=0):
            if grid:
                module.simulator(source, source.function(instance), (grid, 1, 1), (block, 1, 1), arguments, shared)

        module.launch = launch
        monkeypatch.setitem(sys.modules, "rooftile.cuda.launch", module)
        return module


@pytest.mark.parametrize(
    "condition, sign, status", [("if (i < N)", "+", "passed"), ("if (i <= N)", "+", "failed"), ("if (i < N)", "-", "failed")]
)
def test_the_gate_judges_in_the_simulator(condition, sign, status, tmp_path, monkeypatch, launcher):
    source = source_of(tmp_path, ADD.replace("CONDITION", condition).replace("SIGN", sign))
    names = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}

    def vector_add(x, y):
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        x, y = x.contiguous(), y.contiguous()
        launcher.launch(source, f"add<{names[x.dtype]}>", -(-x.numel() // 64), 64, out, x, y, x.numel())
        return out

    (tmp_path / "k.cu").write_text("#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n" + source.text)
    source = Source(tmp_path / "k.cu")
    op = OPS["vector_add"]
    only_small = lambda call: None if call["x"].dtype in names else f"{call['x'].dtype} is no dtype of this test"  # noqa: E731
    monkeypatch.setattr(op, "kernels", (Kernel("cuda.planted", vector_add, refuse=only_small), op.kernels[-1]))
    answer = gatekeeper.check(["vector_add"], "cuda.planted", "sim", None)
    verdicts = [v for v in answer["results"] if v["status"] != "refused"]
    assert verdicts and {v["status"] for v in verdicts if "0" not in v["case"]} <= {"passed", status}
    assert (answer["failed"] == 0) == (status == "passed")
    if condition == "if (i <= N)":
        assert any("k.cu:5: out_of_bounds" in v["message"] for v in verdicts)


def test_an_operator_without_cuda_kernels_is_told():
    with pytest.raises(ValueError, match="embedding has no kernel in CUDA C"):
        gatekeeper.check(["embedding"], None, "sim", None)


def test_processes_at_once_build_one_library(tmp_path):
    source = source_of(tmp_path, "__global__ void k(int* gX) { gX[0] = 7; }\n")
    script = (
        "import sys, torch; from pathlib import Path; from rooftile.cuda import simulator; from rooftile.cuda.source import Source\n"
        "s = Source(Path(sys.argv[1])); x = torch.zeros(1, dtype=torch.int32); simulator.run(s, s.function('k'), (1, 1, 1), (1, 1, 1), [x])\n"
        "assert x.item() == 7"
    )
    environment = {**os.environ, "ROOFTILE_CACHE": str(tmp_path / "cache")}
    children = [subprocess.Popen([sys.executable, "-c", script, str(source.path)], env=environment) for _ in range(4)]
    assert [c.wait() for c in children] == [0] * 4
    assert sorted(p.name.partition("-")[0] for p in (tmp_path / "cache" / "simulator").iterdir()) == ["k", "runtime"]


def test_a_file_with_host_code_as_people_write_them(tmp_path):
    source = source_of(
        tmp_path,
        """#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#define CHECK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s", cudaGetErrorString(e)); exit(1); } } while (0)
template <typename T>
__global__ void scale(T* x, int n, T by) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  assert(n > 0);
  if (i < n) x[i] = std::sqrt(x[i] * x[i]) * by + (std::isnan(x[i]) ? 1 : 0) + max(0, 0);
}
int main() {
  float* x;
  CHECK(cudaMalloc(&x, 4 * 100));
  std::vector<float> h(100, 1.0f);
  cudaMemcpy(x, h.data(), 400, cudaMemcpyHostToDevice);
  dim3 grid(1), block(128);
  scale<float><<<grid, block, 0,
                 0>>>(x, 100, 2.0f);
  CHECK(cudaDeviceSynchronize());
}
""",
    )
    x = floats(100)
    want = x.abs() * 2
    assert not run(source, "scale<float>", (1,), (128,), [x, 100, 2.0]).findings
    torch.testing.assert_close(x, want)


def test_too_many_locals(tmp_path):
    source = source_of(
        tmp_path,
        "__global__ void k(int* gX) {\n  int a[50000];\n  for (int i = 0; i < 50000; ++i) a[i] = gX[0] + i;\n  gX[0] = a[gX[0] + 7] + a[9];\n}\n",
    )
    (finding,) = run(source, "k", (1,), (2,), [counts(1)]).findings
    assert finding.kind == "trap" and "bytes of locals" in finding.sentence


def test_a_library_cut_short_is_built_again(tmp_path, monkeypatch):
    source = source_of(tmp_path, "__global__ void k(int* gX) { gX[0] = 8; }\n")
    first, second = tmp_path / "first" / "simulator", tmp_path / "second" / "simulator"
    monkeypatch.setenv("ROOFTILE_CACHE", str(first.parent))
    run(source, "k", (1,), (1,), [counts(1)])
    (library,) = first.glob("k-*.so")
    second.mkdir(parents=True)
    (second / library.name).write_bytes(library.read_bytes()[:100])
    monkeypatch.setenv("ROOFTILE_CACHE", str(second.parent))
    x = counts(1)
    assert not run(source, "k", (1,), (1,), [x]).findings and x.item() == 8
    assert (second / library.name).stat().st_size == library.stat().st_size
