"""Launches of CUDA C++: what is checked, what reaches the driver byte by byte, who takes a launch on the CPU. The driver here is a stand-in."""

import ctypes
import struct
import threading
from pathlib import Path

import pytest
import torch

from rooftile.core.kernel import TooLarge
from rooftile.cuda import compile as compiler
from rooftile.cuda import launch as launcher
from rooftile.cuda.source import Source

TEXT = """
template <typename T>
__global__ void add(T* gOut, const T* gX, char c, float f, bool b, long long N, double d, unsigned u) { }
__global__ void words(uint4* gOut, int N) { }
__global__ void odd(Shape s, float* gX) { }
"""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "k.cu").write_text(TEXT)
    return Source(tmp_path / "k.cu")


class Driver:
    """As much of libcuda as a launch asks for; keeps what it was given."""

    def __init__(self):
        self.launched, self.raised, self.status, self.static, self.threads = [], [], [], 1024, 512

    def cuLaunchKernelEx(self, config, function, arguments, extra):
        if self.status:
            return self.status.pop()
        sizes = ["P", "P", "b", "f", "?", "q", "d", "I"]
        values = [struct.unpack(c, ctypes.string_at(p, struct.calcsize(c)))[0] for c, p in zip(sizes, arguments, strict=True)]
        raw = struct.unpack("7IPPI4x", ctypes.string_at(config.value, 56))
        self.launched.append((raw, function.value, values))
        return 0

    def cuModuleLoadData(self, module, cubin):
        return 0

    def cuModuleGetFunction(self, function, module, symbol):
        function._obj.value = 77
        return 0

    def cuFuncGetAttribute(self, value, which, function):
        value._obj.value = {0: self.threads, 1: self.static}[which]
        return 0

    def cuFuncSetAttribute(self, function, which, value):
        self.raised.append((which, value))
        return 0

    def cuDeviceGetAttribute(self, value, which, device):
        value._obj.value = {97: 232448}[which]
        return 0

    def cuGetErrorName(self, status, text):
        text._obj.value = b"CUDA_ERROR_X"
        return 0

    def cuGetErrorString(self, status, text):
        text._obj.value = b"no good"
        return 0

    def cuCtxGetCurrent(self, context):
        context._obj.value = self.context
        return 0

    def cuCtxSetCurrent(self, context):
        self.context = context.value
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 5
        return 0

    def cuDeviceGet(self, handle, device):
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode):
        return 0

    context = 5


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(launcher, "libcuda", lambda: made)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    return made


@pytest.fixture
def entry(source, driver, monkeypatch):
    monkeypatch.setattr(compiler, "compiled", lambda *what: compiler.Compiled(b"cubin", "symbol", 10, 0, 0))
    return launcher.Entry(source, "add<float>", -1)  # device -1 is where CPU tensors say they are


def arguments(n=3):
    return [torch.zeros(4), torch.zeros(4), -1, 0.5, True, 1 << 40, 0.25, 4_000_000_000]


def go(entry, args, shared=0, block=(64, 2, 1)):
    try:
        entry.go(5, 6, 7, *block, shared, 99, *args)
    except (AttributeError, TypeError, OverflowError, struct.error):  # as launch does
        entry.diagnose(args)


def test_every_argument_reaches_the_driver_as_its_parameter_is_declared(entry, driver):
    args = arguments()
    go(entry, args)
    ((raw, function, values),) = driver.launched
    assert raw == (5, 6, 7, 64, 2, 1, 0, 99, 0, 0) and function == 77
    assert values == [args[0].data_ptr(), args[1].data_ptr(), *args[2:]]


def test_buffers_are_used_again_and_never_by_two_threads(entry, driver):
    for _ in range(3):
        go(entry, arguments())
    assert len(entry.free) == 1

    def work(k):
        mine = arguments()
        mine[5] = k
        for _ in range(300):
            go(entry, mine)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    counts = [sum(v[5] == k for *_, v in driver.launched) for k in range(4)]
    assert counts == [300] * 4 and len(entry.free) <= 4


def test_dynamic_shared_memory_is_asked_for_once_and_refused_beyond_the_device(entry, driver):
    go(entry, arguments(), shared=48 * 1024 - 1024)
    assert driver.raised == []
    for _ in range(2):
        go(entry, arguments(), shared=100_000)
    assert driver.raised == [(8, 100_000)]
    with pytest.raises(TooLarge, match=r"k.cu asks for 231425 bytes of dynamic shared memory; cuda:-1 has 231424 for it \(1024 more"):
        go(entry, arguments(), shared=231_425)
    assert len(driver.launched) == 3


def test_a_thread_that_asks_late_takes_no_shared_memory_back(entry, driver):
    """It saw 47 KiB allowed and asks for 64000 bytes; meanwhile another has asked for 100000 and is about to launch."""
    entry.allow(100_000)
    entry.allow(64_000)
    assert driver.raised == [(8, 100_000)] and entry.dynamic == 100_000


def test_a_refusal_of_the_driver_is_told(entry, driver):
    driver.status = [1]
    with pytest.raises(RuntimeError, match=r"add<float> at line 3: the CUDA driver says CUDA_ERROR_X \(no good\)"):
        go(entry, arguments())
    driver.status = [701]
    with pytest.raises(ValueError, match="a block has 1024 threads, its registers leave room for 512"):
        go(entry, arguments(), block=(1024, 1, 1))
    driver.status = [201]  # a context is there, so this is another fault
    with pytest.raises(RuntimeError, match="CUDA_ERROR_X"):
        go(entry, arguments())


def test_a_thread_without_a_context_gets_the_devices(entry, driver):
    driver.context, driver.status = None, [201]
    go(entry, arguments())
    assert driver.context == 5 and len(driver.launched) == 1


def changed(position, value):
    args = arguments()
    args[position] = value
    return args


MISFITS = [
    (arguments()[:-1], r"add<float>\(float\* gOut, .* takes 8 arguments, got 7"),
    (changed(0, torch.zeros(4, dtype=torch.float16)), r"add<float>: gOut is float\*, wants float32, got float16"),
    (changed(1, 3), r"gX is float\*, wants a tensor, got int"),
    (changed(1, torch.zeros(4, device="meta")), r"gX is on meta, the tensor before it on cpu"),
    (changed(2, 200), r"c is char, wants a number of -128 to 127, got 200"),
    (changed(5, 1 << 63), r"N is long long, wants a number of -9223372036854775808 to 9223372036854775807, got 9223372036854775808"),
    (changed(5, 0.5), r"N is long long, wants a number of .*, got 0.5"),
    (changed(5, torch.zeros(())), r"N is long long, wants a number, got Tensor"),
    (changed(7, -1), r"u is unsigned, wants a number of 0 to 4294967295, got -1"),
]


@pytest.mark.parametrize(("args", "sentence"), MISFITS)
def test_what_does_not_fit_is_told_on_the_cpu(source, args, sentence):
    with launcher.recording() as seen, pytest.raises(ValueError, match=sentence):
        launcher.launch(source, "add<float>", 1, 32, *args)
    assert seen == []


@pytest.mark.parametrize(("args", "sentence"), [m for m in MISFITS if "meta" not in m[1]])
def test_what_does_not_fit_is_told_on_the_gpu(entry, driver, args, sentence):
    with pytest.raises(ValueError, match=sentence):
        go(entry, args)
    assert driver.launched == []


@pytest.mark.parametrize(
    ("grid", "block", "sentence"),
    [
        ((1, 70000), 32, "grid.y is 70000, it must be from 0 to 65535"),
        (2**31, 32, "grid.x is 2147483648, it must be from 0 to 2147483647"),
        (-1, 32, "grid.x is -1, it must be from 0"),
        (1, 2048, "block.x is 2048, it must be from 1 to 1024"),
        (1, 0, "block.x is 0, it must be from 1 to 1024"),
        (1, (1, 1, 65), "block.z is 65, it must be from 1 to 64"),
        (1, (32, 64), "a block of 32 x 64 x 1 has 2048 threads, at most 1024"),
        ((1, 1, 1, 1), 32, r"one to three of them, got \(1, 1, 1, 1\)"),
        (1.0, 32, "a whole number or one to three of them, got 1.0"),
    ],
)
def test_grids_and_blocks_beyond_the_limits_are_told(source, grid, block, sentence):
    with pytest.raises(ValueError, match=sentence):
        launcher.launch(source, "words", grid, block, torch.zeros(4), 1)


def test_an_empty_grid_launches_nothing(source):
    launcher.launch(source, "words", (4, 0), 32, torch.zeros(4), 1)


def test_a_pointer_to_no_element_takes_any_tensor_and_a_struct_takes_nothing(source):
    with launcher.recording() as seen:
        launcher.launch(source, "words", 1, 32, torch.zeros(4, dtype=torch.int8), 1, shared=64)
        with pytest.raises(ValueError, match="s is Shape, which a Python number cannot be passed as"):
            launcher.launch(source, "odd", 1, 32, 1, torch.zeros(4))
    assert seen == [launcher.Launch(source, "words", (1, 1, 1), (32, 1, 1), 64)]


def test_the_simulator_takes_launches_on_the_cpu_while_it_is_active(source, monkeypatch):
    x = torch.zeros(4)
    assert "the tensor is on cpu" in (launcher.off_gpu(x) or "")
    with pytest.raises(RuntimeError, match=r"words in k.cu was launched on a CPU tensor, and no simulator is active"):
        launcher.launch(source, "words", 1, 32, x, 1)
    taken = []
    monkeypatch.setattr(launcher, "simulator", lambda *what: taken.append(what))
    assert launcher.off_gpu(x) is None and launcher.off_gpu(x.to("meta")) is not None
    launcher.launch(source, "words", (2, 3), 32, x, 1, shared=8, reaches=[x])
    ((took, function, grid, block, args, shared, reaches),) = taken
    assert (took, function.instance, grid, block, args, shared) == (source, "words", (2, 3, 1), (32, 1, 1), (x, 1), 8)
    assert reaches == [x]


def test_every_ctype_takes_its_dtype(tmp_path):
    (tmp_path / "k.cu").write_text("template <typename T>\n__global__ void k(T* gX) { }\n")
    source = Source(Path(tmp_path / "k.cu"))
    with launcher.recording() as seen:
        for dtype, name in launcher.CTYPE.items():
            launcher.launch(source, f"k<{name}>", 1, 1, torch.zeros(1, dtype=dtype))
            with pytest.raises(ValueError, match="wants"):
                launcher.launch(source, f"k<{name}>", 1, 1, torch.zeros(1, dtype=torch.complex64))
    assert len(seen) == len(launcher.CTYPE)


# ---- on the GPU ----------------------------------------------------------------------------------------------------------

REAL = """
__global__ void add(float* gOut, const float* gX, float value, long long N) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < N) gOut[i] = gX[i] + value;
}
__global__ void spin(float* gOut, long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) { }
  gOut[0] = 7.0f;
}
__global__ void turn(float* gOut, const float* gX, int N) {
  extern __shared__ float sX[];
  for (int i = threadIdx.x; i < N; i += blockDim.x) sX[i] = gX[i];
  __syncthreads();
  for (int i = threadIdx.x; i < N; i += blockDim.x) gOut[i] = sX[N - 1 - i];
}
"""


@pytest.fixture
def real(tmp_path):
    (tmp_path / "real.cu").write_text(REAL)
    return Source(tmp_path / "real.cu")


@pytest.mark.gpu
def test_gpu_a_graph_takes_launches_even_the_first(real):
    x, out = torch.randn(1000, device="cuda"), torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launcher.launch(real, "add", 4, 256, out, x, 1.5, 1000)
    assert bool((out == 0).all())  # captured, not run
    x.copy_(torch.randn(1000, device="cuda"))
    graph.replay()
    torch.testing.assert_close(out, x + 1.5)


@pytest.mark.gpu
def test_gpu_launches_go_to_the_current_stream_and_wait_for_nothing(real):
    out, other = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
    launcher.launch(real, "spin", 1, 1, out, 1)  # both are compiled and loaded before anything is timed
    launcher.launch(real, "add", 1, 1, other, other, 0.0, 1)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        launcher.launch(real, "spin", 1, 1, out, 1_000_000_000)  # half a second
    launcher.launch(real, "add", 1, 1, other, other, 1.0, 1)
    torch.cuda.current_stream().synchronize()
    assert not side.query() and other.item() == 1
    side.synchronize()
    assert out.item() == 7


@pytest.mark.gpu
def test_gpu_a_fresh_thread_launches(real):
    x, out, faults = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda"), []

    def work():
        try:
            launcher.launch(real, "add", 1, 32, out, x, 1.0, 8)
        except Exception as error:
            faults.append(error)

    for _ in range(2):  # the first loads, the second only launches
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    torch.cuda.synchronize()
    assert faults == [] and out.tolist() == [2.0] * 8


@pytest.mark.gpu
def test_gpu_shared_memory_up_to_the_device_and_no_further(real):
    most = 227 * 1024 if torch.cuda.get_device_capability() == (9, 0) else 99 * 1024
    n = most // 4
    x, out = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    launcher.launch(real, "turn", 1, 256, out, x, n, shared=4 * n)
    assert torch.equal(out, x.flip(0))
    with pytest.raises(ValueError, match=r"asks for \d+ bytes of dynamic shared memory; cuda:0 has \d+ for it"):
        launcher.launch(real, "turn", 1, 256, out, x, n, shared=256 * 1024)
    with pytest.raises(ValueError, match="gX is on cpu"):
        launcher.launch(real, "turn", 1, 256, out, x.cpu(), n, shared=4 * n)


@pytest.mark.gpu
def test_gpu_another_current_device(real):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    x, out = torch.ones(8, device="cuda:1"), torch.zeros(8, device="cuda:1")
    launcher.launch(real, "add", 1, 32, out, x, 1.0, 8)
    assert torch.cuda.current_device() == 0 and out.tolist() == [2.0] * 8
