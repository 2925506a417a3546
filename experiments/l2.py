"""python l2.py compile | run: which flush makes the L2 cold after reads that were to be the last to leave."""
import sys, ctypes, statistics
from pathlib import Path
import rooftile
from rooftile.cuda.source import Source
from rooftile.cuda import compile as C
S = Source(Path(__file__).with_name("l2.cu"))
if sys.argv[1] == "compile":
    for k in ("read_last", "read_plain", "demote"): print(k, C.compiled(S, k, "sm_90a").registers)
    sys.exit()
import torch, rooftile.ops, tempfile
from rooftile.core.kernel import OPS
from rooftile.cuda.launch import launch
W = torch.device("cuda", 0)
flush = torch.empty(256 << 20, dtype=torch.uint8, device=W); other = torch.randn(64 << 20, device=W); sink = torch.empty(1, device=W)
driver = ctypes.CDLL("libcuda.so.1")
def m0(): flush.bitwise_not_()
def m1(): m0(); m0(); m0()
def reset():
    torch.cuda.synchronize(); assert driver.cuCtxResetPersistingL2Cache() == 0; torch.cuda._sleep(400000)
def m2(): reset(); m0()
def m2b(): m0(); reset(); m0()
def m3(): launch(S, "read_last", 132 * 4, 512, sink, other, other.numel()); m0()
def m4():
    launch(S, "read_last", 132 * 4, 512, sink, other, other.numel()); launch(S, "demote", 132 * 4, 512, other, other.numel()); m0()
def m5(): launch(S, "read_plain", 132 * 4, 512, sink, other, other.numel()); m0()
def timed(before, method, run, n=25):
    got = []
    for _ in range(n):
        for b in before: b()
        method(); torch.cuda._sleep(100000)
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); run(); b.record(); got.append((a, b))
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) * 1e3 for a, b in got)
small = torch.randn(8 << 20, device=W)  # 32 MB
last = lambda: launch(S, "read_last", 132 * 4, 512, sink, small, small.numel())
plain = lambda: launch(S, "read_plain", 132 * 4, 512, sink, small, small.numel())
M = dict(m0=m0, thrice=m1, reset=m2, flush_reset=m2b, last=m3, last_demote=m4, plain=m5)
print("32 MB read, warm:", f"{timed([plain], lambda: None, plain):.2f}")
for n, m in M.items(): print(f"32 MB read after {n:12s}: plain before {timed([plain], m, plain):.2f}  evict_last before {timed([last], m, plain):.2f}", flush=True)
x = torch.randn(4096, 16384, device=W, dtype=torch.bfloat16); w = torch.randn(16384, device=W, dtype=torch.bfloat16); nothing = x.new_empty(0, dtype=torch.float32)
main = Source(Path(rooftile.__file__).parent / "ops/rmsnorm/cuda/v4_register_row.cu")
p = Path(tempfile.mkdtemp()) / "v4.cu"; p.write_text(main.path.read_text().replace("rX[v] = load_global(gRow + threadIdx.x + v * THREADS, policy);", "load_now(rX[v], gRow + threadIdx.x + v * THREADS);")); now = Source(p)
out = torch.empty_like(x)
def go(s): return lambda: launch(s, "rmsnorm<__nv_bfloat16, __nv_bfloat16, true, 4, 512>", 4096, 512, out, nothing, x, w, 16384, 16384, 1e-6, 0.0)
A, B = go(main), go(now)
for n, m in M.items():
    print(f"rmsnorm after {n:12s}: hint after hint {timed([A], m, A):.2f}  hint after none {timed([B], m, A):.2f}  none after none {timed([B], m, B):.2f}  none after hint {timed([A], m, B):.2f}", flush=True)
