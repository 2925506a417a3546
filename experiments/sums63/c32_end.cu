// adds: each warp walks a stretch of its own, a lane 32 neighbours of every tile, the next two tiles on their way; no barrier of the block before stretches end
// costs: 9 KB of shared memory a warp; offsets are read twice, by who walks over their places and by who looks for segments that have no number
// loses when: a row is more than one number (it takes no other), or there is not a tile of 1024 numbers for every warp that fills the device
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

constexpr int SIZE = 1024, EACH = SIZE / WARP;    // numbers of a tile and of a lane: a bit of a word for every one of these
constexpr int LOOK = 2;                           // offsets a lane and turn: in segments of 16 numbers a tile has as many, and who looks twice waits for memory
constexpr int STAGES = 2;                         // tiles of a warp: one is added up while the other comes
constexpr int CHAINS = 4, LINKS = EACH / CHAINS;  // of a lane's numbers, each added up alone: less is rounded off
constexpr int FLOATS = 36;                        // from a lane's sums to the next one's: 8 lanes that store 16 bytes each meet no bank twice

// A tile of T in shared memory. Of 32 bits the sums are laid down in the place of the numbers, of 16 beside them.
template <typename T> struct Tile {
  static constexpr int WIDTH = 16 / sizeof(T), ROWS = EACH / WIDTH;
  static constexpr bool IN_PLACE = sizeof(T) == sizeof(float);
  static constexpr int LAID = WARP * FLOATS / 4, ROOM = IN_PLACE ? LAID : SIZE / WIDTH;  // in 16 bytes
  static constexpr int OF_WARP = STAGES * ROOM + (IN_PLACE ? 0 : LAID) + WARP / 4;       // with a word a lane behind all

  // Of vector r of lane l's ROWS neighbours. 8 lanes that read one each meet no bank twice, nor do 8 that bring neighbours.
  static ROOFTILE_DEVICE unsigned place(unsigned l, unsigned r) { return IN_PLACE ? l * (ROWS + 1) + r : l * ROWS + (r ^ (l / 2 & 3)); }
};
// Of the sum that is laid down before a number.
ROOFTILE_DEVICE unsigned laid(unsigned i) { return i + i / EACH * (FLOATS - EACH); }

// A vector of T as floats.
ROOFTILE_DEVICE void open(float (&rF)[4], const uint4& r, float) { unpack<float>(rF, r); }
template <typename T> ROOFTILE_DEVICE void open(float (&rF)[8], const uint4& r, T) { unpack<T>(rF, r); }

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

// The number of offsets that are not beyond number i_m, by a warp; it is from `low` to `high`. 33 parts a turn, the last FEW a lane all at once.
template <int FEW, typename I> ROOFTILE_DEVICE unsigned passed(const I* gOffsets, unsigned low, unsigned high, long long i_m) {
  while (high - low > FEW * WARP) {
    const unsigned step = (high - low) / (WARP + 1) + 1, at = low + (lane() + 1) * step - 1;
    low += __popc(__ballot_sync(ALL_LANES, at < high && gOffsets[at] <= i_m)) * step;
    high = min(high, low + step - 1);
  }
  I seen[FEW];
#pragma unroll
  for (int k = 0; k < FEW; ++k) {
    const unsigned at = low + k * WARP + lane();
    if (at < high) seen[k] = gOffsets[at];
  }
  unsigned found = low;
#pragma unroll
  for (int k = 0; k < FEW; ++k) found += __popc(__ballot_sync(ALL_LANES, low + k * WARP + lane() < high && seen[k] <= i_m));
  return found;
}

// The same, of all E + 1. Of lengths that are alike as many begin before a number as its part of x says: the first turn looks there, and where it is not
// found there the next ones look on that side.
template <typename I> ROOFTILE_DEVICE unsigned find(const I* gOffsets, long long M, long long E, long long i_m) {
  const float about = float(i_m) / float(M) * float(E), away = 2.0f * sqrtf(float(E));  // cuts at random are off by a quarter of it
  const long long step = (long long)(away * (2.0f / (WARP - 1))) + 1, from = (long long)(about - away), at = from + lane() * step;
  const int before = __popc(__ballot_sync(ALL_LANES, at < 0 || (at <= E && gOffsets[at] <= i_m)));
  const long long low = before > 0 ? from + (before - 1) * step + 1 : 0, high = before < WARP ? from + before * step : E + 1;
  return passed<8>(gOffsets, unsigned(max(low, 0ll)), unsigned(min(high, E + 1)), i_m);
}

// Whether these are a segment's offsets. Without a sign: what is below 0 is beyond M.
ROOFTILE_DEVICE bool is_one(unsigned long long from, unsigned long long to, unsigned long long M) { return from <= to && to <= M; }

// A warp's stretch is `tiles` tiles, a block's those of its warps. gHead has of each block what it adds to the segment that comes in; gOpen of the one that
// goes on behind its sum, its number and the last block that it comes into, this one if there is none; and whether an offset is wrong.
// Each segment has one writer: of one with numbers it is who walks over its end, or `join`; of one without, the lane whose warp has it in its share and looks
// at it while numbers come. What is no segment becomes NaN in `join`, after all who may have taken it for one.
template <typename T, typename I, int BLOCK>
__global__ void __launch_bounds__(BLOCK, 768 / BLOCK) chunks(T* __restrict__ gOut, float* __restrict__ gHead, uint4* __restrict__ gOpen,
                                                             const T* __restrict__ gX, const I* __restrict__ gOffsets, long long M, long long E, int tiles,
                                                             unsigned share) {
  using tile = Tile<T>;
  constexpr int WIDTH = tile::WIDTH, ROWS = tile::ROWS, WARPS = BLOCK / WARP;
  extern __shared__ __align__(128) uint4 sAll[];
  __shared__ float sHead[WARPS];  // of a stretch's numbers, those of the segment that comes in
  __shared__ bool sAny[WARPS];    // whether it ends there
  const int l = lane(), w = __shfl_sync(ALL_LANES, warp(), 0);  // the same for the warp, as the compiler then knows too
  uint4* sWarp = sAll + w * tile::OF_WARP;
  unsigned* sBits = reinterpret_cast<unsigned*>(sWarp + tile::OF_WARP - WARP / 4);  // of a lane's numbers, those that begin a segment
  const long long begin = blockIdx.x * (long long)tiles * (WARPS * SIZE), end = min(begin + (long long)tiles * (WARPS * SIZE), M);
  const long long first = min(begin + w * (long long)tiles * SIZE, end);
  const int count = int(min((long long)tiles * SIZE, end - first));
  const unsigned before = (1u << l) - 1;                        // the lanes before this one
  const Policy policy = evict_first(M * (long long)sizeof(T));  // x is read once, where offsets and sums are found again
  let_next_stand_by();
  const T* gNext = gX + first + l * WIDTH;
  const unsigned corner = tile::place(l / ROWS, l % ROWS);
  auto ask = [&](int stage, int left) {
    uint4* sTo = sWarp + stage * tile::ROOM + corner;
    if (left >= SIZE) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) copy_async(sTo + tile::place(r * (WARP / ROWS), 0), gNext + r * WARP * WIDTH, true, policy);
    } else if (left > 0) {  // the last of x
#pragma unroll 1
      for (int r = 0; r < ROWS; ++r) {
        const int i = r * WARP * WIDTH + l * WIDTH;
        uint4* sPart = sTo + tile::place(r * (WARP / ROWS), 0);
        if (i + WIDTH <= left) copy_async(sPart, gNext + r * WARP * WIDTH, true, policy);
        else
#pragma unroll 1
          for (int k = 0; k < WIDTH; ++k) reinterpret_cast<T*>(sPart)[k] = i + k < left ? gNext[r * WARP * WIDTH + k] : T(0.0f);
      }
    }
    copy_commit();
    gNext += SIZE;
  };
  ask(0, count);
  unsigned cursor = count > 0 ? find(gOffsets, M, E, first - 1) : 0;  // the first offset that is not before the tile
  const unsigned zero = cursor - 1;                                   // the segment that comes in
  I at[LOOK];
  auto look = [&] {
#pragma unroll
    for (int k = 0; k < LOOK; ++k) {
      const unsigned i = cursor + k * WARP + l;
      if (i <= unsigned(E)) at[k] = gOffsets[i];
    }
  };
  look();
  ask(1, count - SIZE);  // not before: what is looked up would wait behind it
  sBits[l] = 0;
  if (l == 0) sHead[w] = 0.0f;
  __syncwarp();
  // Whether segments have numbers: of all of them a warp's `share`, in segments of like lengths those that it walks over. The one that this lane looks at next.
  unsigned mine = (blockIdx.x * WARPS + w) * share + l;
  const unsigned until = min(mine - l + share, unsigned(E)), rows = (share - 1) / (WARP * unsigned(tiles)) + 1;  // of 32, a tile
  bool wrong = false;
  auto settle = [&](unsigned e, I from, I to) {
    if (!is_one(from, to, M)) wrong = true;
    else if (from == to) gOut[e] = T(0.0f);
  };
  float carry = 0.0f;
  long long here = first;
#pragma unroll 1
  for (int left = count, stage = 0; left > 0; left -= SIZE, here += SIZE, stage ^= 1) {
    const int size = min(left, SIZE);
    const unsigned looked = mine;
    I starts = 0, stops = 0;
    if (looked < until) starts = gOffsets[looked], stops = gOffsets[looked + 1];  // on their way while this tile is waited for
    mine += WARP;
    // Where segments begin. Of offsets that are equal each tells of the same place.
    const unsigned begun = cursor;
    int place[LOOK], ends[LOOK];  // of this lane's offsets, -1 of one that is not in the tile; of the first turn's, of those that end a segment
    auto mark = [&] {
      int found = 0;
#pragma unroll
      for (int k = 0; k < LOOK; ++k) {
        const long long far = at[k] - here;  // of an offset that is not there it is whatever, and `in` says so
        const bool there = cursor + k * WARP + l <= unsigned(E), in = there & far < size;
        place[k] = there & (unsigned long long)far < unsigned(size) ? int(far) : -1;  // before the tile it is only where offsets fall
        if (place[k] >= 0) atomicOr(sBits + place[k] / EACH, 1u << place[k] % EACH);
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
      ends[k] = place[k] == last && (k > 0 || l > 0) ? -1 : place[k];
    }
#pragma unroll 1
    while (again) {
      const I next = __shfl_sync(ALL_LANES, at[0], 0), far = __shfl_sync(ALL_LANES, at[LOOK - 1], WARP - 1);
      const int marked = __shfl_sync(ALL_LANES, place[LOOK - 1], WARP - 1);
      if (cursor + LOOK * WARP <= unsigned(E) && next == far && next - here == marked) {  // equal ones, as many as there are, are passed by a search
        cursor = passed<1>(gOffsets, cursor, unsigned(E) + 1, next);
        look();
      }
      again = mark();
    }
    copy_wait<STAGES - 1>();
    __syncwarp();
    const unsigned bits = sBits[l];
    sBits[l] = 0;
    uint4* sHere = sWarp + stage * tile::ROOM;
    float* sLaid = tile::IN_PLACE ? reinterpret_cast<float*>(sHere) : reinterpret_cast<float*>(sBits) - WARP * FLOATS;
    float run[CHAINS];
    unsigned those[CHAINS];  // of a chain's numbers, those that begin a segment
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      float rF[WIDTH], rLaid[WIDTH];
      open(rF, sHere[tile::place(l, r)], T(0.0f));
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
        const int i = r * WIDTH + k, c = i / LINKS;
        if (i % LINKS == 0) run[c] = 0.0f, those[c] = bits & ((1u << LINKS) - 1) << i;
        rLaid[k] = run[c];
        run[c] = (bits >> i & 1 ? 0.0f : run[c]) + rF[k];
      }
#pragma unroll
      for (int k = 0; k < WIDTH; k += 4)
        reinterpret_cast<float4*>(sLaid + l * FLOATS)[(r * WIDTH + k) / 4] = {rLaid[k], rLaid[k + 1], rLaid[k + 2], rLaid[k + 3]};
    }
    float own = run[0];
#pragma unroll
    for (int c = 1; c < CHAINS; ++c) own = (those[c] ? 0.0f : own) + run[c];
    const unsigned any = __ballot_sync(ALL_LANES, bits != 0);
    const int back = highest(any & (before * 2 + 1) | 1);  // lanes are added up as far back as the last that has a border
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) add_from(own, distance, back);
    float prior = __shfl_up_sync(ALL_LANES, own, 1);
    const float all = __shfl_sync(ALL_LANES, own, WARP - 1);
    if (l == 0) prior = 0.0f;
    if (!(any & before)) prior += carry;
    carry = any ? all : carry + all;
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) {  // what is open before a chain belongs to the first sum that is laid down in it
      if (those[c]) sLaid[l * FLOATS + __ffs(int(those[c])) - 1] += prior;
      prior = (those[c] ? 0.0f : prior) + run[c];
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < LOOK; ++k)
      if (ends[k] >= 0) {
        const unsigned e = begun + k * WARP + l - 1;
        const float sum = sLaid[laid(ends[k])];
        if (k == 0 && e == zero) sHead[w] = sum;
        else gOut[e] = T(sum);
      }
#pragma unroll 1
    for (unsigned from = begun + LOOK * WARP; from < cursor; from += WARP) {
      const unsigned e = from + l;
      const I one = e < cursor ? gOffsets[e] : I(-1);
      const bool border = here <= one && one < here + size && one != gOffsets[e - 1];
      if (border) gOut[e - 1] = T(sLaid[laid(int(one - here))]);
      if (!__any_sync(ALL_LANES, border)) from = max(from + WARP, passed<1>(gOffsets, from, cursor, __shfl_sync(ALL_LANES, one, 0))) - WARP;
    }
    __syncwarp();
    ask(stage, left - STAGES * SIZE);
    if (looked < until) settle(looked, starts, stops);
#pragma unroll 1
    for (unsigned r = 1; r < rows; ++r, mine += WARP)
      if (mine < until) settle(mine, gOffsets[mine], gOffsets[mine + 1]);
  }
#pragma unroll 1
  for (; mine < until; mine += WARP) settle(mine, gOffsets[mine], gOffsets[mine + 1]);
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
#pragma unroll 8
    for (unsigned c = b - lane() + l + 1 + lane(); c <= to; c += WARP) sum += gHead[c];
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
