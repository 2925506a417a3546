"""Whole programs as people write them: host code, libraries that are not here, spellings of a kernel; and what is not modelled is one sentence."""

import json
import re

import pytest
import torch

import processes
from rooftile.cuda.simulator import build, rewrite
from rooftile.cuda.source import Source
from test_simulator import counts, floats, run, zeros
from test_simulator_input import source_of

HOST = """#include <absent/vector.h>
#include "../absent.hpp"
#include <vector>
#define DEVICE __device__ __forceinline__
#define CHECK(x) do { if ((x) != cudaSuccess) exit(1); } while (0)
using namespace std;
enum Mode { ONCE, TWICE };
typedef struct { int n; } Count;
struct Scale {
  float by;
  Scale(float f) : by{f} { absent::log("}"); }
 private:
  absent::Handle* open() const { return absent::open(by); }
 public:
  DEVICE float operator()(float x) const { return x * by; }
};
const int BLOCK = 64;
absent::Handle handle;
static absent::vector<float> history(10, {1, 2});
template <typename T> absent::Result run(absent::vector<T>& x, int n = 3);
constexpr int ceiling(int a, int b) { return (a + b - 1) / b; }
#if ABSENT
void report(absent::Handle h) {
#else
absent::Result report() {
#endif
  for (auto& x : history) { printf("%f {\\n", x); }
}
namespace work {
DEVICE float twice(float x) { return 2 * x; }
void host() { absent::go([](int i) { return i; }); }
}
extern "C" {
__global__ void scale(float* x, Scale s, int n) {
  __shared__ float sX[ceiling(BLOCK, 1)];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  sX[threadIdx.x] = i < n ? x[i] : 0;
  if (i < n) x[i] = work::twice(sX[threadIdx.x]) + __LINE__;
}
}
template <typename T> absent::Result run(absent::vector<T>& x, int n) {
#define LATER 1
  dim3 gridDim(n), blockDim(BLOCK);
  scale<<<gridDim, blockDim>>>(x.data(), Scale(2), n);
  try { CHECK(cudaGetLastError()); } catch (...) { throw; }
}
template absent::Result run<float>(absent::vector<float>&, int);
int main(int argc, char** argv) {
  absent::vector<float> x(100);
  return run(x) == 0;
}
__global__ void after(int* x) { *x = LATER + TWICE + sizeof(Count) + __LINE__; }
"""


def test_host_code_is_left_out(tmp_path):
    source = source_of(tmp_path, HOST)
    x = floats(100)
    line = next(i for i, text in enumerate(HOST.splitlines(), 1) if "__LINE__" in text)
    want = 2 * x + line
    (text,) = rewrite.rewritten(source).values()
    assert "absent::" not in text and text.count("\n") >= HOST.count("\n")
    kernel = text.replace("Scale s, ", "")  # a structure cannot be given
    (tmp_path / "k.cu").write_text(HOST.replace("Scale s, ", ""))
    assert kernel and not run(Source(tmp_path / "k.cu"), "scale", (2,), (64,), [x, 100]).findings
    torch.testing.assert_close(x, want)
    y = counts(1)
    assert not run(source, "after", (1,), (1,), [y]).findings
    assert y.item() == 1 + 1 + 4 + HOST.count("\n")


def test_a_header_that_is_not_here_is_named_where_a_kernel_needs_it(tmp_path):
    source = source_of(tmp_path, "#include <absent/maths.h>\n__global__ void k(float* x) { x[0] = absent_square(x[0]); }\n")
    with pytest.raises(ValueError, match=r"k\.cu:2: .*absent_square.*taken to be empty: absent/maths\.h"):
        run(source, "k", (1,), (1,), [zeros(1)])


def test_braces_that_do_not_pair_are_told_by_the_compiler(tmp_path):
    source = source_of(tmp_path, "}\nint main() { k<<<1, 1>>>(); }\n__global__ void k() {}\n")
    with pytest.raises(ValueError, match=r"k\.cu:1: "):
        run(source, "k", (1,), (1,), [])


@pytest.mark.parametrize(
    "head",
    [
        "__global__ void k(int* x, int n)",
        "void __global__ k(int *x, int n)",
        "static void __global__ k(int *x, const int n)",
        'extern "C" __global__ void k(int x[], int n = 4)',
        "__launch_bounds__(16 * (2 + 2)) __global__ void k(int* x, int n)",
        "__global__ void __launch_bounds__(max(64, 1), 2)\nk(int* __restrict x, int n)",
        "__global__ __launch_bounds__(64) void k(int x[4], int n)",
        "inline __global__ void k(int* x, int (n))",
        "__forceinline__ __global__ void k(int* x, int n)",
        "void k(int*, int);\n__global__ void k(int* x, int n)",
    ],
)
def test_spellings_of_a_kernel(head, tmp_path):
    source = source_of(tmp_path, f"{head}\n{{ if (threadIdx.x < n) x[threadIdx.x] = n; }}\n")
    x = counts(4)
    assert not run(source, "k", (1,), (8,), [x, 4]).findings
    assert x.tolist() == [4] * 4
    assert [(p.name, p.pointer) for p in source.functions["k"].parameters] == [("x", True), ("n", False)]


def test_of_a_files_kernels_g_plus_plus_makes_the_one_that_is_asked_for(tmp_path):
    text = "".join(f'extern "C" __global__ void {name}(int* x) {{ x[0] = {n}; }}\n' for n, name in enumerate(("other", "asked", "third")))
    source = source_of(tmp_path, text)
    made = build.kernel(source, source.function("asked")).path.read_bytes()
    assert b"asked" in made and b"other" not in made and b"third" not in made


def test_comments_in_another_encoding(tmp_path):
    (tmp_path / "k.cu").write_bytes(b"\xef\xbb\xbf// \xb3\xcc\xd0\xf2\n__global__ void k(int* x) { x[0] = 5; } // \xff\n")
    x = counts(1)
    assert not run(Source(tmp_path / "k.cu"), "k", (1,), (1,), [x]).findings and x.item() == 5


def test_types_of_a_header_stay_where_another_file_uses_them(tmp_path):
    (tmp_path / "types.h").write_text(
        "template <typename T> struct alignas(2 * sizeof(T)) Used { T n; };\nstruct Unused { absent::Handle h; Used<int> u; };\nvoid host(Unused& u);\n"
    )
    source = source_of(tmp_path, '#include "types.h"\n__global__ void k(Used<int>* u) { u->n = sizeof(*u); }\n')
    x = counts(2)
    assert not run(source, "k", (1,), (1,), [x]).findings and x[0].item() == 8


def test_a_kernel_in_a_namespace_and_namespaces_that_are_not_here(tmp_path):
    source = source_of(tmp_path, "using namespace absent::deep;\nnamespace a { __global__ void k(int* x) { x[0] = warpSize; } }\n")
    x = counts(1)
    assert not run(source, "a::k", (1,), (1,), [x]).findings and x.item() == 32


BESIDE = "__global__ void fine(int* x) { x[0] = 3; }\n"


@pytest.mark.parametrize(
    "body, sentence",
    [
        (
            'unsigned l;\n  asm volatile("{ .reg .u32 t;\\n"\n  " mov.u32 %0, %%laneid; }" : "=r"(l) :: "memory"); x[0] = l;',
            "inline PTX (mov.u32)",
        ),
        ("MOVE(x[0]);", "inline PTX (mov.b32)"),
        ("\n  fine<<<1,\n 1>>>(x);", "a launch from a kernel"),
        ("\n  x[0] = tex2D<int>(t, 1, 2);", "textures and surfaces (tex2D)"),
    ],
)
def test_what_is_not_modelled_is_told_where_a_thread_comes_to_it(body, sentence, tmp_path):
    text = f'#define MOVE(to) \\\n  asm("mov.b32 %0, 1;" : \\\n "=r"(to))\n{BESIDE}__global__ void k(int* x, cudaTextureObject_t t) {{ {body} }}\n'
    source, x = source_of(tmp_path, text), counts(1)
    assert not run(source, "fine", (1,), (1,), [x]).findings and x.item() == 3
    line = 5 + body.startswith(("unsigned", "\n"))
    with pytest.raises(ValueError, match=re.escape(f"k.cu:{line}: the simulator does not model {sentence}")):
        run(source, "k", (1,), (1,), [x, 0])


GROUPS = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__device__ int sum(cg::thread_group g, int* s, int v) {
  for (int i = g.size() / 2; i > 0; i /= 2) {
    s[g.thread_rank()] = v;
    g.sync();
    if (g.thread_rank() < i) v += s[g.thread_rank() + i];
    g.sync();
  }
  return v;
}
__global__ void k(int* out, int* part) {
  __shared__ int s[64];
  cg::thread_block block = cg::this_thread_block();
  cg::grid_group grid = cg::this_grid();
  cg::thread_block_tile<8> tile = cg::tiled_partition<8>(block);
  int t = block.thread_rank(), all = sum(block, s, t);
  if (t == 0) part[blockIdx.x] = all + blockIdx.x;
  GRID;
  if (grid.thread_rank() == grid.size() - 1) out[0] = part[0] + part[gridDim.x - 1];
  int eight = cg::reduce(tile, t, cg::plus<int>()) + tile.shfl(t, 7) + tile.ballot(tile.thread_rank() < 3);
  if (blockIdx.x == 0 && tile.thread_rank() == 0) out[1 + tile.meta_group_rank()] = eight;
}
"""


@pytest.mark.parametrize("seed", [None, 2])
def test_cooperative_groups(seed, tmp_path):
    source = source_of(tmp_path, GROUPS.replace("GRID", "grid.sync()"))
    out = counts(9)
    assert not run(source, "k", (5,), (8, 8), [out, counts(5)], seed=seed).findings
    tiles = torch.arange(64).view(8, 8)
    assert out.tolist() == [2 * 2016 + 4, *(tiles.sum(1) + tiles[:, 7] + 7).tolist()]
    without = source_of(tmp_path, GROUPS.replace("GRID", "block.sync()"))
    assert {f.kind for f in run(without, "k", (5,), (8, 8), [out, counts(5)]).findings} == {"race"}


LAST = """__device__ unsigned done = 0;
__global__ void k(int* out, int* part, int n) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    part[blockIdx.x] = blockIdx.x;
    __threadfence();
    last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    __threadfence();
    int sum = 0;
    for (int i = 0; i < n; ++i) sum += part[i];
    out[0] = sum;
  }
}
"""


@pytest.mark.parametrize("seed", [None, 1])
def test_a_counter_in_a_device_variable_orders_blocks(seed, tmp_path):
    source, out = source_of(tmp_path, LAST), counts(1)
    assert not run(source, "k", (6,), (32,), [out, counts(6), 6], seed=seed).findings and out.item() == 15
    source = source_of(tmp_path, LAST.replace("__threadfence();", "", 1))
    assert {f.kind for f in run(source, "k", (6,), (32,), [out, counts(6), 6], seed=seed).findings} == {"race"}


SHARED_BY_BLOCKS = """__device__ unsigned tickets = 0;
namespace deep { __device__ float sums[8]; }
__global__ void k() {
  if (threadIdx.x == 0) {
    if (atomicInc(&tickets, gridDim.x) == gridDim.x - 1) tickets = 0;
  }
  deep::sums[threadIdx.x % 8] += 1.0f;
}
"""


def test_threads_race_for_a_device_variable_too(tmp_path):
    """Whose counter is put back by the last that has come, behind its own atomic, is no race."""
    (found,) = run(source_of(tmp_path, SHARED_BY_BLOCKS), "k", (2,), (32,), []).findings
    assert (found.kind, found.line) == ("race", 7) and "offset 0 of deep::sums, which thread 0 of block 0 writes" in found.sentence
    one = SHARED_BY_BLOCKS.replace("[threadIdx.x % 8] += 1.0f", "[threadIdx.x] = 1.0f")
    assert not run(source_of(tmp_path, one), "k", (1,), (8,), []).findings


@pytest.mark.parametrize("layout, sums, dtype", [("row", "float", torch.float32), ("col", "half", torch.float16)])
def test_products_by_wmma(layout, sums, dtype, tmp_path):
    source = source_of(
        tmp_path,
        f"""#include <mma.h>
using namespace nvcuda;
__global__ void k({sums}* d, const half* a, const half* b, int steps) {{
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::{layout}_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, {sums}> fd;
  wmma::fill_fragment(fd, 0.0f);
  for (int i = 0; i < steps; ++i) {{
    wmma::load_matrix_sync(fa, a + 16 * i, 16 * steps);
    wmma::load_matrix_sync(fb, b + 16 * i * {16 if layout == "row" else 1}, {"16" if layout == "row" else "16 * steps"});
    wmma::mma_sync(fd, fa, fb, fd);
  }}
  for (int i = 0; i < fd.num_elements; ++i) fd.x[i] = fd.x[i] * {sums}(2);
  wmma::store_matrix_sync(d, fd, 16, wmma::mem_row_major);
}}
""",
    )
    a, b, d = floats(16, 32, dtype=torch.float16), floats(32, 16, dtype=torch.float16), zeros(16, 16, dtype=dtype)
    stored = b if layout == "row" else b.T.contiguous()
    assert not run(source, "k", (1,), (32,), [d, a, stored, 2]).findings
    torch.testing.assert_close(d.float(), 2 * (a.float() @ b.float()), rtol=5e-3, atol=5e-2 if sums == "half" else 1e-4)


def test_random_numbers(tmp_path):
    source = source_of(
        tmp_path,
        """#include <curand_kernel.h>
__global__ void start(curandState* s, unsigned long long seed) { curand_init(seed, threadIdx.x, 0, &s[threadIdx.x]); }
__global__ void draw(float* uniform, float* normal, curandState_t* s, int n) {
  curandState mine = s[threadIdx.x];
  for (int i = 0; i < n; ++i) uniform[threadIdx.x * n + i] = curand_uniform(&mine), normal[threadIdx.x * n + i] = curand_normal(&mine);
  s[threadIdx.x] = mine;
}
""",
    )
    states, uniform, normal = zeros(32 * 48, dtype=torch.uint8), zeros(32, 100), zeros(32, 100)
    assert not run(source, "start", (1,), (32,), [states, 7]).findings
    assert not run(source, "draw", (1,), (32,), [uniform, normal, states, 100]).findings
    assert uniform.min() > 0 and uniform.max() <= 1 and len(uniform.unique()) > 3100
    assert abs(uniform.mean() - 0.5) < 0.02 and abs(normal.mean()) < 0.05 and abs(normal.std() - 1) < 0.05


@pytest.mark.parametrize(
    "expression, want",
    [
        ("__float2uint_rn(2.5f) + 10 * __float2uint_rd(2.9f) + 100 * __float2ull_ru(2.1f)", 322),
        ("__double2int_rz(-2.7) + __dp4a(0x01ff0203, 0x02020202, 100)", 108),
        ("__umul24(3u, 5u) + __sad(3, -4, 1u) + __usad(9u, 4u, 0u)", 28),
        ("max(3, 4u) + min(5u, 2) + int(max(1.5, 2.0f))", 8),
        ("atomicAdd_system(x, 5) + x[0] + atomicCAS_system(x, 5, 9) + x[0]", 19),
        ("int(__uint2float_rd(16777219u) == 16777218.f) + int(__int2float_rz(-16777219) == -16777218.f)", 2),
        ("__brevll(1ull) >> 60 == 8 && __umul64hi(1ull << 63, 6) == 3", 1),
        ("dim3(threadIdx).x + dim3(4).y + warpSize", 33),
        ("__funnelshift_lc(5u, 3u, 4) + __funnelshift_lc(5u, 3u, 32) + __funnelshift_lc(7u, 3u, 40)", 60),
        ("__funnelshift_rc(16u, 9u, 33) * (__funnelshift_rc(16u, 9u, 4) & 15) + __funnelshift_rc(16u, 8u, 32)", 17),
        ("int(lrintf(2.5f) + llroundf(2.5f) + lgammaf(5.f) * 100 + sinpif(2.5f) + norm3df(2.f, 3.f, 6.f))", 330),
        ("int(sizeof(uint) + sizeof(ushort) + sizeof(ulong))", 14),
        ("int(__match_all_sync(1, 5, out)) + out[0]", 2),
    ],
)
def test_words_of_the_language(expression, want, tmp_path):
    source = source_of(tmp_path, f"__global__ void k(int* x, int* out) {{ out[0] = {expression}; }}\n")
    out = counts(1)
    assert not run(source, "k", (1,), (1,), [counts(1), out]).findings and out.item() == want


def test_a_shared_array_that_is_declared_for_less_is_told_and_goes_on(tmp_path):
    text = """__global__ void k(float* x) {
  ALIGN __shared__ float s[2][36];
  reinterpret_cast<float4*>(s[1])[threadIdx.x] = reinterpret_cast<float4*>(x)[threadIdx.x];
  x[threadIdx.x] = s[1][4 * threadIdx.x] + 1;
}
"""
    x = torch.arange(32.0)
    (finding,) = run(source_of(tmp_path, text.replace("ALIGN", "")), "k", (1,), (8,), [x], level="checks").findings
    assert (finding.kind, finding.line) == ("misaligned", 3) and "declared for 4: __align__(16) is missing" in finding.sentence
    assert x[:8].tolist() == [1 + 4 * i for i in range(8)]
    assert not run(source_of(tmp_path, text.replace("ALIGN", "__align__(16)")), "k", (1,), (8,), [x], level="checks").findings


CAS = """__device__ float largest(float* p, float v) {
  int old = *(int*)p, seen;
  do {
    seen = old;
    if (__int_as_float(seen) >= v) break;
    old = atomicCAS((int*)p, seen, __float_as_int(v));
  } while (old != seen);
  return __int_as_float(old);
}
__global__ void k(float* out, const float* x) { largest(out, x[blockIdx.x * blockDim.x + threadIdx.x]); }
__global__ void peeks(float* out, const float* x) { if (out[1] >= 0) atomicAdd(out, *out); else atomicAdd(out + 1, 1.0f); }
"""


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_what_atomic_cas_confirms_may_be_read_before(seed, tmp_path):
    source, out, x = source_of(tmp_path, CAS), zeros(1) - 9, floats(256)
    assert not run(source, "k", (4,), (64,), [out, x], seed=seed).findings and out.item() == x.max()
    found = run(source, "peeks", (2,), (64,), [zeros(2) - 3, x], seed=seed).findings
    assert {(f.kind, f.line) for f in found} == {("race", 11)}


CONSTANT = """__constant__ float weights[3];
__constant__ int offset;
__device__ int count = 0;
__global__ void k(float* out) { out[threadIdx.x] = weights[threadIdx.x] + offset; atomicAdd(&count, 1); }
int main() {
  cudaMemcpyToSymbol(weights, host, sizeof host);
}
"""


def test_variables_that_host_code_would_fill(tmp_path):
    source, out, count = source_of(tmp_path, CONSTANT), zeros(3), counts(1)
    given = {"weights": floats(3), "offset": 4, "count": count}
    assert not run(source, "k", (1,), (3,), [out], symbols=given).findings
    assert torch.equal(out, given["weights"] + 4) and count.item() == 3
    for name, value, why in [
        ("weights", floats(4), "weights has 12 bytes, got 16"),
        ("weights", counts(3), "weights points to float, got int32"),
        ("offset", 1.5, "offset is one int, and 1.5 is none"),
    ]:
        with pytest.raises(ValueError, match=why):
            run(source, "k", (1,), (3,), [out], symbols={name: value})


def test_the_command_line_asks_for_what_host_code_would_fill(tmp_path):
    source = source_of(tmp_path, CONSTANT.replace("atomic", 'if (offset) printf("%d\\n", offset); atomic'))
    bare = processes.run("rooftile", "sim", str(source.path), "--block", "3", "f32[3]")
    assert bare.returncode == 2 and "k.cu:6: host code fills weights here" in " ".join(bare.stderr.split())
    given = ["--symbol", "weights=f32[3]:arange", "--symbol", "offset=i32:7"]
    said = processes.run("rooftile", "sim", str(source.path), "--block", "3", *given, "--json", "f32[3]")
    assert json.loads(said.stdout)["findings"] == [] and said.stderr.count("7\n") == 3
    wrong = processes.run("rooftile", "sim", str(source.path), "--symbol", "weights", "f32[3]")
    assert wrong.returncode == 2 and "--symbol is NAME=TYPE[COUNT]" in " ".join(wrong.stderr.split())


@pytest.mark.parametrize(
    "body, kind, sentence",
    [
        ("x[t] =\n __shfl_down_sync(~0u, t, 1, 64);", "bad_mask", "__shfl_down_sync with width 64, which must be 1, 2, 4, 8, 16 or 32"),
        ("x[t] =\n table[t / 8];", "out_of_bounds", "line 2: thread 24 of block 0 uses index 3 of an array 'int [3]'"),
        (
            "int mine[2] = {};\n mine[t] = t; x[t] = mine[t & 1];",
            "out_of_bounds",
            "line 2: thread 2 of block 0 uses index 2 of an array 'int [2]'",
        ),
        (
            "__shared__ int s[4][9]; int i = t - 1;\n (*s)[i] = x[t];",
            "out_of_bounds",
            "line 2: thread 0 of block 0 uses index -1 of an array 'int [9]'",
        ),
        ("extern __shared__ int s[];\n s[t] = 1;", "out_of_bounds", "of dynamic shared memory, of which the launch asks for none"),
        (
            "if (t == 0)\n while (atomicAdd(x, 0) == 0);\n __syncthreads();",
            "timeout",
            "line 2: 32 threads do not end: 1 in line 2 in a pause",
        ),
        (
            "volatile __shared__ int s[64]; s[t] = s[t + 32] = x[t]; __syncthreads(); s[t] += s[t + 16];\n s[t] += s[t + 8];",
            "race",
            "volatile does not hold the lanes of a warp in step, __syncwarp() is missing in between",
        ),
        (
            "__shared__ int s[64]; s[t] = s[t + 32] = 0; __syncthreads(); int v = s[t] + s[t + 1];\n s[t] = v;",
            "race",
            "line 2: thread 1 of block 0 writes offset 4 of shared array s, which thread 0 of block 0 reads in line 1",
        ),
    ],
)
def test_what_a_learner_forgets_is_told_at_its_line(body, kind, sentence, tmp_path):
    source = source_of(tmp_path, f"__constant__ int table[3]; __global__ void k(int* x) {{ int t = threadIdx.x; {body} }}\n")
    (finding, *_) = run(source, "k", (1,), (32,), [counts(32)], bound=1 << 16).findings
    assert finding.kind == kind and sentence in f"line {finding.line}: {finding.sentence}"


def test_a_shuffle_goes_as_far_as_five_bits_say(tmp_path):
    body = "x[t] = __shfl_up_sync(~0u, t, -1); x[32 + t] = __shfl_down_sync(~0u, t, 33); x[64 + t] = __shfl_xor_sync(~0u, t, 40);"
    source, x = source_of(tmp_path, f"__global__ void k(int* x) {{ int t = threadIdx.x; {body} }}\n"), counts(96)
    assert not run(source, "k", (1,), (32,), [x]).findings
    assert x.tolist() == [*range(31), 0, *range(1, 32), 31, *(t ^ 8 for t in range(32))]


PIPELINE = """#include <cuda_pipeline.h>
__global__ void k(float4* out, const float4* x, int tiles) {
  __shared__ float4 s[2][32];
  int t = threadIdx.x;
  __pipeline_memcpy_async(&s[0][t], &x[t], sizeof(float4));
  __pipeline_commit();
  for (int i = 0; i < tiles; ++i) {
    if (i + 1 < tiles) __pipeline_memcpy_async(&s[(i + 1) % 2][t], &x[(i + 1) * 32 + t], 16);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    out[i * 32 + t] = s[i % 2][31 - t];
    __syncthreads();
  }
}
"""


def test_a_pipeline_of_copies_by_nvidias_names(tmp_path):
    x, out = floats(3, 32, 4), zeros(3, 32, 4)
    assert not run(source_of(tmp_path, PIPELINE), "k", (1,), (32,), [out, x, 3]).findings
    assert torch.equal(out, x.flip(1))
    for less, kind, line in [("    __pipeline_wait_prior(1);", "uninitialised", 12), ("    __syncthreads();\n  }", "race", 12)]:
        assert less in PIPELINE
        text = PIPELINE.replace(less, less.replace("__pipeline_wait_prior(1)", "").replace("__syncthreads()", ""))
        found = run(source_of(tmp_path, text), "k", (1,), (32,), [out, x, 3]).findings
        assert kind in {f.kind for f in found} and line in {n for f in found for n in (f.line, f.other_line)}


FLAGS = """__global__ void k(int* out, const int* x) {
  volatile __shared__ int found, done[2], s[32];
  __shared__ int part[2];
  int t = threadIdx.x, w = t / 32;
  if (t == 0) found = done[0] = 0;
  __syncthreads();
  for (int i = t; i < 256 && !found; i += 64) if (x[i] == 7) found = 1;
  if (t % 32 == 0) {
    if (w) while (!done[0]) ;
    __threadfence_block();
    part[w] = w ? part[0] + 1 : 4;
    __threadfence_block();
    done[w] = 1;
  }
  if (w) s[t - 32] = t, __syncwarp(), out[t] = s[63 - t];
  __syncthreads();
  if (t == 0) out[0] = part[1] + found;
}
"""


@pytest.mark.parametrize("seed", [None, 3])
def test_volatile_flags_order_and_race_with_nobody(seed, tmp_path):
    source, out, x = source_of(tmp_path, FLAGS), counts(64), counts(256)
    x[200] = 7
    assert not run(source, "k", (1,), (64,), [out, x], seed=seed).findings
    assert out[0].item() == 6 and out[32:].tolist() == [*range(63, 31, -1)]


OUTSIDE = """extern __shared__ float dynamic[];
namespace a { static __shared__ __align__(16) int tile[32], more; }
static __constant__ int one[1] = {1};
using namespace a;
struct Reader { __device__ float operator()(int i) const { return tile[i] + more; } };
__device__ float second(float* dynamic, int i) { return dynamic[i]; }
__global__ void k(float* out) {
  __shared__ struct { int n; float v[2]; } both;
  int t = threadIdx.x;
  dynamic[t] = t, tile[t] = 100 * t;
  if (t == 0) more = one[0], both.n = 7, both.v[1] = 0.5f;
  BARRIER;
  out[t] = second(dynamic, 31 - t) + Reader()(31 - t) + both.n + both.v[1];
}
"""


def test_shared_memory_that_is_declared_outside_a_function_or_as_a_structure(tmp_path):
    source, out = source_of(tmp_path, OUTSIDE.replace("BARRIER", "__syncthreads()")), zeros(32)
    assert not run(source, "k", (1,), (32,), [out], 128).findings
    assert out.tolist() == [101 * (31 - t) + 8.5 for t in range(32)]
    found = run(source_of(tmp_path, OUTSIDE.replace("BARRIER", "")), "k", (1,), (32,), [out], 128).findings
    assert {f.line for f in found if f.kind == "uninitialised"} == {5, 6}


@pytest.mark.parametrize("instance", ["k<>", "k", "k<int>", "k<int, 3>"])
def test_template_arguments_with_defaults(instance, tmp_path):
    source = source_of(tmp_path, "template <typename T = int, int N = 3>\n__global__ void k(T* x) { x[0] = N; }\n")
    x = counts(1)
    assert not run(source, instance, (1,), (1,), [x]).findings and x.item() == 3


def test_structures_and_enumerations_by_value(tmp_path):
    source = source_of(
        tmp_path,
        """enum Mode { ADD, MULTIPLY };
struct Circle { float x, y; int n; };
__global__ void k(float* out, Circle c, float4 v, Mode mode, char last) {
  out[0] = mode == MULTIPLY ? c.x * c.y * c.n : 0;
  out[1] = v.x + v.w + last;
}
""",
    )
    out, circle = zeros(2), torch.cat([torch.tensor([2.0, 3.0]), torch.tensor([5], dtype=torch.int32).view(torch.float32)])
    assert not run(source, "k", (1,), (1,), [out, circle, torch.arange(4.0), 1, 7]).findings
    assert out.tolist() == [30, 10]
    with pytest.raises(ValueError, match="c is a structure of 12 bytes: give it as a tensor of as many"):
        run(source, "k", (1,), (1,), [out, 1, torch.arange(4.0), 1, 7])
    with pytest.raises(ValueError, match="v is a structure of 16 bytes"):
        run(source, "k", (1,), (1,), [out, circle, torch.arange(3.0), 1, 7])


@pytest.mark.parametrize("wait", ["atomicAdd(&flag[b], 0) == 0", "atomicMax(&flag[b], 0) == 0", "atomicCAS(&flag[b], 1, 1) != 1"])
@pytest.mark.parametrize("seed", [None, 3])
def test_a_loop_that_waits_through_an_atomic(wait, seed, tmp_path):
    source = source_of(
        tmp_path,
        f"""__global__ void k(int* sum, int* flag) {{
  int b = gridDim.x - 1 - blockIdx.x;  // a later block comes first
  if (b > 0) while ({wait}) ;
  __threadfence();
  sum[b + 1] = sum[b] + b;
  __threadfence();
  atomicAdd(&flag[b + 1], 1);
}}
""",
    )
    sums = counts(6)
    assert not run(source, "k", (5,), (1,), [sums, counts(6)], seed=seed).findings and sums.tolist() == [0, 0, 1, 3, 6, 10]
