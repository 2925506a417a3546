// adds: each warp walks a stretch of its own with numbers in registers, 32 bytes a lane and row of 32 lanes; no barrier of the block before stretches end
// costs: a segmented scan over the lanes for every row of them, 5 shuffles; 5 KB of shared memory a warp, where a tile's sums are laid down
// loses when: a row is more than one number (it takes no other), or there is not a tile of 1024 numbers for every warp that fills the device
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/behind.cuh"
#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/ragged.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

constexpr int SIZE = 1024;  // numbers of a tile: a bit of a word for every number of a lane
constexpr int LOOK = 2;     // offsets a lane and turn: in segments of 16 numbers a tile has as many, and who looks twice waits for memory

// A vector of T as floats.
ROOFTILE_DEVICE void open(float (&rF)[4], const uint4& r, float) { unpack<float>(rF, r); }
template <typename T> ROOFTILE_DEVICE void open(float (&rF)[8], const uint4& r, T) { unpack<T>(rF, r); }

// x stays in registers. What is made of parameters alone the compiler would make anew for every tile, of 64 bits in some twenty-five instructions.
ROOFTILE_DEVICE void keep(long long& x) {
#ifndef ROOFTILE_SIMULATOR
  asm volatile("" : "+l"(x));
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

// Whether these are a segment's offsets. Without a sign: what is below 0 is beyond M.
ROOFTILE_DEVICE bool is_one(unsigned long long from, unsigned long long to, unsigned long long M) { return from <= to && to <= M; }

// A warp's stretch is `tiles` tiles, a block's those of its warps. gHead has of each block what it adds to the segment that comes in; gOpen of the one that
// goes on behind its sum, its number and the last block that it comes into, this one if there is none; and whether an offset is wrong.
// Each segment has one writer: of one with numbers it is who walks over its end, or `join`; of one without, the lane whose warp has it in its share and looks
// at it while numbers come. What is no segment becomes NaN in `join`, after all who may have taken it for one.
// A row is EACH neighbouring vectors of every lane, ROWS are a tile: two of them halve the scans over lanes, and four are slower in float32. Each lane adds its
// numbers of all rows first and asks for the next tile's, which are on their way while lanes are joined: whoever waits for one of them waits for all. So what
// says whether segments have numbers is used at a tile's end, when it has long come.
template <typename T, typename I, int BLOCK>
__global__ void __launch_bounds__(BLOCK, 768 / BLOCK) chunks(T* __restrict__ gOut, float* __restrict__ gHead, uint4* __restrict__ gOpen, const T* __restrict__ gX,
                                                             const I* __restrict__ gOffsets, long long M, long long E, int tiles, unsigned share) {
  constexpr int PART = 16 / sizeof(T), EACH = 2, WIDTH = EACH * PART, ROWS = SIZE / (WARP * WIDTH), GROUP = ROWS < 4 ? ROWS : 4, WARPS = BLOCK / WARP;
  __shared__ float sLaid[WARPS][SIZE];            // of a number that begins a segment: what its lane has of the one before in this row
  __shared__ float sPrior[WARPS][SIZE / WIDTH];   // of a lane's vectors of a row: what is open before them
  __shared__ unsigned sBits[WARPS][2][WARP];      // of a lane's numbers, row by row, those that begin a segment; of every other tile
  __shared__ float sHead[WARPS];                  // of a stretch's numbers, those of the segment that comes in
  __shared__ bool sAny[WARPS];                    // whether it ends there
  const int l = lane(), w = __shfl_sync(ALL_LANES, warp(), 0);  // the same for the warp, as the compiler then knows too
  const long long begin = blockIdx.x * (long long)tiles * (WARPS * SIZE), end = min(begin + (long long)tiles * (WARPS * SIZE), M);
  long long first = min(begin + w * (long long)tiles * SIZE, end);
  const int count = int(min((long long)tiles * SIZE, end - first));
  keep(first);
  const unsigned before = (1u << l) - 1;                        // the lanes before this one
  const Policy policy = evict_first(M * (long long)sizeof(T));  // x is read once, where offsets and sums are found again
  let_next_stand_by();
  const T* gNext = gX + first + l * WIDTH;
  uint4 rX[ROWS][EACH];
  if (count >= SIZE) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int v = 0; v < EACH; ++v) rX[r][v] = load_global(reinterpret_cast<const uint4*>(gNext + r * WARP * WIDTH + v * PART), policy);
  }
  unsigned cursor = count > 0 ? find_near(gOffsets, M, E, first - 1) : 0;  // the first offset that is not before the tile
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
  // Whether segments have numbers: of all of them a warp's `share`, in segments of like lengths those that it walks over. The one that this lane looks at next.
  unsigned next = (blockIdx.x * WARPS + w) * share + l;
  const unsigned until = min(next - l + share, unsigned(E)), rows = (share - 1) / (WARP * unsigned(tiles)) + 1;  // of 32, a tile
  bool wrong = false;
  auto settle = [&](unsigned e, I from, I to) {
    if (!is_one(from, to, M)) wrong = true;
    else if (from == to) gOut[e] = T(0.0f);
  };
  float carry = 0.0f;
  unsigned* sMarks = sBits[w][0];
  int here = 0;
  auto step = [&](auto more) {  // a tile, whose numbers are there; and of the next one they are asked for
    const long long tile = first + here;
    const int size = decltype(more)::value ? SIZE : min(count - here, SIZE);
    // Where segments begin. Of offsets that are equal each tells of the same place, and those behind the first store something for an empty segment, which
    // `join` makes 0.
    const unsigned looked = next, begun = cursor;
    I starts = 0, stops = 0;
    if (looked < until) starts = gOffsets[looked], stops = gOffsets[looked + 1];
    next += WARP;
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
    for (int k = 0; k < LOOK; ++k) {  // one that is as the offset before it ends a segment without numbers
      int last = __shfl_up_sync(ALL_LANES, place[k], 1);
      if (k > 0) {
        const int other = __shfl_sync(ALL_LANES, place[k - 1], WARP - 1);
        if (l == 0) last = other;
      }
      mine[k] = place[k] == last && (k > 0 || l > 0) ? -1 : place[k];
    }
#pragma unroll 1
    while (again) {
      const I one = __shfl_sync(ALL_LANES, at[0], 0), far = __shfl_sync(ALL_LANES, at[LOOK - 1], WARP - 1);
      const int marked = __shfl_sync(ALL_LANES, place[LOOK - 1], WARP - 1);
      if (cursor + LOOK * WARP <= unsigned(E) && one == far && one - tile == marked) {  // equal ones, as many as there are, are passed by a search
        cursor = passed<1>(gOffsets, cursor, unsigned(E) + 1, one);
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
      run[r] = 0.0f;
#pragma unroll
      for (int v = 0; v < EACH; ++v) {
        float rF[PART];
        open(rF, rX[r][v], T(0.0f));
#pragma unroll
        for (int k = 0; k < PART; ++k) {
          const int i = v * PART + k;
          const bool cut = bits >> (r * WIDTH + i) & 1;
          if (cut) sLaid[w][(r * WARP + l) * WIDTH + i] = run[r];
          run[r] = (cut ? 0.0f : run[r]) + rF[k];
        }
        if constexpr (decltype(more)::value) load_behind(rX[r][v], gNext + r * WARP * WIDTH + v * PART, policy, run[r]);
      }
    }
#pragma unroll
    for (int g = 0; g < ROWS; g += GROUP) {
      unsigned any[GROUP];
      int from[GROUP];
#pragma unroll
      for (int r = 0; r < GROUP; ++r) {
        any[r] = __ballot_sync(ALL_LANES, (bits >> (g + r) * WIDTH & (0xffffffffu >> (WARP - WIDTH))) != 0);
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
      const bool only = !(sMarks[v % WARP] & ((1u << (r + i % WIDTH)) - (1u << r)));  // it has come into the lane's part of the row
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
      if (!__any_sync(ALL_LANES, border)) from = max(from + WARP, passed<1>(gOffsets, from, cursor, __shfl_sync(ALL_LANES, one, 0))) - WARP;
    }
    sMarks = sOther, here += SIZE;
    if (looked < until) settle(looked, starts, stops);
#pragma unroll 1
    for (unsigned r = 1; r < rows; ++r, next += WARP)
      if (next < until) settle(next, gOffsets[next], gOffsets[next + 1]);
  };
  while (count - here >= 2 * SIZE) step(Whether<true>());
  while (here < count) {
    const int left = count - here;
    if (left < SIZE) {  // the last of x
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int v = 0; v < EACH; ++v) {
          const int at = r * WARP * WIDTH + v * PART, i = at + l * WIDTH;
          Wide<T> rPart;
          fill(rPart, T(0.0f));
          if (i + PART <= left) load(rPart, gNext + at);
          else
#pragma unroll
            for (int k = 0; k < PART; ++k)
              if (i + k < left) rPart[k] = gNext[at + k];
          rX[r][v] = rPart.whole;
        }
    }
    step(Whether<false>());
  }
#pragma unroll 1
  for (; next < until; next += WARP) settle(next, gOffsets[next], gOffsets[next + 1]);
  const unsigned open = cursor - 1;  // the segment that goes on behind the stretch, or ends just there
  const bool any = open != zero;
  bool right = false;
  if (l == 0) {
    if (!any) sHead[w] = carry;
    sAny[w] = any;
    const I from = any && open < unsigned(E) ? gOffsets[open] : I(-1);
    right = is_one(from, at[0], M) && from < at[0];
  }
  wrong = __syncthreads_or(wrong);
  if (l != 0) return;
  auto rest = [&](float sum, int& other) {  // and what the stretches from `other` on have of it
    for (bool on = true; on && other < WARPS; ++other) sum += sHead[other], on = !sAny[other];
    return sum;
  };
  auto tell = [&](float sum, unsigned to) { gOpen[blockIdx.x] = {__float_as_uint(sum), open, to, wrong}; };
  if (any) {
    int other = w + 1;
    const bool last = w == WARPS - 1;
    const float sum = rest(carry, other);
    if (right && at[0] <= end) gOut[open] = T(sum);
    if (last || !sAny[other - 1]) tell(sum, right ? unsigned((at[0] - 1) / SIZE) / unsigned(tiles * WARPS) : blockIdx.x);
  }
  if (w == 0) {
    int other = 0;
    gHead[blockIdx.x] = rest(0.0f, other);
    if (!sAny[other - 1]) tell(0.0f, blockIdx.x);
  }
}

// Of the segments that blocks could not finish: those in several blocks, by a thread, or by a warp where they are more than two; and none (NaN), by a warp for
// each block that has seen one. Its blocks are small, as there is room for beside those of `chunks`.
template <typename T, typename I>
__global__ void ROOFTILE_EARLY __launch_bounds__(128) join(T* __restrict__ gOut, const float* __restrict__ gHead, const uint4* __restrict__ gOpen,
                                                           const I* __restrict__ gOffsets, long long M, long long E, unsigned blocks, unsigned share) {
  constexpr unsigned AT_ONCE = 8;  // are asked for before one is added
  const unsigned b = blockIdx.x * 128 + threadIdx.x;
  earlier_done();
  uint4 open = {0, 0, b, 0};
  float next = 0.0f;
  if (b < blocks) open = gOpen[b];
  if (b + 1 < blocks) next = gHead[b + 1];
  const float tail = __uint_as_float(open.x);
  if (open.z == b + 1) gOut[open.y] = T(tail + next);
  for (unsigned far = __ballot_sync(ALL_LANES, open.z > b + 1); far; far &= far - 1) {
    const int l = __ffs(int(far)) - 1;
    const unsigned to = __shfl_sync(ALL_LANES, open.z, l), e = __shfl_sync(ALL_LANES, open.y, l);
    float sum = lane() == l ? tail : 0.0f;
#pragma unroll 1
    for (unsigned c = b + l + 1; c <= to; c += AT_ONCE * WARP) {
      float r[AT_ONCE];
#pragma unroll
      for (unsigned k = 0; k < AT_ONCE; ++k) r[k] = c + k * WARP <= to ? gHead[c + k * WARP] : 0.0f;
#pragma unroll
      for (unsigned k = 0; k < AT_ONCE; ++k) sum += r[k];
    }
    sum = warp_reduce(sum, Sum());
    if (lane() == 0) gOut[e] = T(sum);
  }
  for (unsigned wrong = __ballot_sync(ALL_LANES, open.w); wrong; wrong &= wrong - 1) {
    const int l = __ffs(int(wrong)) - 1;
    const unsigned first = (b - lane() + l) * share;
    for (unsigned e = first + lane(); e < min(first + share, unsigned(E)); e += WARP)
      if (!is_one(gOffsets[e], gOffsets[e + 1], M)) gOut[e] = T(__int_as_float(0x7fc00000));
  }
}
