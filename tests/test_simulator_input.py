"""What the simulator takes: files as people write them, arguments that do not fit, every value of the 16-bit types; and the gate on top of it."""

import importlib
import re
import shutil
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import processes
import rooftile  # noqa: F401  the operators
from rooftile.core.kernel import OPS, Kernel
from rooftile.cuda.simulator import build
from rooftile.cuda.source import Source
from rooftile.workbench import gatekeeper
from test_simulator import CORRECT, counts, floats, run, zeros

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
    compiled = runs_of_g_plus_plus(monkeypatch)
    answer = gatekeeper.check(["vector_add"], "cuda.planted", "sim", None)
    assert len(compiled) == 1  # the kernels of all dtypes
    verdicts = [v for v in answer["results"] if v["status"] != "refused"]
    assert verdicts and {v["status"] for v in verdicts if "0" not in v["case"]} <= {"passed", status}
    assert (answer["failed"] == 0) == (status == "passed")
    if condition == "if (i <= N)":
        assert any("k.cu:5: out_of_bounds" in v["message"] for v in verdicts)


def test_an_operator_without_cuda_kernels_is_told():
    with pytest.raises(ValueError, match="linear_cross_entropy has no kernel in CUDA C"):
        gatekeeper.check(["linear_cross_entropy"], None, "sim", None)


RACERS = """
import os, sys, traceback, torch
from pathlib import Path
from rooftile.cuda import simulator
from rooftile.cuda.simulator import build
from rooftile.cuda.source import Source

def race():
    s, x = Source(Path(sys.argv[1])), torch.zeros(1, dtype=torch.int32)
    simulator.run(s, s.function("k"), (1, 1, 1), (1, 1, 1), [x])
    assert x.item() == 7

racers = []
for _ in range(2):
    racers.append(os.fork())
    if racers[-1] == 0:
        try:
            race()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
sys.exit(max(os.waitpid(racer, 0)[1] for racer in racers) > 0)
"""


def test_processes_at_once_build_one_library(tmp_path):
    source = source_of(tmp_path, "__global__ void k(int* gX) { gX[0] = 7; }\n")
    build.runtime()  # which takes ten seconds, and goes the same way
    (there := tmp_path / "cache" / "simulator").mkdir(parents=True)
    for made in build.folder().glob("runtime-*.so"):
        shutil.copy(made, there)
    done = processes.run(str(source.path), code=RACERS, ROOFTILE_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert {p.name.partition("-")[0] for p in there.iterdir()} == {"before", "k", "runtime"}
    assert len([*there.glob("k-*")]) == 1 and [p.name for p in there.glob("before-*/*")] == ["before.h.gch"]


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


def test_a_cache_folder_that_takes_no_more_is_a_sentence(tmp_path, monkeypatch):
    """Seen red: where the runtime was there already, the folder for what g++ reads first was made before anybody looked."""
    source = source_of(tmp_path, "__global__ void k(int* gX) { gX[0] = 9; }\n")
    build.runtime()
    monkeypatch.setattr(build, "folder", lambda: tmp_path)
    monkeypatch.setattr(build, "_digest", lambda *parts: "same")
    (tmp_path / "before-same").write_text("")  # as good as a folder that may not be written, which root may
    with pytest.raises(ValueError, match=r"before-same cannot be written .*point ROOFTILE_CACHE at one that can"):
        run(source, "k", (1,), (1,), [counts(1)])


def test_a_compiler_that_cannot_build_our_part_is_a_sentence(tmp_path, monkeypatch):
    """Seen red: a traceback, of CXX=clang++ and of a disk that is full."""
    refusing = tmp_path / "clang++"
    refusing.write_text("#!/bin/sh\necho 'error: unsupported option' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("CXX", str(refusing))
    monkeypatch.setenv("ROOFTILE_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=rf"clang\+\+ cannot build .*, for {tmp_path}/simulator: error: unsupported option"):
        build.runtime.__wrapped__()


def test_who_begins_together_builds_what_all_need_once(tmp_path, monkeypatch):
    """Two workers of `make test` spent eight seconds each on the same files. A lock is of a file that was opened, so that threads stand for processes."""
    built, both = [], threading.Barrier(2)

    def publish(command, path):
        built.append(path)
        time.sleep(0.3)
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def asked():
        both.wait()
        return build._precompiled(build.TRACED)

    monkeypatch.setattr(build, "folder", lambda: tmp_path)
    monkeypatch.setattr(build, "_publish", publish)
    with ThreadPoolExecutor(2) as pool:
        folders = [made.result() for made in [pool.submit(asked) for _ in range(2)]]
    assert len(set(folders)) == 1 and built == [folders[0] / "before.h.gch"]


def runs_of_g_plus_plus(monkeypatch):
    """A list that grows by the command of each."""
    made, run = [], build._run

    def counted(command, scratch, source):
        if source is not None:
            made.append(command)
        run(command, scratch, source)

    monkeypatch.setattr(build, "_run", counted)
    return made


def test_what_will_be_launched_of_a_file_is_compiled_together(tmp_path, monkeypatch):
    text = "__device__ int gSeen;\ntemplate <int N> __global__ void k(int* gX) { gSeen += N; gX[0] = N; gX[1] = sizeof(int[N]); }\n"
    source = source_of(tmp_path, text)
    compiled, x = runs_of_g_plus_plus(monkeypatch), counts(2)
    build.ahead(source, ["k<3>", "k<4>"])
    build.ahead(source, ["k<3>", "k<4>"])
    for n in (3, 4):
        assert not run(source, f"k<{n}>", (1,), (1,), [x]).findings and x.tolist() == [n, 4 * n]
    assert len(compiled) == 1
    build.ahead(source, ["k<5>", "k<-1>"])  # of which one does not compile: the other has no part in that
    assert not run(source, "k<5>", (1,), (1,), [x]).findings and x.tolist() == [5, 20]
    with pytest.raises(ValueError, match=r"k.cu does not compile: .*k.cu:2: "):
        run(source, "k<-1>", (1,), (1,), [x])
    build.ahead(source, ["absent<5>"])


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


# ---- what else goes on in the process --------------------------------------------------------------------------------------------

WAITING = "__global__ void k(int* gN, int n) {\n  if (threadIdx.x == 0) { atomicAdd(gN, 1); while (*(volatile int*)gN < n) ; }\n  __syncthreads();\n}\n"
LONG = "__global__ void k(int* gN, int n) {\n  for (int i = 0; i < n; ++i) gN[0] += i;\n}\n"
BESIDE = """
import faulthandler, resource, signal, sys, threading, time
from pathlib import Path
import torch
from rooftile.cuda import simulator
from rooftile.cuda.simulator import build
from rooftile.cuda.source import Source

source = Source(Path(sys.argv[1]))
def launch(n, blocks=1, threads=1):
    x = torch.zeros(1, dtype=torch.int32)
    return simulator.run(source, source.function("k"), (blocks, 1, 1), (threads, 1, 1), [x, n], level="values", bound=1 << 40).findings
launch(1)
"""


def beside(tmp_path, text, code):
    return processes.run(str(source_of(tmp_path, text).path), code=BESIDE + code)


def test_stacks_do_not_add_up_from_launch_to_launch(tmp_path):
    """A process may have 65530 mappings, and each stack is two: 16384 at one time, whatever blocks there have been before."""
    code = "for n in (32, 1024): assert not launch(16384 // n, 16384 // n, n)\nprint(len(list(open('/proc/self/maps'))))"
    done = beside(tmp_path, WAITING, code)
    assert done.returncode == 0 and int(done.stdout) < 40000, (done.stdout, done.stderr)


def test_no_memory_for_stacks_is_one_sentence(tmp_path):
    code = """
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), -1))
try:
    launch(16, 16, 1024)
except ValueError as error:
    print(error)
assert not launch(1, 1, 1024)
"""
    done = beside(tmp_path, WAITING, code)
    said = r"k: the system gives no memory for the stacks of [1-9] blocks of 1024 threads at one time: Cannot allocate memory\n"
    assert done.returncode == 0 and re.fullmatch(said, done.stdout), (done.stdout, done.stderr)


def test_a_tick_that_arrives_when_the_grid_has_ended_kills_nobody(tmp_path):
    """The timer's signal may go to any thread, and one that is off the processor sees it late."""
    code = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGVTALRM})
n, took = 100_000_000, 0.0
while took < 0.4:  # the timer's 0.25 in one launch
    began = time.process_time()
    launch(n)
    n, took = 2 * n, time.process_time() - began
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGVTALRM})
print("alive", signal.getsignal(signal.SIGVTALRM) == signal.SIG_DFL)
"""
    done = beside(tmp_path, LONG, code)
    assert (done.returncode, done.stdout) == (0, "alive True\n"), done.stderr


def test_a_fault_that_is_not_the_kernel_s_is_told_to_who_listened_before(tmp_path):
    code = """
import ctypes
faulthandler.enable(file=2)
threading.Thread(target=lambda: (time.sleep(0.2), ctypes.string_at(0)), daemon=True).start()
launch(2_000_000_000)
"""
    done = beside(tmp_path, LONG, code)
    assert done.returncode == -11 and "Fatal Python error: Segmentation fault" in done.stderr, (done.returncode, done.stderr)
