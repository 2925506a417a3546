"""v7_warps under bench's own clock (cold L2): what find, join, the scans and the reads take. Run: PYTHONPATH=src python .gpu/cold47.py [--dry]"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import rooftile.ops.segment_sum.api  # noqa: F401
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.cuda import compile as compiler
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, processors
from rooftile.ops.segment_sum import warps_kernels

BASE = Path(warps_kernels.WARPS.path).read_text()
FIND = "unsigned cursor = unsigned(find<WARP>(gOffsets, E, first - 1));"
assert FIND in BASE
WIDE = """
template <int EACH, typename I> ROOFTILE_DEVICE long long find_wide(const I* gOffsets, long long E, long long i_m, long long low, long long high) {
  const int l = lane();
  while (low < high) {
    const long long step = (high - low) / (WARP * EACH + 1) + 1;
    I seen[EACH];
    long long at[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) at[k] = low + (k * WARP + l + 1) * step - 1;
#pragma unroll
    for (int k = 0; k < EACH; ++k) if (at[k] < high) seen[k] = gOffsets[at[k]];
    int passed = 0;
#pragma unroll
    for (int k = 0; k < EACH; ++k) passed += __popc(__ballot_sync(ALL_LANES, at[k] < high && seen[k] <= i_m));
    low += passed * step;
    high = min(high, low + step - 1);
  }
  return low;
}
template <int EACH, typename I> ROOFTILE_DEVICE long long find_guess(const I* gOffsets, long long E, long long M, long long i_m) {
  const float mean = float(E) * (1.0f / float(M));
  const long long about = (long long)(float(i_m) * mean), away = (long long)(2.0f * sqrtf(float(E))) + 1;
  long long low = max(about - away, 0ll), high = min(about + away, E + 1);
  const bool mine = lane() == 0 ? low == 0 || gOffsets[low - 1] <= i_m : lane() == 1 ? high == E + 1 || gOffsets[high] > i_m : true;
  const unsigned seen = __ballot_sync(ALL_LANES, mine);
  if (!(seen & 1)) low = 0;
  if (!(seen & 2)) high = E + 1;
  return find_wide<EACH>(gOffsets, E, i_m, low, high);
}
"""
AT = "// A warp's stretch is `tiles` tiles"
assert AT in BASE


def edit(*pairs):
    text = BASE.replace(AT, WIDE + AT, 1)
    for a, b in pairs:
        assert text.count(a) >= 1, a
        text = text.replace(a, b)
    return text


NEW = lambda call: ((FIND, f"unsigned cursor = unsigned({call});"),)
TEXTS = {
    "base": edit(),
    "wide2": edit(*NEW("find_wide<2>(gOffsets, E, first - 1, 0, E + 1)")),
    "wide4": edit(*NEW("find_wide<4>(gOffsets, E, first - 1, 0, E + 1)")),
    "guess1": edit(*NEW("find_guess<1>(gOffsets, E, M, first - 1)")),
    "guess2": edit(*NEW("find_guess<2>(gOffsets, E, M, first - 1)")),
    "oracle": edit(*NEW("(first + 63) / 64")),
    "nowait": edit(*NEW("(first + 63) / 64"), ("for (int k = 0; k < LOOK; ++k) {\n      const unsigned i = cursor + k * WARP + l;\n      if (i <= unsigned(E)) at[k] = gOffsets[i];", "for (int k = 0; k < LOOK; ++k) {\n      const unsigned i = cursor + k * WARP + l;\n      if (i <= unsigned(E)) at[k] = I(i) * 64;")),
    "plain": edit(("load_global(reinterpret_cast<const uint4*>(gNext + r * WARP * WIDTH), policy)", "__ldg(reinterpret_cast<const uint4*>(gNext + r * WARP * WIDTH))"),
                  ("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%5], %6;", "ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%5];")),
    "look1": edit(("LOOK = 2", "LOOK = 1")),
    "full": edit(("768 / BLOCK", "1024 / BLOCK")),
    "fullg": edit(("768 / BLOCK", "1024 / BLOCK"), *NEW("find_guess<1>(gOffsets, E, M, first - 1)")),
}
# only the reads: 24 warps, 8 rows of 16 bytes a lane asked for together, and again when they are there; and with twice the warps
READ = """
#include "rooftile/passing.cuh"
#include "rooftile/rows.cuh"
using namespace rooftile;
template <int ROWS, int BLOCK, int PER> __global__ void __launch_bounds__(BLOCK, PER) only(float* gOut, const float* gX, long long M, int tiles) {
  const long long first = (blockIdx.x * (long long)(BLOCK / WARP) + warp()) * tiles * (ROWS * 128);
  const Policy policy = evict_first(M * 4);
  float run = 0.0f;
  uint4 rX[ROWS];
  for (int t = 0; t < tiles; ++t) {
    const float* g = gX + first + t * (ROWS * 128) + lane() * 4;
    if (first + t * (ROWS * 128) + ROWS * 128 > M) break;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) rX[r] = load_global(reinterpret_cast<const uint4*>(g + r * 128), policy);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) run += __uint_as_float(rX[r].x ^ rX[r].y ^ rX[r].z ^ rX[r].w);
  }
  if (run == 1.2345f) gOut[0] = run;
}
"""
SOURCES = {}
for name, text in {**TEXTS, "read": READ}.items():
    p = Path(f"/tmp/c47_{name}.cu")
    p.write_text(text)
    SOURCES[name] = Source(p)
READS = ((8, 256, 3), (8, 256, 6), (4, 256, 8))
MANY = [("base", 256, 24), ("base", 128, 24), ("base", 128, 48), ("base", 256, 48), ("wide2", 256, 24), ("wide4", 256, 24), ("guess1", 256, 24), ("guess2", 256, 24), ("guess1", 128, 24),
        ("guess1", 128, 48), ("oracle", 256, 24), ("nowait", 256, 24), ("plain", 256, 24), ("look1", 256, 24), ("full", 256, 32), ("fullg", 256, 32), ("fullg", 128, 32)]  # fmt: skip


def jobs(arch):
    for n, b in sorted({(n, b) for n, b, _ in MANY}):
        yield SOURCES[n], f"chunks<float, long long, {b}>"
    yield SOURCES["base"], "join<float, long long>"
    for r, b, per in READS:
        yield SOURCES["read"], f"only<{r}, {b}, {per}>"


def made(arch):
    import cuda.core
    from cuda.core import Program, ProgramOptions  # noqa: F401

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda a: compiler.compiled(a[0], a[1], arch), jobs(arch)))


if "--dry" in sys.argv:
    for (s, i), k in zip(jobs("sm_90a"), made("sm_90a")):
        print(Path(s.path).name, i, getattr(k, "registers", None), getattr(k, "spills", None))
    raise SystemExit
made("sm_90a")


def run(n, block, per_sm, x, offsets, join=True):
    source, m, e, warps = SOURCES[n], x.shape[0], offsets.numel() - 1, block // 32
    out = x.new_empty((e, 1))
    every = cdiv(m, 1024)
    tiles = max(1, cdiv(every, per_sm * processors(x)))
    blocks = cdiv(every, tiles * warps)
    partial = x.new_empty(2 * blocks, dtype=torch.float32)
    launch(source, f"chunks<float, long long, {block}>", blocks, block, out, partial, x, offsets, m, e, tiles)
    if join:
        launch(SOURCES["base"], "join<float, long long>", cdiv(e, 1024), 256, out, partial, offsets, m, e, tiles * warps)
    return out


def only(rows, block, per, x):
    out = x.new_empty(1)
    warps = processors(x) * per * block // 32
    tiles = cdiv(x.numel(), warps * rows * 128)
    launch(SOURCES["read"], f"only<{rows}, {block}, {per}>", cdiv(x.numel(), tiles * rows * 128 * block // 32), block, out, x, x.numel(), tiles)
    return out


M, E = 67108864, 1048576
gen = torch.Generator("cuda").manual_seed(0)
x = torch.randn(M, 1, generator=gen, device="cuda")
inner = torch.randint(0, M + 1, (E - 1,), generator=gen, device="cuda").sort().values
random = torch.cat([inner.new_tensor([0]), inner, inner.new_tensor([M])])
uniform = torch.arange(E + 1, device="cuda") * 64
start = time.time()
for title, cut in (("random", random), ("uniform", uniform)):
    calls = {}
    for n, b, p in MANY:
        if n in ("oracle", "nowait") and title == "random":
            continue
        calls[f"{n} {b} {p}"] = lambda n=n, b=b, p=p: run(n, b, p, x, cut)
    calls["base 256 24 no join"] = lambda: run("base", 256, 24, x, cut, join=False)
    v5 = OPS["segment_sum"].kernel("cuda.v5_laid")
    calls["v5"] = lambda: v5.run(x, cut, config=v5.configs[0])
    for r in READS:
        calls["read {} {} {}".format(*r)] = lambda r=r: only(*r, x)
    n = (x.numel() * 4 + cut.numel() * 8 + E * 4) // 2
    source, to = torch.empty(n, dtype=torch.uint8, device="cuda"), torch.empty(n, dtype=torch.uint8, device="cuda")
    calls["copy"] = lambda: to.copy_(source)
    want = run("base", 256, 24, x, cut)
    bad = {k: (c() - want).abs().max().item() for k, c in calls.items() if k.split()[0] not in ("read", "copy")}
    found = timing.compare(calls, x.device, budget_ms=12.0, rounds=60)
    print(title, "noise", found.noise)
    for k, t in sorted(found.timings.items(), key=lambda i: i[1].us):
        print(f"  {k:22s} {t.us:7.1f} us  {found.timings['copy'].us / t.us:.3f}  {bad.get(k, 0):.1e}")
back = OPS["segment_sum_backward"].kernel("cuda.v4_numbers")
g = torch.randn(E, 1, generator=gen, device="cuda")
grad = torch.empty(M, 1, device="cuda")
calls = {"fill": lambda: grad.fill_(1.5), "zero": lambda: grad.zero_(), "copy": lambda: to.copy_(source)}
try:
    import inspect
    print(inspect.signature(back.run))
    for c in back.configs:
        calls["v4 " + str(c)] = lambda c=c: back.run(g, random, M, config=c)
        calls["v4 " + str(c)]()
except Exception as error:
    print("v4", error)
    calls = {k: v for k, v in calls.items() if not k.startswith("v4")}
found = timing.compare(calls, x.device, budget_ms=12.0, rounds=60)
print("gradient")
for k, t in sorted(found.timings.items(), key=lambda i: i[1].us):
    print(f"  {k:22s} {t.us:7.1f} us  {found.timings['copy'].us / t.us:.3f}")
fwd = OPS["segment_sum"].kernel("cuda.v6_runs")
for mega in (512, 256):
    big = torch.randn(mega << 18, device="cuda")
    m = 1 << 20
    offs = torch.cat([inner.new_tensor([0]), torch.randint(0, m + 1, (16383,), generator=gen, device="cuda").sort().values, inner.new_tensor([m])])
    y = big.view(m, 128) if mega == 512 else big.view(torch.bfloat16).view(m, 128)
    two = torch.empty(big.numel() * 2, dtype=torch.uint8, device="cuda")
    four = torch.empty_like(two)
    calls = {"copy": lambda: four.copy_(two), "sum": lambda: big.sum()}
    for r in READS:
        calls["read {} {} {}".format(*r)] = lambda r=r: only(*r, big)
    for c in fwd.configs:
        calls["v6 " + str(c)] = lambda c=c: fwd.run(y, offs, config=c)
    found = timing.compare(calls, x.device, budget_ms=12.0, rounds=60)
    print("N128", mega, "MB")
    for k, t in sorted(found.timings.items(), key=lambda i: i[1].us):
        print(f"  {k:40s} {t.us:7.1f} us  {found.timings['copy'].us / t.us:.3f}")
print(f"{time.time() - start:.0f} s")
