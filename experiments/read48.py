"""Reading alone, under bench's clock: who reads what next."""
import time
from pathlib import Path
import torch
from rooftile.core import timing
from rooftile.cuda import compile as compiler
from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, processors
TEXT = """
#include "rooftile/passing.cuh"
#include "rooftile/rows.cuh"
using namespace rooftile;
// ORDER 0: a warp a stretch; 1: a block a stretch, its warps in turn; 2: all warps of the grid in turn; 3: stretches of 4 tiles in turn
template <int ROWS, int BLOCK, int PER, int ORDER, bool HINT> __global__ void __launch_bounds__(BLOCK, PER) only(float* gOut, const float* gX, long long M, int tiles) {
  constexpr int SIZE = ROWS * 128, WARPS = BLOCK / WARP;
  const long long all = (long long)gridDim.x * WARPS, me = blockIdx.x * (long long)WARPS + warp();
  Policy policy = 0;
  if (HINT) policy = evict_first(M * 4);
  float run = 0.0f;
  uint4 rX[ROWS];
  for (int t = 0; t < tiles; ++t) {
    const long long tile = ORDER == 0 ? me * tiles + t : ORDER == 1 ? (blockIdx.x * (long long)tiles + t) * WARPS + warp() : ORDER == 2 ? t * all + me : ((t / 4) * all + me) * 4 + t % 4;
    const long long first = tile * SIZE;
    if (first + SIZE > M) break;
    const float* g = gX + first + lane() * 4;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) rX[r] = HINT ? load_global(reinterpret_cast<const uint4*>(g + r * 128), policy) : __ldg(reinterpret_cast<const uint4*>(g + r * 128));
#pragma unroll
    for (int r = 0; r < ROWS; ++r) run += __uint_as_float(rX[r].x ^ rX[r].y ^ rX[r].z ^ rX[r].w);
  }
  if (run == 1.2345f) gOut[0] = run;
}
"""
p = Path("/tmp/read48.cu"); p.write_text(TEXT); S = Source(p)
KINDS = [(rows, block, per, order, hint) for rows, block, per in ((8, 256, 3), (4, 256, 6), (4, 256, 8), (8, 512, 2)) for order in range(4) for hint in ("false", "true")]
import cuda.core
from cuda.core import Program, ProgramOptions
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(16) as pool:
    list(pool.map(lambda k: compiler.compiled(S, "only<{}, {}, {}, {}, {}>".format(*k), "sm_90a"), KINDS))
import sys
if "--dry" in sys.argv: raise SystemExit
def only(k, x):
    rows, block, per, order, hint = k
    blocks = processors(x) * per
    tiles = cdiv(x.numel(), blocks * block // 32 * rows * 128)
    if order == 3: tiles = cdiv(tiles, 4) * 4
    launch(S, "only<{}, {}, {}, {}, {}>".format(*k), blocks, block, out, x, x.numel(), tiles)
out = torch.empty(1, device="cuda")
for mega in (256, 512, 64):
    x = torch.randn(mega << 18, device="cuda")
    a, b = torch.empty(mega << 19, dtype=torch.uint8, device="cuda"), torch.empty(mega << 19, dtype=torch.uint8, device="cuda")
    calls = {str(k): (lambda k=k: only(k, x)) for k in KINDS} | {"copy": lambda: b.copy_(a)}
    found = timing.compare(calls, x.device, budget_ms=5.0, rounds=20)
    print(mega, "MB")
    for name, t in sorted(found.timings.items(), key=lambda i: i[1].us): print(f"  {name:32s} {t.us:7.1f} {found.timings['copy'].us / t.us:.3f}")
