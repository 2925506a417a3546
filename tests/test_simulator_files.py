"""Whole programs as people write them: host code, libraries that are not here, spellings of a kernel; and what is not modelled is one sentence."""

import pytest
import torch

from rooftile.cuda.simulator import rewrite
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
    ],
)
def test_spellings_of_a_kernel(head, tmp_path):
    source = source_of(tmp_path, f"{head}\n{{ if (threadIdx.x < n) x[threadIdx.x] = n; }}\n")
    x = counts(4)
    assert not run(source, "k", (1,), (8,), [x, 4]).findings
    assert x.tolist() == [4] * 4
    assert [(p.name, p.pointer) for p in source.functions["k"].parameters] == [("x", True), ("n", False)]


def test_comments_in_another_encoding(tmp_path):
    (tmp_path / "k.cu").write_bytes(b"\xef\xbb\xbf// \xb3\xcc\xd0\xf2\n__global__ void k(int* x) { x[0] = 5; } // \xff\n")
    x = counts(1)
    assert not run(Source(tmp_path / "k.cu"), "k", (1,), (1,), [x]).findings and x.item() == 5
