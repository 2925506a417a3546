"""v7_warps as it was and as it is, under bench's own clock (cold L2), each held to exact sums first. Run: PYTHONPATH=src python .gpu/seg48.py [--dry]

Needs nothing but the tree (carry .gpu/seg48.py). Below 20 s on the GPU, NVRTC included on 16 cores.
"""

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

OLD = r'''// adds: each warp walks a stretch of its own with numbers in registers, 16 bytes a lane and row of 32 lanes; no barrier of the block before stretches end
// costs: a segmented scan over the lanes for every row of 32 vectors, 5 shuffles; 5 KB of shared memory a warp, where a tile's sums are laid down
// loses when: a row is more than one number (it takes no other), or there is not a tile of 1024 numbers for every warp that fills the device
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/ragged.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/segments.cuh"

using namespace rooftile;

constexpr int SIZE = 1024;  // numbers of a tile: a bit of a word for every number of a lane
constexpr int LOOK = 2;     // offsets a lane and turn: in segments of 16 numbers a tile has as many, and who looks twice waits for memory

// A vector of T as floats.
ROOFTILE_DEVICE void open(float (&rF)[4], const uint4& r, float) { unpack<float>(rF, r); }
template <typename T> ROOFTILE_DEVICE void open(float (&rF)[8], const uint4& r, T) { unpack<T>(rF, r); }

// load_global of policy.cuh into the registers of numbers that have been added to `run`. Asked for before that they would come into others and be copied from
// there, which waits for them: so the compiler is told that run hangs on the load.
ROOFTILE_DEVICE void load_behind(uint4& rX, const void* gX, Policy policy, float& run) {
#ifdef ROOFTILE_SIMULATOR
  rX = load_global(static_cast<const uint4*>(gX), policy);
#else
  asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%5], %6;"
               : "=r"(rX.x), "=r"(rX.y), "=r"(rX.z), "=r"(rX.w), "+f"(run)
               : "l"(__cvta_generic_to_global(gX)), "l"(policy));
#endif
}

template <bool VALUE> struct Whether {
  static constexpr bool value = VALUE;
};

// The highest bit that is set, of any that is.
ROOFTILE_DEVICE int highest(unsigned bits) {
#ifdef ROOFTILE_SIMULATOR
  return WARP - 1 - __clz(int(bits));
#else
  int at;
  asm("bfind.u32 %0, %1;" : "=r"(at) : "r"(bits));
  return at;
#endif
}

// run of the lane `distance` before this one is added, if that is not before lane `from`: the shuffle compares by itself.
ROOFTILE_DEVICE void add_from(float& run, int distance, int from) {
#ifdef ROOFTILE_SIMULATOR
  const float other = __shfl_up_sync(ALL_LANES, run, distance);
  if (lane() - distance >= from) run += other;
#else
  asm volatile("{\n.reg .pred p;\n.reg .f32 other;\nshfl.sync.up.b32 other|p, %0, %1, %2, -1;\n@p add.f32 %0, %0, other;\n}"
               : "+f"(run)
               : "r"(distance), "r"(from));
#endif
}

// A warp's stretch is `tiles` tiles, a block's those of its warps; gPartial is as segments.cuh has it, of blocks. A row is a vector of each lane, ROWS are a
// tile. Each lane adds its numbers of all rows first and asks for the next tile's, which are on their way while lanes are joined: whoever waits for one of them
// waits for all.
template <typename T, typename I, int BLOCK>
__global__ void __launch_bounds__(BLOCK, 768 / BLOCK) chunks(T* __restrict__ gOut, float* __restrict__ gPartial, const T* __restrict__ gX,
                                                             const I* __restrict__ gOffsets, long long M, long long E, int tiles) {
  constexpr int WIDTH = 16 / sizeof(T), ROWS = SIZE / (WARP * WIDTH), GROUP = 4, WARPS = BLOCK / WARP;
  __shared__ float sLaid[WARPS][SIZE];            // of a number that begins a segment: what its vector has of the one before
  __shared__ float sPrior[WARPS][SIZE / WIDTH];   // of a vector: what is open before it
  __shared__ unsigned sBits[WARPS][2][WARP];      // of a lane's numbers, row by row, those that begin a segment; of every other tile
  __shared__ float sHead[WARPS];                  // of a stretch's numbers, those of the segment that comes in
  __shared__ bool sAny[WARPS];                    // whether it ends there
  const int l = lane(), w = __shfl_sync(ALL_LANES, warp(), 0);  // the same for the warp, as the compiler then knows too
  const long long begin = blockIdx.x * (long long)tiles * (WARPS * SIZE), end = min(begin + (long long)tiles * (WARPS * SIZE), M);
  const long long first = min(begin + w * (long long)tiles * SIZE, end);
  const int count = int(min((long long)tiles * SIZE, end - first));
  const unsigned before = (1u << l) - 1;                        // the lanes before this one
  const Policy policy = evict_first(M * (long long)sizeof(T));  // x is read once, where offsets and sums are found again
  const T* gNext = gX + first + l * WIDTH;
  uint4 rX[ROWS];
  if (count >= SIZE) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) rX[r] = load_global(reinterpret_cast<const uint4*>(gNext + r * WARP * WIDTH), policy);
  }
  unsigned cursor = unsigned(find<WARP>(gOffsets, E, first - 1));  // the first offset that is not before the tile
  const unsigned zero = cursor - 1;                                // the segment that comes in, in 32 bits: there are fewer
  I at[LOOK];
  auto look = [&] {
#pragma unroll
    for (int k = 0; k < LOOK; ++k) {
      const unsigned i = cursor + k * WARP + l;
      if (i <= unsigned(E)) at[k] = gOffsets[i];
    }
  };
  look();
  sBits[w][0][l] = sBits[w][1][l] = 0;
  if (l == 0) sHead[w] = 0.0f;
  __syncwarp();
  float carry = 0.0f;
  unsigned* sMarks = sBits[w][0];
  int here = 0;
  auto step = [&](auto more) {  // a tile, whose numbers are there; and of the next one they are asked for
    const long long tile = first + here;
    const int size = decltype(more)::value ? SIZE : min(count - here, SIZE);
    // Where segments begin. Of offsets that are equal each tells of the same place, and those behind the first store something for an empty segment, which
    // `join` makes 0.
    const unsigned begun = cursor;
    int place[LOOK], mine[LOOK];  // of this lane's offsets, -1 of one that is not in the tile; those of the first turn
    auto mark = [&] {
      int found = 0;
#pragma unroll
      for (int k = 0; k < LOOK; ++k) {
        const long long from = at[k] - tile;  // of an offset that is not there it is whatever, and `in` says so
        const bool in = cursor + k * WARP + l <= unsigned(E) & from < size;
        place[k] = in & from >= 0 ? int(from) : -1;  // before the tile it is only where offsets fall
        const unsigned i = place[k];
        if (place[k] >= 0) atomicOr(sMarks + i / WIDTH % WARP, 1u << (i / (WARP * WIDTH) * WIDTH + i % WIDTH));
        found += __popc(__ballot_sync(ALL_LANES, in));
      }
      cursor += found;
      look();
      return found == LOOK * WARP;
    };
    bool again = mark();
#pragma unroll
    for (int k = 0; k < LOOK; ++k) mine[k] = place[k];
#pragma unroll 1
    while (again) {
      const I next = __shfl_sync(ALL_LANES, at[0], 0), far = __shfl_sync(ALL_LANES, at[LOOK - 1], WARP - 1);
      const int marked = __shfl_sync(ALL_LANES, place[LOOK - 1], WARP - 1);
      if (cursor + LOOK * WARP <= unsigned(E) && next == far && next - tile == marked) {  // equal ones, as many as there are, are passed by a search
        cursor = max(cursor, unsigned(find<WARP>(gOffsets, E, next)));
        look();
      }
      again = mark();
    }
    __syncwarp();
    const unsigned bits = sMarks[l];
    unsigned* sOther = sBits[w][0] + (sMarks - sBits[w][0] ^ WARP);
    sOther[l] = 0;  // everybody has stored the sums of the tile before
    gNext += SIZE;
    float run[ROWS];  // what is open behind a lane's numbers of a row, of these alone
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      float rF[WIDTH];
      open(rF, rX[r], T(0.0f));
      run[r] = 0.0f;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
        const bool cut = bits >> (r * WIDTH + k) & 1;
        if (cut) sLaid[w][(r * WARP + l) * WIDTH + k] = run[r];
        run[r] = (cut ? 0.0f : run[r]) + rF[k];
      }
      if constexpr (decltype(more)::value) load_behind(rX[r], gNext + r * WARP * WIDTH, policy, run[r]);
    }
#pragma unroll
    for (int g = 0; g < ROWS; g += GROUP) {
      unsigned any[GROUP];
      int from[GROUP];
#pragma unroll
      for (int r = 0; r < GROUP; ++r) {
        any[r] = __ballot_sync(ALL_LANES, (bits >> (g + r) * WIDTH & ((1u << WIDTH) - 1)) != 0);
        from[r] = highest(any[r] & (before * 2 + 1) | 1);  // lanes are added up as far back as the last that has a border
      }
#pragma unroll
      for (int distance = 1; distance < WARP; distance *= 2)
#pragma unroll
        for (int r = 0; r < GROUP; ++r) add_from(run[g + r], distance, from[r]);
#pragma unroll
      for (int r = 0; r < GROUP; ++r) {
        float prior = __shfl_up_sync(ALL_LANES, run[g + r], 1);
        const float all = __shfl_sync(ALL_LANES, run[g + r], WARP - 1);
        if (l == 0) prior = 0.0f;
        if (!(any[r] & before)) prior += carry;
        sPrior[w][(g + r) * WARP + l] = prior;
        carry = any[r] ? all : carry + all;
      }
    }
    __syncwarp();
    auto ends = [&](unsigned e, unsigned i) {  // a segment, before a number of the tile
      const unsigned v = i / WIDTH, r = v / WARP * WIDTH;
      const bool only = !(sMarks[v % WARP] & ((1u << (r + i % WIDTH)) - (1u << r)));  // it has come into the vector
      const float sum = sLaid[w][i] + (only ? sPrior[w][v] : 0.0f);
      if (e == zero) sHead[w] = sum;
      else gOut[e] = T(sum);
    };
#pragma unroll
    for (int k = 0; k < LOOK; ++k)
      if (mine[k] >= 0) ends(begun + k * WARP + l - 1, mine[k]);
#pragma unroll 1
    for (unsigned from = begun + LOOK * WARP; from < cursor; from += WARP) {
      const unsigned e = from + l;
      const I one = e < cursor ? gOffsets[e] : I(-1);
      const bool border = tile <= one && one < tile + size && one != gOffsets[e - 1];
      if (border) ends(e - 1, int(one - tile));
      if (!__any_sync(ALL_LANES, border)) from = max(from + WARP, unsigned(find<WARP>(gOffsets, E, __shfl_sync(ALL_LANES, one, 0)))) - WARP;
    }
    sMarks = sOther, here += SIZE;
  };
  while (count - here >= 2 * SIZE) step(Whether<true>());
  while (here < count) {
    const int left = count - here;
    if (left < SIZE) {  // the last of x
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const int i = r * WARP * WIDTH + l * WIDTH;
        Wide<T> rPart;
        fill(rPart, T(0.0f));
        if (i + WIDTH <= left) load(rPart, gNext + r * WARP * WIDTH);
        else
#pragma unroll
          for (int k = 0; k < WIDTH; ++k)
            if (i + k < left) rPart[k] = gNext[r * WARP * WIDTH + k];
        rX[r] = rPart.whole;
      }
    }
    step(Whether<false>());
  }
  let_next_stand_by();
  const unsigned open = cursor - 1;  // the segment that goes on behind the stretch, or ends just there
  const bool any = open != zero;
  if (l == 0) {
    if (!any) sHead[w] = carry;
    sAny[w] = any;
  }
  __syncthreads();
  if (l != 0) return;
  auto rest = [&](float sum, int& other) {  // and what the stretches from `other` on have of it
    for (bool on = true; on && other < WARPS; ++other) sum += sHead[other], on = !sAny[other];
    return sum;
  };
  if (any && open < E) {
    int other = w + 1;
    const bool last = w == WARPS - 1;
    const float sum = rest(carry, other);
    const bool over = !last && sAny[other - 1];  // in one of these stretches, or at the end of the block's
    if (over || at[0] == end) gOut[open] = T(sum);
    else gPartial[2ll * blockIdx.x + 1] = sum;
  }
  if (w == 0) {
    int other = 0;
    gPartial[2ll * blockIdx.x] = rest(0.0f, other);
  }
}

template <typename T, typename I>
__global__ void ROOFTILE_EARLY __launch_bounds__(256) join(T* __restrict__ gOut, const float* __restrict__ gPartial, const I* __restrict__ gOffsets,
                                                           long long M, long long E, int tiles) {
  join_stretches<SIZE>(gOut, gPartial, gOffsets, M, E, tiles);
}
'''
BASE = Path(warps_kernels.WARPS.path).read_text()


def edit(*pairs):
    text = BASE
    for a, b in pairs:
        assert text.count(a) == 1, (text.count(a), a)
        text = text.replace(a, b)
    return text


ASK1 = "  ask(1, count - SIZE);  // not before: what is looked up would wait behind it\n"
LOOKED = ("const unsigned looked = mine;", "const unsigned looked = until;")
STEP = ("    mine += WARP;\n", "")
MORE = ("for (unsigned r = 1; r < rows; ++r, mine += WARP)", "for (unsigned r = rows; r < rows; ++r, mine += WARP)")
REST = "#pragma unroll 1\n  for (; mine < until; mine += WARP) settle(mine, gOffsets[mine], gOffsets[mine + 1]);\n"
COPY = "copy_async(sTo + tile::place(r * (WARP / ROWS), 0), gNext + r * WARP * WIDTH, true, policy);"
THREE = (("STAGES = 2;  ", "STAGES = 3;  "), ("stage ^= 1", "stage = stage == STAGES - 1 ? 0 : stage + 1"), (ASK1, ASK1 + "  ask(2, count - 2 * SIZE);\n"))
PRE = '''ROOFTILE_DEVICE void copy_far(uint4* sX, const void* gX, Policy policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2;" ::"r"(shared_address(sX)), "l"(gX), "l"(policy) : "memory");
}
'''
AT = "// A warp's stretch is `tiles` tiles"
TEXTS = {
    "old": OLD,
    "new": BASE,
    "both": edit((ASK1, ""), ("  ask(0, count);\n", "  ask(0, count);\n  ask(1, count - SIZE);\n")),  # two tiles before the first offset is looked for
    "late": edit(("  let_next_stand_by();\n", ""), ("  const unsigned open = cursor - 1;", "  let_next_stand_by();\n  const unsigned open = cursor - 1;")),
    "look1": edit(("LOOK = 2;  ", "LOOK = 1;  ")),
    "whole": edit(("find(gOffsets, M, E, first - 1)", "passed<1>(gOffsets, 0u, unsigned(E) + 1, first - 1)")),  # no guess
    "behind": edit(LOOKED, STEP, MORE),  # all offsets after the walk
    "ahead": edit(LOOKED, STEP, MORE, (REST, ""), ("  float carry = 0.0f;\n", REST + "  float carry = 0.0f;\n")),  # before it
    "unsettled": edit(LOOKED, STEP, MORE, (REST, "")),  # by nobody: what it costs at all
    "any": edit((COPY, COPY.replace(", policy", "").replace("copy_async(", "copy_async<16>("))),  # not the first to leave the L2
    "pre256": edit((COPY, COPY.replace("copy_async(", "copy_far(").replace(", true", "")), (AT, PRE + AT)),
    "three": edit(*THREE),
    "chains1": edit(("CHAINS = 4,", "CHAINS = 1,"), ("((1u << LINKS) - 1) << i", "~0u")),  # fewer instructions, more is rounded off
    "chains2": edit(("CHAINS = 4,", "CHAINS = 2,")),
}
READ = '''
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
'''
SOURCES = {}
for name, text in {**TEXTS, "read": READ}.items():
    p = Path(f"/tmp/s48_{name}.cu")
    p.write_text(text)
    SOURCES[name] = Source(p)
F, B = torch.float32, torch.bfloat16
MANY = {  # what is timed of each case: source, block, per_sm, whether joined
    "random": [("old", 256, 24, 1), ("old", 256, 24, 0), ("new", 256, 24, 1), ("new", 256, 24, 0), ("new", 128, 24, 1), ("new", 128, 48, 1), ("new", 256, 48, 1),
               ("new", 128, 96, 1), ("new", 128, 16, 1), ("both", 256, 24, 1), ("late", 256, 24, 1), ("look1", 256, 24, 1), ("whole", 256, 24, 1),
               ("behind", 256, 24, 1), ("ahead", 256, 24, 1), ("unsettled", 256, 24, 1), ("any", 256, 24, 1), ("pre256", 256, 24, 1), ("three", 128, 16, 1), ("chains1", 256, 24, 1),
               ("chains2", 256, 24, 1)],
    "bfloat16": [("old", 256, 24, 1), ("new", 256, 24, 1), ("new", 256, 24, 0), ("new", 128, 24, 1), ("new", 128, 48, 1), ("new", 128, 16, 1), ("look1", 256, 24, 1),
                 ("three", 128, 20, 1), ("pre256", 256, 24, 1), ("chains1", 256, 24, 1), ("chains2", 256, 24, 1)],
    "mean 4": [("old", 256, 24, 1), ("new", 256, 24, 1), ("new", 128, 24, 1), ("new", 128, 48, 1), ("new", 128, 96, 1), ("behind", 256, 24, 1)],
    "equal": [("old", 256, 24, 1), ("new", 256, 24, 1), ("new", 128, 48, 1)],
    "one": [("old", 256, 24, 1), ("new", 256, 24, 1), ("new", 256, 24, 0), ("new", 128, 96, 1)],
}  # fmt: skip
READS = ((8, 256, 3), (8, 256, 6))


def jobs():
    for case, many in MANY.items():
        t = CTYPE[B if case == "bfloat16" else F]
        for n, b, _, _ in many:
            yield n, f"chunks<{t}, long long, {b}>"
            yield n, f"join<{t}, long long>"
    yield "new", "chunks<float, int, 256>"
    yield "new", "join<float, int>"
    for r, b, per in READS:
        yield "read", f"only<{r}, {b}, {per}>"


def made(arch):
    import cuda.core  # noqa: F401
    from cuda.core import Program, ProgramOptions  # noqa: F401

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda a: (*a, compiler.compiled(SOURCES[a[0]], a[1], arch)), sorted(set(jobs()))))


start = time.time()
for n, i, k in made("sm_90a"):
    if "--dry" in sys.argv:
        print(f"{n:10s} {i:44s} {k.registers:4d} {k.spill_bytes}")
if "--dry" in sys.argv:
    raise SystemExit
print(f"compiled {time.time() - start:.1f} s")


def run(n, block, per_sm, join, x, offsets):
    source, m, e, warps = SOURCES[n], x.shape[0], offsets.numel() - 1, block // 32
    out, every, most = x.new_empty((e, 1)), cdiv(m, 1024), per_sm * processors(x)
    tiles = max(1, cdiv(every, most))
    types = f"{CTYPE[x.dtype]}, {CTYPE[offsets.dtype]}"
    if n == "old":
        blocks = max(1, cdiv(every, tiles * warps))
        partial = x.new_empty(2 * blocks, dtype=F)
        launch(source, f"chunks<{types}, {block}>", blocks, block, out, partial, x, offsets, m, e, tiles)
        if join:
            launch(source, f"join<{types}>", cdiv(e, 1024), 256, out, partial, offsets, m, e, tiles * warps)
        return out
    blocks = max(cdiv(every, tiles * warps), min(cdiv(e, block), cdiv(most, warps)))
    share = cdiv(e, blocks * warps)
    head, opened = x.new_empty(blocks, dtype=F), x.new_empty((blocks, 4), dtype=torch.int32)
    room = warps_kernels.ROOM[x.itemsize] + (n == "three") * (4608 if x.itemsize == 4 else 2048)
    launch(source, f"chunks<{types}, {block}>", blocks, block, out, head, opened, x, offsets, m, e, tiles, share, shared=warps * room)
    if join:
        launch(source, f"join<{types}>", cdiv(blocks, 128), 128, out, head, opened, offsets, m, e, blocks, share * warps)
    return out


def only(rows, block, per, x):
    x = x.view(-1).view(F)
    out = x.new_empty(1)
    warps = processors(x) * per * block // 32
    tiles = cdiv(x.numel(), warps * rows * 128)
    launch(SOURCES["read"], f"only<{rows}, {block}, {per}>", cdiv(x.numel(), tiles * rows * 128 * block // 32), block, out, x, x.numel(), tiles)
    return out


M, E = 67108864, 1048576
gen = torch.Generator("cuda").manual_seed(0)


def cuts(e):
    inner = torch.randint(0, M + 1, (e - 1,), generator=gen, device="cuda").sort().values
    return torch.cat([inner.new_tensor([0]), inner, inner.new_tensor([M])])


def exact(x, cut):
    sums = torch.cat([torch.zeros(1, dtype=torch.float64, device="cuda"), x[:, 0].double().cumsum(0)])
    return (sums[cut[1:]] - sums[cut[:-1]])[:, None]


random = cuts(E)
equal = torch.cat([random[: E // 4], random.new_full((E // 2,), int(random[E // 4])), random[E // 4 :: 3]])
equal = torch.cat([equal, random.new_tensor([M])])
CUTS = {"random": random, "bfloat16": random, "mean 4": cuts(M // 4), "equal": equal, "one": random.new_tensor([0, M])}
whole = torch.randint(-9, 10, (M, 1), generator=gen, device="cuda")  # sums are exact in any order
real = torch.randn(M, 1, generator=gen, device="cuda")
for case, many in MANY.items():
    cut, dtype = CUTS[case], B if case == "bfloat16" else F
    x, y = whole.to(dtype), real.to(dtype)
    want, near = exact(x, cut), exact(y, cut)
    calls = {}
    for one in many:
        title = "{} {} {}{}".format(*one[:3], "" if one[3] else " no join")
        calls[title] = lambda one=one: run(*one, y, cut)
        if one[3] and one[0] != "unsettled":
            got, more = run(*one, x, cut), run(*one, y, cut)
            if not torch.equal(got, want.to(dtype)):
                print(f"WRONG {case}: {title}: {int((got != want.to(dtype)).sum())} of {cut.numel() - 1}")
            if not torch.equal(more, run(*one, y, cut)):
                print(f"VARIES {case}: {title}")
            if one[0] in ("old", "chains1", "chains2") or one[:3] == ("new", 256, 24):
                print(f"{case}: {title} is off by {(more.double() - near).abs().max().item():.2e} at most, {(more.double() - near).square().mean().sqrt().item():.2e}")
    v5 = OPS["segment_sum"].kernel("cuda.v5_laid")
    calls["v5"] = lambda: v5.run(y, cut, config=v5.configs[0])
    for r in READS:
        calls["read {} {} {}".format(*r)] = lambda r=r: only(*r, y)
    n = (x.nbytes + cut.nbytes + (cut.numel() - 1) * x.itemsize) // 2
    source, to = torch.empty(n, dtype=torch.uint8, device="cuda"), torch.empty(n, dtype=torch.uint8, device="cuda")
    calls["copy"] = lambda: to.copy_(source)
    found = timing.compare(calls, x.device, budget_ms=12.0, rounds=60 if case == "random" else 30)
    print(case, "noise", f"{found.noise:.4f}")
    for k, t in sorted(found.timings.items(), key=lambda i: i[1].us):
        print(f"  {k:22s} {t.us:7.1f} us  {found.timings['copy'].us / t.us:.3f}")
    print(f"  at {time.time() - start:.1f} s")

# wrong offsets: NaN there, nothing written elsewhere; 32-bit offsets; no numbers; few numbers and many offsets
for off in (1, 2):
    cut = random.clone()
    cut[1000 * off], cut[500000], cut[-1] = (-5, 2**40)[off - 1], 3, M + 7
    bad = (cut[:-1] < 0) | (cut[:-1] > cut[1:]) | (cut[1:] > M)
    got = run("new", 256, 24, 1, whole.float(), cut)[:, 0]
    print("wrong offsets:", int(bad.sum()), "are none;", "all NaN" if got[bad].isnan().all() else "NOT ALL NaN")
x = whole[:100003].float()
for title, a, cut in (
    ("32 bits", x, (random.clamp(max=100003)).int()),
    ("no numbers", x[:0], torch.zeros(500001, dtype=torch.int64, device="cuda")),
    ("few numbers, many equal", x, torch.cat([torch.zeros(500000, dtype=torch.int64, device="cuda"), random.new_tensor([77, 100003, 100003])])),
):
    want = exact(a, cut.long()) if a.numel() else torch.zeros(cut.numel() - 1, 1, device="cuda")
    print(title, "right" if torch.equal(run("new", 256, 24, 1, a, cut), want.float()) else "WRONG")
big = torch.cat([torch.zeros(500000, dtype=torch.int64, device="cuda"), random.new_tensor([77, 100003, 100003])])
found = timing.compare({"old": lambda: run("old", 256, 24, 1, x, big), "new": lambda: run("new", 256, 24, 1, x, big)}, x.device, budget_ms=12.0, rounds=30)
print("few numbers, many equal", {k: round(t.us, 1) for k, t in found.timings.items()})
print(f"{time.time() - start:.0f} s")
