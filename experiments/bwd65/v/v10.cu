// adds: dq, dk and dv in one pass of five products: wgmma on tiles the copy engine brings; P and dS turn into operands in registers; the engine adds dq
// costs: dq in float32, cleared, added to by every tile and read again, dk and dv too where heads share keys; 226 KiB, all registers: a block a multiprocessor
// loses when: few tiles of keys meet a query, so that clearing and converting dq weigh as much as adding to it; it varies unless ORDERED

// A block takes tile after tile of 128 keys and walks the queries that see them, BLOCK_M at a time, of one head that reads them after the other; causal,
// of a few of those, and dK and dV of several walks are summed (Sums). What it reads for the next tile comes while it ends the one before. Scores are made
// transposed, S^T = K Q^T: two warpgroups have 64 keys each, and P^T and dS^T, as registers hold them, are the left operands of dV += P^T dO and dK +=
// dS^T Q. Only dS crosses between them, through shared memory and a step late, for dQ = dS K: each makes a 64 x 64 half of it. A third warpgroup copies:
// one thread tiles in, two threads dQ out. gDq [B H, blocks of queries, half, HALF] keeps a half as the threads held it: 8 or 10 times 4 floats of each of
// 128 threads. Whoever is through with a tile rounds its share of the dQ of a head some heads before, to which all tiles have added by then; `finish`
// rounds the last heads'.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/add.cuh"
#include "rooftile/attention.cuh"
#include "rooftile/early.cuh"
#include "rooftile/fragments.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/registers.cuh"
#include "rooftile/slices.cuh"
#include "rooftile/sync.cuh"
#include "rooftile/vec.cuh"
#include "rooftile/wgmma80.cuh"

using namespace rooftile;

constexpr int BLOCK_N = 128, LINE = 128;         // keys of a block; bytes of a panel's line: 64 columns
constexpr int STAGES = 2, NEVER = 1 << 30;

// M queries a step. 80 read K twice and V once as 64 do, so that shared memory takes 2790 cycles for 64 queries instead of 2944, and a thread issues 392
// instructions instead of 421. Past T the last block computes for nothing, and a mask that cuts blocks cuts a wider strip.
template <int D_, int M = 8192 / D_> struct Tile {
  static constexpr int D = D_, BLOCK_M = M, PANELS = D / 64, ROWS = BLOCK_M * 4;
  static_assert((D == 64 && M == 128) || (D == 128 && (M == 64 || M == 80)), "128 queries of 64, 64 or 80 of 128");
  static constexpr int N = M * D / 128, HALF = 64 * N, HALF_BYTES = 4 * HALF;  // of dQ a warpgroup makes N queries by 64 of D
  static constexpr int DS_STAGES = M == 80 ? 2 : 3;                            // no room for three
  static constexpr int KEY_PANEL = BLOCK_N * LINE, QUERY_PANEL = BLOCK_M * LINE, KEYS = PANELS * KEY_PANEL, QUERIES = PANELS * QUERY_PANEL;
  // Where things lie in dynamic shared memory; the launcher counts the same bytes.
  static constexpr int K = 0, V = KEYS, Q = 2 * KEYS, DOUT = Q + STAGES * QUERIES, DS = DOUT + STAGES * QUERIES;
  static constexpr int DQ = DS + DS_STAGES * 2 * QUERY_PANEL, LSE = DQ + 2 * HALF_BYTES, DELTA = LSE + STAGES * ROWS;
  static_assert(QUERIES == HALF_BYTES, "a half of dQ's sums comes by a stage of q or dout");
  static constexpr bool APART = D == 64;  // dK and dV leave from where the last dS lay, which is as large, while the next keys come; or from K and V
  static_assert(!APART || KEYS == QUERY_PANEL, "a panel of dS for each");
};

// Where a product has this thread's first number, in 64 rows of its warpgroup.
ROOFTILE_DEVICE int row_of(unsigned i_thread) { return i_thread / WARP % 4 * 16 + i_thread % WARP / 4; }
ROOFTILE_DEVICE int column_of(unsigned i_thread) { return i_thread % 4 * 2; }

// No weight where a mask has no bit: `words` are this thread's of 64 keys by 128 queries, as pack_bits of mask_bits.cu has them, of which p's begin at `from`.
template <int R> ROOFTILE_DEVICE void mask_bits(float (&p)[R], uint2 words, int from) {
  const unsigned of_row[2] = {words.x >> from / 4, words.y >> from / 4};
#pragma unroll
  for (int j = 0; j < R; ++j)
    if (!(of_row[j / 2 % 2] & 1u << (j / 4 * 2 + j % 2))) p[j] = 0.0f;
}

// Queries of a block from this one on.
template <int QUERY> struct From {
  static constexpr int query = QUERY;
};

// No weight for queries outside a band: the half's first key is seen by p's query `at` and `more` behind it, the next by those one further, and keys from
// `keys` on are none.
template <int R> ROOFTILE_DEVICE void mask_band(float (&p)[R], int at, int keys, unsigned more) {
  const unsigned i_thread = anew(threadIdx.x);
  const int key = row_of(i_thread), from = at + key - column_of(i_thread), low = key < keys ? from : NEVER, high = key + 8 < keys ? from + 8 : NEVER;
#pragma unroll
  for (int j = 0; j < R; ++j)
    if (unsigned(j / 4 * 8 + j % 2 - (j / 2 % 2 ? high : low)) > more) p[j] = 0.0f;
}

// What a block does with a tile: query blocks `first` to `blocks` - 1 of each of `group` heads, from i_bh on, against keys of the head i_g they read. `masked`:
// before that block there are keys that a query does not see; in a window from `whole` on too.
struct Work {
  int i_b, i_g, i_h, i_bh, group, i_tile, tiles, first, count, blocks, T, S, masked, whole;
};

// Of that what is wanted behind the walk, when those of the next may have come.
struct alignas(16) Keys {
  int i_b, i_g, i_bh, i_tile;
};

struct Rings {
  Pipeline<1> k, v;  // keys, and values, with which comes what follows; behind the last tile one that ends where it begins
  // Of the n-th tile's walk, read where they are wanted, as registers are full; end: of all tiles' steps up to its last.
  int first, blocks;
  unsigned end, n;
  int i_tile, masked, whole;
  const uint2* gBits;  // of the tile's first block of queries
  unsigned ends[2];  // of each half, in a window: the last step's queries may have passed the first half's keys
  Keys keys[2];
  Pipeline<STAGES> q, dout;
  Pipeline<1> dq[2];    // one a warpgroup
  Pipeline<STAGES> ds;  // only ever full: who has waited for a step's dS knows that the one three steps before has been read
  Work next;            // of the one thread that brings it, which has few registers
  int i_next;
  unsigned taken, turn;  // tiles, and of the rings of q and dout
};

// Of `all` walks, one over each of `tiles` tiles for each group of heads that are walked through at once: `together` groups have their first tile, then their
// second dealt out, then as many more groups. `at` counts.
ROOFTILE_DEVICE unsigned deal(Work& w, unsigned at, unsigned all, unsigned together, unsigned tiles) {
  const unsigned dealt = together * tiles, first = at / dealt * together;
  const unsigned heads = min(together, all / tiles - first), i_head = first + at % dealt % heads;
  w.i_tile = at % dealt / heads;
  return i_head;
}

enum class Sees { ALL, EARLIER, WINDOW };

// Every query sees all keys, those up to its own, or a window: query i the keys from i + S - T - left to i + S - T + right. Tiles are dealt out head by head,
// so that heads have the L2 to themselves one after the other. Causal, the first keys are seen by the most queries: `together` heads have their tiles dealt
// out together, the longest first, so that the last to begin are short. Those that add in turn begin with the last tile of a head.
template <class X_, Sees SEES, bool ORDERED, bool CAPS_ = false, bool ENDS_ = false, bool BITS = false> struct Plain : Work {
  using X = X_;
  static constexpr bool CAUSAL = SEES == Sees::EARLIER, WINDOW = SEES == Sees::WINDOW, CAPS = CAPS_;
  // A walk's first step to the queries that see a key of the half; of a window at D = 64 all steps would have 1 % more instructions.
  static constexpr bool CUTS = CAUSAL || (WINDOW && X::D == 128);
  static constexpr bool ENDS = ENDS_ && X::D == 128;  // a walk's last step by the half that it still sees
  static constexpr bool CLEARS = true, UNHURRIED = SEES == Sees::ALL;  // sums of heads to come, and
  static constexpr bool ROUNDS = SEES != Sees::ALL || X::D == 128;  // of earlier ones: of D = 64 and all keys the walk came out 1 to 4 % slower beside it
  // So many operands of P are made after dS; the others before, for fewer registers.
  static constexpr int LATE = X::BLOCK_M == 80 ? 2 : WINDOW && X::D == 64 ? 4 : 8;
  int G, walks, together, all;  // walks: of a tile, each over `group` of the heads that share it; all: walks of all tiles
  int left, right, last;        // of a window: bounds, each T + S at most, and behind which block a walk ends
  float cap_log2;
  const uint2* gBits;   // BITS: of a mask, [B, H, 64 keys, 128 queries, 128 threads], and
  const int2* gSpans;   // of a tile the first block that sees any of it, and behind the last
  int masks_b, masks_h;  // from batch to batch and from head to head, in masks

  ROOFTILE_DEVICE Plain(int G_, int walks_, int group_, int T_, int S_, int blocks_, int tiles_, int together_, int all_) {
    T = T_, S = S_, blocks = blocks_, tiles = tiles_, group = group_, G = G_, walks = walks_, together = together_, all = all_;
  }
  // The next tile. Who begins takes it: a block waits for those that add before it, and they are under way, however few have room at once. Where there is one
  // for each, all is known before `prepare` has cleared the counter.
  ROOFTILE_DEVICE int next(int* gTaken, bool begins) const {
    if (BITS || all > int(gridDim.x)) return earlier_done(), atomicAdd(gTaken, 1);  // BITS: no register is left for what one comparison wants all the time
    return begins ? blockIdx.x : all;
  }
  ROOFTILE_DEVICE void take(int at) {
    const unsigned i_walk = deal(*this, at, anew(all), anew(together), anew(tiles)), of_batch = anew(G) * anew(walks);
    const int T = anew(this->T), S = anew(this->S);
    i_tile = SEES != Sees::ALL && ORDERED ? tiles - 1 - i_tile : i_tile;
    i_b = i_walk / of_batch, i_g = i_walk % of_batch / anew(walks), i_h = i_walk % of_batch * group, i_bh = i_walk * group;
    if constexpr (WINDOW) {
      const int low = i_tile * BLOCK_N + T - S, high = min((i_tile + 1) * BLOCK_N, S) + T - S + anew(left);
      first = max(0, low - int(anew(right))) / X::BLOCK_M;
      last = max(first + 1, ceil_div(min(T, high), X::BLOCK_M));  // keys that nobody sees are walked too, by a block that the mask hides from them
      count = (last - first) * group;
      masked = (i_tile + 1) * BLOCK_N > S ? NEVER : ceil_div(max(0, low - int(anew(right)) + BLOCK_N - 1), X::BLOCK_M);
      whole = max(0, low + int(anew(left)) + 1) / X::BLOCK_M;
      return;
    }
    first = CAUSAL ? max(0, i_tile * BLOCK_N + T - S) / X::BLOCK_M : 0;
    count = (blocks - first) * group;
    masked = (i_tile + 1) * BLOCK_N > S ? NEVER : CAUSAL ? ceil_div(max(0, (i_tile + 1) * BLOCK_N - 1 + T - S), X::BLOCK_M) : 0;
  }
  // To the queries that a mask lets see the keys. In turn every tile adds to each block that a window lets see it.
  ROOFTILE_DEVICE void narrow(Work& x) {
    if constexpr (BITS && !ORDERED) {
      const int2 span = gSpans[of_masks(x)];
      first = x.first = span.x, x.blocks = span.y, x.count = (span.y - span.x) * group;
    }
  }
  ROOFTILE_DEVICE int of_masks(const Work& x) const { return (x.i_b * int(anew(masks_b)) + x.i_h * int(anew(masks_h))) * int(anew(tiles)) + x.i_tile; }  // which tile
  ROOFTILE_DEVICE void mark(Rings& sR, const Work& x) const {
    sR.masked = x.masked;
    if constexpr (WINDOW) sR.whole = x.whole;
    if constexpr (BITS) sR.gBits = gBits + of_masks(x) * (2ll * ceil_div(anew(T), 128u) * 128);
    if constexpr (ENDS) {
      const bool passed = (x.blocks - 1) * X::BLOCK_M > x.i_tile * BLOCK_N + 63 + int(anew(T) - anew(S) + anew(left));
      sR.ends[1] = sR.end, sR.ends[0] = sR.end - (passed && x.count > 1);
    }
  }
  ROOFTILE_DEVICE void begin(const Rings& sR, const Keys& keys) { i_tile = keys.i_tile, i_bh = keys.i_bh, first = sR.first; }
  ROOFTILE_DEVICE static int batch(const Work& x) { return x.i_b; }
  ROOFTILE_DEVICE static int of_q(const Work& x) { return x.i_b; }  // whose rows queries and keys are: of a batch, or of a slice
  ROOFTILE_DEVICE static int of_k(const Work& x) { return x.i_b; }
  ROOFTILE_DEVICE int sums(const Keys& x) const { return (x.i_b * tiles + x.i_tile) * G + x.i_g; }  // which tile's of Sums
  ROOFTILE_DEVICE long long first_block() const { return (long long)i_bh * blocks + first; }  // in gDq, gRows and gTurn
  ROOFTILE_DEVICE int end() const { return WINDOW ? last : blocks; }                          // of a walk that was taken
  // Blocks there from a walk's last of one head to its first of the next.
  ROOFTILE_DEVICE int between(const Work& x, int end) const { return WINDOW ? x.first + int(anew(blocks)) - end : x.first; }
  // How many tiles of keys add to this block of queries before this one. Causal, the last tile that the block sees comes to it first, in its first
  // step, and the tile before it two or one steps later: in this order nobody waits for a tile that has not begun.
  ROOFTILE_DEVICE int before(int i_block) const {
    if (SEES == Sees::ALL) return i_tile;
    return min(tiles - 1, int(unsigned((i_block + 1) * X::BLOCK_M - 1 + S - T + (WINDOW ? right : 0)) / BLOCK_N)) - i_tile;
  }
  // So many queries, from the first of block i on, see nothing of this half of the tile.
  ROOFTILE_DEVICE int unseen(const Rings& sR, int half, int i) const { return sR.i_tile * BLOCK_N + half * 64 + T - S - (WINDOW ? right : 0) - i * X::BLOCK_M; }
  // No weight where a query does not see a key; a key past S is seen by none: its p may be inf, and inf times its row of zeros would be NaN in dQ.
  template <int R> ROOFTILE_DEVICE void mask(float (&p)[R], const Rings& sR, int half, int i, int from) const {
    if constexpr (BITS) {
      const unsigned query = i * X::BLOCK_M, at = half * ceil_div(anew(T), 128u) + query / 128;
      mask_bits(p, sR.gBits[at * 128 + anew(threadIdx.x) % 128], query % 128);
    }
    if constexpr (WINDOW) {
      if (i >= sR.masked && i < sR.whole) return;
      const int key = sR.i_tile * BLOCK_N + half * 64, behind = anew(right);
      mask_band(p, key - i * X::BLOCK_M + int(anew(T) - anew(S)) - behind - from, S - key, anew(left) + behind);
      return;
    }
    if (CAUSAL ? i >= sR.masked : sR.masked == 0) return;
    const unsigned i_thread = anew(threadIdx.x);
    const int i_key = sR.i_tile * BLOCK_N + half * 64 + row_of(i_thread), shift = CAUSAL ? T - S - (i * X::BLOCK_M + from + column_of(i_thread)) : -NEVER;
#pragma unroll
    for (int r = 0; r < 16; r += 8) {
      const int unseen = i_key + r < S ? i_key + r + shift : NEVER;  // columns, less this thread's first
#pragma unroll
      for (int j = r / 4; j < R; j += 4)
        for (int k = 0; k < 2; ++k)
          if (j / 4 * 8 + k < unseen) p[j + k] = 0.0f;
    }
  }
};

// A sequence among those that lie one behind another: its first row and length on either side, its first tile of keys in the order they are dealt out, and
// its first block of queries. `order` writes them, and behind the last an empty one, whose is what is nobody's: a test for that cost the attention kernel
// registers that it has not.
struct alignas(16) Span {
  int at_q, T, at_k, S, i_slot, i_block, none[2];
};

// What a block wants to know of its window now and then is in shared memory, as registers are full: where its keys begin in dK and dV, which of the sums are
// the tile's, the first query that sees its first key, how many more see it, its keys, those of them that have gradients, blocks of queries from a head's
// last to the next one's first, the first block that has passed a key, and how many tiles come after it.
struct Band {
  long long at;
  int i_sums, low, more, keys, most, between, whole, after;
  Slice of_q, of_k;
};

// Sequences of their own, and in each a window, open to either side where it has no bound.
template <int D, bool ORDERED, int M = 8192 / D, bool CAPS_ = false> struct Ragged : Work {
  using X = Tile<D, M>;
  static constexpr bool CUTS = D == 128, CAPS = CAPS_, ENDS = false, CLEARS = false, ROUNDS = false;  // CUTS: as Plain's of a window
  static constexpr int LATE = M == 80 ? 2 : 8;
  float cap_log2;
  int at_q = 0, at_k = 0, i_first, i_sums, padded, left, right;
  static constexpr int all = 1;  // a block has one tile
  const Band* sBand;

  // blocks_: of queries, of all sequences together.
  ROOFTILE_DEVICE Ragged(const Span* gSpans, const int* gOfTile, int G, int walks, int group_, int blocks_, int left_, int right_, float cap) : cap_log2(cap) {
    const int of_heads = G * walks;
    const Span x = gSpans[gOfTile[blockIdx.x / of_heads]];
    at_q = x.at_q, T = x.T, at_k = x.at_k, S = x.S, padded = blocks_, group = group_, tiles = max(1, ceil_div(S, BLOCK_N));
    const int i_walk = deal(*this, blockIdx.x - x.i_slot * of_heads, tiles * of_heads, ORDERED ? 1 : max(2, 16 / group), tiles);  // as `dealt` of the launcher says
    if (ORDERED) i_tile = tiles - 1 - i_tile;
    i_g = i_walk / walks, i_h = i_bh = i_walk * group;
    i_sums = (x.i_slot + i_tile) * G + i_g;
    left = left_ < 0 ? T + S : min(left_, T + S), right = right_ < 0 ? T + S : min(right_, T + S);
    const int key = i_tile * BLOCK_N, low = key + T - S - right, high = min(key + BLOCK_N, S) - 1 + T - S + left;
    first = max(0, low) / M, blocks = ceil_div(max(0, min(T, high + 1)), M);
    count = max(0, blocks - first) * group;
    i_first = i_bh * padded + x.i_block + first;
    masked = rows() < BLOCK_N ? NEVER : ceil_div(max(0, low + BLOCK_N - 1), M);
  }
  ROOFTILE_DEVICE int rows() const { return min(BLOCK_N, S - i_tile * BLOCK_N); }
  ROOFTILE_DEVICE long long at(int G) const { return ((at_k + i_tile * BLOCK_N) * (long long)G + i_g) * D; }
  ROOFTILE_DEVICE void tell(Band& sX, long long at, int most) {
    const int i_s = i_tile * BLOCK_N, low = i_s + T - S - right;
    if (threadIdx.x == 0) sX = {at, i_sums, low, left + right, rows(), most - i_s, padded - (blocks - first), max(0, low + left + right + 1) / M, tiles - 1 - i_tile,
                                Slice::of(at_q, T), Slice::of(at_k, S)};
    sBand = &sX;
  }
  ROOFTILE_DEVICE const Slice& of_q(const Work&) const { return sBand->of_q; }
  ROOFTILE_DEVICE const Slice& of_k(const Work&) const { return sBand->of_k; }
  ROOFTILE_DEVICE int sums(const Keys&) const { return sBand->i_sums; }
  ROOFTILE_DEVICE long long first_block() const { return i_first; }
  ROOFTILE_DEVICE int end() const { return blocks; }
  ROOFTILE_DEVICE int between(const Work&, int) const { return sBand->between; }
  ROOFTILE_DEVICE static int next(int*, bool begins) { return begins ? 0 : all; }
  ROOFTILE_DEVICE void take(int) {}
  ROOFTILE_DEVICE static void narrow(Work&) {}
  ROOFTILE_DEVICE static int batch(const Work&) { return 0; }
  ROOFTILE_DEVICE static void mark(Rings& sR, const Work& x) { sR.masked = x.masked; }
  ROOFTILE_DEVICE void begin(const Rings&, const Keys&) {}
  // The last tile that a block sees adds first.
  ROOFTILE_DEVICE int before(int i_block) const { return min(sBand->after, ((i_block + 1) * M - 1 - sBand->low) / BLOCK_N); }
  ROOFTILE_DEVICE int unseen(const Rings&, int half, int i) const { return sBand->low + half * 64 - i * M; }
  // As in Plain, and once more for queries that have passed a key.
  template <int R> ROOFTILE_DEVICE void mask(float (&p)[R], const Rings& sR, int half, int i, int from) const {
    if (i >= sR.masked && i < sBand->whole) return;
    mask_band(p, sBand->low + half * 64 - i * M - from, sBand->keys - half * 64, sBand->more);
  }
};

// Cosines and sines [tokens, D / 2] by which queries and keys were turned, pairs D / 2 apart, before this kernel saw them: TURNED, it turns dQ and dK back.
struct Tables {
  const float *gCos, *gSin;
};

// Where dQ goes, rounded: that of the heads of queries `back` before a block's own, as many as a walk goes through. gAdded counts, at the first of those,
// the warpgroups whose additions have all been carried out, two a tile. A block waits for that number, and it ends: `back` is so large that all whom
// it waits for were dealt out before it, and a block's additions wait for nobody's rounding. The launcher makes it larger, so that there is no wait.
template <typename T> struct Earlier {
  T* g;
  long long stride_b, stride_t, stride_h;
  int* gAdded;          // and behind it of each head how many tiles have cleared a share of it
  int H, heads, back;   // heads: of all batches
  int ahead, clearing;  // a walk's first tiles, so many, clear the heads `ahead` behind its own
  Tables tables;
};

// The n-th stage of a ring: two registers fewer than walking it.
template <int N = STAGES> ROOFTILE_DEVICE Stage<N> nth_stage(unsigned n) { return {int(n % N), int(n / N % 2)}; }

// ---- the third warpgroup -----------------------------------------------------------------------------------------------------

ROOFTILE_DEVICE void bring(void* sX, const TensorMap& map, MBarrier* sBarrier, int column, int i_h, int row, int i_b) {
  tensor_load(sX, map, sBarrier, column, i_h, row, i_b);
}
ROOFTILE_DEVICE void bring(void* sX, const TensorMap& map, MBarrier* sBarrier, int column, int i_h, int row, Slice x) {
  slice_load(sX, map, sBarrier, column, i_h, row, x);
}
template <int PANELS, class Of>
ROOFTILE_DEVICE void bring(char* sX, int panel, const TensorMap& map, MBarrier* sBarrier, int i_h, int row, const Of& of) {
#pragma unroll
  for (int p = 0; p < PANELS; ++p) bring(sX + p * panel, map, sBarrier, p * 64, i_h, row, of);
}

// Keys and values were there before `prepare` began; rows, and zeros to add to, are its work. The first queries of a tile come before its keys, which wait
// until those of the tile before have been read.
template <class T, class W>
ROOFTILE_DEVICE void produce(char* sX, Rings& sR, const TensorMap& tQ, const TensorMap& tK, const TensorMap& tV, const TensorMap& tDout, const float* gRows,
                             const float* gDq, int* gTaken, const Earlier<T>& earlier, W w) {
  using X = typename W::X;
  constexpr int M = X::BLOCK_M, ROWS = X::ROWS, HALF = X::HALF, HALF_BYTES = X::HALF_BYTES;
  Work& x = sR.next;
  const auto keys = [&] {
    const unsigned n = sR.taken;
    const Stage<1> turn = nth_stage<1>(n);
    producer_acquire(sR.v, turn);
    sR.first = x.first, sR.blocks = x.blocks, sR.end += x.count, sR.n = n, sR.i_tile = x.i_tile;
    w.mark(sR, x);
    sR.keys[n % 2] = {w.batch(x), x.i_g, x.i_bh, x.i_tile};
    mbarrier_arrive_expect(&sR.v.full[0], X::KEYS);
    bring<X::PANELS>(sX + X::V, X::KEY_PANEL, tV, &sR.v.full[0], x.i_g, x.i_tile * BLOCK_N, w.of_k(x));
    producer_acquire(sR.k, turn, X::KEYS);
    bring<X::PANELS>(sX + X::K, X::KEY_PANEL, tK, &sR.k.full[0], x.i_g, x.i_tile * BLOCK_N, w.of_k(x));
  };
  sR.n = ~0u, sR.end = sR.taken = sR.turn = 0;
  sR.i_next = w.next(gTaken, true);
  for (; sR.i_next < w.all; ++sR.taken) {
    w.take(sR.i_next);
    x = w;
    x.blocks = w.end();
    anew(0);  // and read from there
    w.narrow(x);
    if (sR.taken == 0) {
      keys();
      earlier_done();
    }
    const float* gRow = gRows + w.first_block() * 2 * M;
#pragma unroll 1
    for (int i = x.first; x.count > 0; --x.count, ++sR.turn, gRow += 2 * M) {
      const Stage<STAGES> at = nth_stage(sR.turn);
      producer_acquire(sR.q, at, X::QUERIES + ROWS);
      bring<X::PANELS>(sX + X::Q + at.index * X::QUERIES, X::QUERY_PANEL, tQ, &sR.q.full[at.index], x.i_h, i * M, w.of_q(x));
      bulk_load(sX + X::LSE + at.index * ROWS, gRow, ROWS, &sR.q.full[at.index]);
      producer_acquire(sR.dout, at, X::QUERIES + ROWS);
      bring<X::PANELS>(sX + X::DOUT + at.index * X::QUERIES, X::QUERY_PANEL, tDout, &sR.dout.full[at.index], x.i_h, i * M, w.of_q(x));
      bulk_load(sX + X::DELTA + at.index * ROWS, gRow + M, ROWS, &sR.dout.full[at.index]);
      if (sR.n != sR.taken) keys();
      if (++i == x.blocks) i = x.first, ++x.i_h, gRow += w.between(x, x.blocks) * 2 * M;  // the next head's, which lie behind this one's
    }
    sR.i_next = w.next(gTaken, false);
    if constexpr (W::ROUNDS) {  // an earlier head's sums come behind the queries, by the same rings: most are there when the last product is
      const int i_bh = x.i_bh - earlier.back, share = i_bh < 0 ? 0 : anew(w.group) * w.blocks;
      if (x.i_tile < share) {
        while (load_acquire(earlier.gAdded + i_bh) != int(2 * anew(w.tiles))) spin_pause();
        fence_async_global();  // this thread has read the number, but it is the engine that reads the sums
      }
#pragma unroll 1
      for (int i = x.i_tile; i < share; i += w.tiles, ++sR.turn) {
        const Stage<STAGES> at = nth_stage(sR.turn);
        const float* gHalf = gDq + ((long long)i_bh * w.blocks + i) * 2 * HALF;
        producer_acquire(sR.q, at, HALF_BYTES);
        bulk_load(sX + X::Q + at.index * HALF_BYTES, gHalf, HALF_BYTES, &sR.q.full[at.index]);
        producer_acquire(sR.dout, at, HALF_BYTES);
        bulk_load(sX + X::DOUT + at.index * HALF_BYTES, gHalf + HALF, HALF_BYTES, &sR.dout.full[at.index]);
      }
    }
  }
  producer_acquire(sR.v, nth_stage<1>(sR.taken));
  mbarrier_arrive(&sR.v.full[0]);
}

// One thread: a warpgroup's halves of dQ, added in global memory while both multiply on.
template <bool ORDERED, class T, class W>
ROOFTILE_DEVICE void drain(float* gDq, int* gTurn, const Earlier<T>& earlier, const char* sDq, Rings& sR, W w, int half) {
  constexpr int HALF = W::X::HALF, HALF_BYTES = W::X::HALF_BYTES;
  earlier_done();
  for (unsigned n = 0, step = 0;; ++n) {
    consumer_wait(sR.v, nth_stage<1>(n));
    const unsigned end = sR.end;
    if (step == end) return;
    const int blocks = sR.blocks;
    w.begin(sR, sR.keys[n % 2]);
    mbarrier_arrive(&sR.v.empty[0]);
    if constexpr (W::CLEARS) {
      if (w.i_bh >= int(anew(earlier.ahead))) {
        const int shares = min(anew(earlier.clearing), anew(w.group) * anew(w.blocks));
        while (load_acquire(earlier.gAdded + (w.i_bh + anew(earlier.heads))) != shares) spin_pause();
      }
    }
    int i_half = 2 * int(w.first_block()) + half;  // of all there are
#pragma unroll 1
    for (int i = w.first; step < end; ++step, i_half += 2) {
      const Stage<1> at = nth_stage<1>(step);
      consumer_wait(sR.dq[half], at);
      if (ORDERED)
        while (load_acquire(gTurn + i_half) != w.before(i)) spin_pause();
      bulk_add(gDq + (long long)i_half * HALF, reinterpret_cast<const float*>(sDq), HALF_BYTES);
      bulk_commit();
      bulk_wait_read<0>();
      mbarrier_arrive(&sR.dq[half].empty[0]);
      if (ORDERED) {
        bulk_wait<0>();
        fence_async_global();
        store_release(gTurn + i_half, w.before(i) + 1);
      }
      if (++i == blocks) i = w.first, i_half += w.between(w, blocks) * 2;
    }
    if constexpr (W::ROUNDS) {  // once a tile: a fence in each step costs more than all that it is for
      bulk_wait<0>();            // carried out, all of them: to have read shared memory is not enough
      fence_async_global();      // the engine has added, but it is this thread that says so
      __threadfence();
      atomicAdd(earlier.gAdded + w.i_bh, 1);
    }
  }
}

// A warp: zeros for later heads, a tile's share of which is block i_tile and every `clearing`-th behind it. Who adds to them waits, and was dealt out after all
// who clear; the launcher has it so near behind them that the L2 still has the zeros, and so far that there is no wait. Where nothing hurries the
// warp it takes its time: in a burst, they hold up the queries.
template <class T, class W> ROOFTILE_DEVICE void clear_later(float* gDq, const Earlier<T>& earlier, Rings& sR, const W& w) {
  constexpr int HALF = W::X::HALF;
  Vec<float, 4> zeros;
  fill(zeros, 0.0f);
  earlier_done();
  for (unsigned n = 0, end = 0;; ++n) {
    consumer_wait(sR.v, nth_stage<1>(n));
    if (end == sR.end) return;
    end = sR.end;
    const unsigned i_bh = sR.keys[n % 2].i_bh + anew(earlier.ahead), share = i_bh < anew(earlier.heads) ? anew(w.group) * anew(w.blocks) : 0;
    unsigned i = sR.keys[n % 2].i_tile;
    consumer_release(sR.v, nth_stage<1>(n));
    if (i >= min(share, anew(earlier.clearing))) continue;
#pragma unroll 1
    for (; i < share; i += anew(earlier.clearing)) {
      float* gMine = gDq + ((long long)i_bh * anew(w.blocks) + i) * 2 * HALF + lane() * 4;
#pragma unroll 4
      for (int k = 0; k < 2 * HALF; k += 4 * WARP) {
        if constexpr (W::UNHURRIED) spin_pause();
        store_global(gMine + k, zeros);
      }
    }
    fence_async_global();  // it is an engine that adds
    __syncwarp();
    if (lane() > 0) continue;
    __threadfence();  // for all lanes, by the one that says so
    atomicAdd(earlier.gAdded + (i_bh + anew(earlier.heads)), 1);
  }
}

// ---- the two that multiply ---------------------------------------------------------------------------------------------------

template <int R, int K> ROOFTILE_DEVICE void fence(float (&d)[R], unsigned (&a)[K][4]) {
#pragma unroll
  for (int k = 0; k < K; ++k) pin(a[k]);
  wgmma_fence(d);
}

template <typename T, int N, Major A = K_MAJOR> ROOFTILE_DEVICE void product(float (&d)[N / 2], const Matrix& a, const Matrix& b, bool more) {
  if constexpr (N == 80)
    wgmma_80<T, A>(d, a, b, more);
  else
    wgmma<T, N, A>(d, a, b, more);
}

// d[64 keys, 2 R queries] = A B^T, both K-major along D.
template <typename T, class X, int R> ROOFTILE_DEVICE void scores(float (&d)[R], const Matrix& a, const Matrix& b) {
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < X::D / 16; ++k) product<T, 2 * R>(d, a + (k / 4 * X::KEY_PANEL + k % 4 * 32), b + (k / 4 * X::QUERY_PANEL + k % 4 * 32), k > 0);
  wgmma_commit();
}

// d[64 keys, D] += A B: A [64 keys, BLOCK_M queries] in registers, B the queries' tile as it lies.
template <typename T, int D, int K> ROOFTILE_DEVICE void gradient(float (&d)[D / 2], unsigned (&a)[K][4], const Matrix& b) {
  fence(d, a);
#pragma unroll
  for (int k = 0; k < K; ++k) wgmma<T, D, MN_MAJOR>(d, a[k], b + k * 16 * LINE, true);
  wgmma_commit();
}

// d[64 of D, N queries] = K^T dS^T over the tile's 128 keys: K as it lies, dS a query a line, 64 keys a panel.
template <typename T, class X> ROOFTILE_DEVICE void queries(float (&d)[X::N / 2], const Matrix& a, const Matrix& b) {
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < BLOCK_N / 16; ++k) product<T, X::N, MN_MAJOR>(d, a + k * 16 * LINE, b + (k / 4 * X::QUERY_PANEL + k % 4 * 32), k > 0);
  wgmma_commit();
}

// store_matrices with rows for columns: lane 8 i + r brings the address of column r of matrix i.
ROOFTILE_DEVICE void store_transposed(void* sColumn, const unsigned (&a)[4]) {
#ifdef ROOFTILE_SIMULATOR
  struct Words { unsigned of[4]; };
  Words mine{{a[0], a[1], a[2], a[3]}}, all[WARP];
  rooftile_sim_exchange(ALL_LANES, &mine, sizeof mine, all, "stmatrix");
  const int l = int(rooftile_sim_lane()), i = l / 8, column = l % 8;
  unsigned word[4];
  for (int r = 0; r < 8; r += 2) {
    const unsigned low = all[4 * r + column / 2].of[i] >> column % 2 * 16 & 0xffff, high = all[4 * r + 4 + column / 2].of[i] >> column % 2 * 16 & 0xffff;
    word[r / 2] = low | high << 16;
  }
  *static_cast<uint4*>(sColumn) = make_uint4(word[0], word[1], word[2], word[3]);
#else
  ROOFTILE_SM90("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(sColumn)), "r"(a[0]), "r"(a[1]), "r"(a[2]),
                "r"(a[3])
                : "memory");
#endif
}
// A warp's 16 rows of D, 16 K columns as wgmma_operand makes them, into lines of 64 of the warpgroup's rows, a column a line.
template <int K> ROOFTILE_DEVICE void store_columns(char* sX, const unsigned (&a)[K][4]) {
  char* sMine = sX + swizzled<128>((lane() / 16 * 8 + lane() % 8) * LINE + warp() % 4 * 32 + lane() / 8 % 2 * 16);
#pragma unroll
  for (int k = 0; k < K; ++k) store_transposed(sMine + k * 16 * LINE, a[k]);
}

// Zeros in a warpgroup's lines of dS.
template <int LINES> ROOFTILE_DEVICE void no_columns(char* sX) {
  float4* sMine = reinterpret_cast<float4*>(sX) + threadIdx.x % 128;
#pragma unroll
  for (int k = 0; k < LINES / 16; ++k) sMine[k * 128] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// lse or delta of this thread's queries. The first EARLY pairs are read before the products that are waited for, as registers allow: shared memory
// answers late while products read it.
template <int EARLY> struct Columns {
  const float2* sMine;
  float2 first[EARLY];
  ROOFTILE_DEVICE explicit Columns(const float* sRow) : sMine(reinterpret_cast<const float2*>(sRow + column_of(anew(threadIdx.x)))) {
#pragma unroll
    for (int i = 0; i < EARLY; ++i) first[i] = sMine[4 * i];
  }
  ROOFTILE_DEVICE float2 of(int i) const { return i < EARLY ? first[i < EARLY ? i : 0] : sMine[4 * i]; }
};

// p = 2^(s scale - lse) in place; a query past T has lse = inf and so no weight.
template <int R, int EARLY> ROOFTILE_DEVICE void weights(float (&s)[R], const Columns<EARLY>& lse, float scale_log2) {
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const float2 of = lse.of(i / 4);
    s[i] = exp2_fast(fmaf(s[i], scale_log2, i % 2 ? -of.y : -of.x));
  }
}

// Of capped scores, s' = cap tanh(s scale / cap): p in place and, as halves two a word, 1 - tanh², by which a score's gradient is less than its capped one's.
// `twice` is 2 log2(e) scale / cap, cap_log2 to base 2. tanh x = 1 - 2 / (1 + e^2x).
template <int R, int EARLY> ROOFTILE_DEVICE void capped_weights(float (&s)[R], unsigned (&slopes)[R / 2], const Columns<EARLY>& lse, float twice, float cap_log2) {
#pragma unroll
  for (int i = 0; i < R; i += 4) {
    const float2 of = lse.of(i / 4);
#pragma unroll
    for (int j = i; j < i + 4; j += 2) {
      const float a = fmaf(-2.0f, reciprocal(1.0f + exp2_fast(s[j] * twice)), 1.0f), b = fmaf(-2.0f, reciprocal(1.0f + exp2_fast(s[j + 1] * twice)), 1.0f);
      s[j] = exp2_fast(fmaf(a, cap_log2, -of.x)), s[j + 1] = exp2_fast(fmaf(b, cap_log2, -of.y));
      slopes[j / 2] = pack_pair(__half(), fmaf(-a, a, 1.0f), fmaf(-b, b, 1.0f));
    }
  }
}
template <int R> ROOFTILE_DEVICE void sloped(float (&s)[R], const unsigned (&slopes)[R / 2]) {
#pragma unroll
  for (int j = 0; j < R; j += 2) {
    const float2 slope = unpack_pair(__half(), slopes[j / 2]);
    s[j] *= slope.x, s[j + 1] *= slope.y;
  }
}

template <typename T, int FIRST = 0, int R> ROOFTILE_DEVICE void operands(unsigned (&a)[R / 8][4], const float (&d)[R]) {
#pragma unroll
  for (int k = FIRST; k < R / 8; ++k) wgmma_operand<T>(a[k], d, k);
}
// As in fragments.cuh, for words that are not operands yet.
template <int R> ROOFTILE_DEVICE void finish_first(const float (&s)[R]) {
  unsigned last[1][4] = {};
#pragma unroll
  for (int i = 0; i < R; ++i) last[0][1] |= __float_as_uint(s[i]);
  finish_first(last);
}

// dS = P (dP - delta), two at a time as operands; of P the operands from WHOLE on are there already, and stand for what they were made of.
template <typename T, int WHOLE, int R, int EARLY>
ROOFTILE_DEVICE void score_gradients(unsigned (&ds)[R / 8][4], const float (&p)[R], const unsigned (&p16)[R / 8][4], const float (&dp)[R],
                                     const Columns<EARLY>& rows) {
#pragma unroll
  for (int i = 0; i < R; i += 4) {
    const float2 delta = rows.of(i / 4);
#pragma unroll
    for (int j = i; j < i + 4; j += 2) {
      const float2 of = j / 8 < WHOLE ? make_float2(p[j], p[j + 1]) : unpack_pair(T(), p16[j / 8][j / 2 % 4]);
      ds[j / 8][j / 2 % 4] = pack_pair(T(), of.x * (dp[j] - delta.x), of.y * (dp[j + 1] - delta.y));
    }
  }
}

// A warpgroup's 64 rows of dK or dV, which lie in shared memory as tiles do.
template <typename T, int D, class W> ROOFTILE_DEVICE void put(const TensorMap& map, const char* sX, const Keys& keys, const W&, int half) {
  using X = typename W::X;
  if (threadIdx.x % 128 == 0) {
#pragma unroll
    for (int p = 0; p < X::PANELS; ++p)
      tensor_store(map, sX + p * X::KEY_PANEL + half * 64 * LINE, p * 64, keys.i_g, keys.i_tile * BLOCK_N + half * 64, keys.i_b);
    bulk_commit();
  }
}

// The same where the last rows of a tile may be another sequence's. What is past the keys that a sequence was said to have at most is NaN.
template <typename T> struct Rows {
  T* g;
  int G;
};
template <typename T, int D, class W> ROOFTILE_DEVICE void put(const Rows<T>& to, const char* sX, const Keys&, const W& w, int half) {
  using X = typename W::X;
#pragma unroll
  for (int i = threadIdx.x % 128; i < 64 * D / 8; i += 128) {
    const int row = half * 64 + i / (D / 8), column = i % (D / 8) * 8;
    Wide<T> r;
    load(r, reinterpret_cast<const T*>(sX + column / 64 * X::KEY_PANEL + swizzled<128>(row * LINE + column % 64 * 2)));
    if (row >= w.sBand->most) fill(r, T(__int_as_float(0x7fc00000)));
    if (row < w.sBand->keys) store_global(to.g + w.sBand->at + (long long)row * to.G * D + column, r);
  }
}

// Of several walks over a tile: sums in float32, which nobody has scaled, as threads hold them.
struct Sums {
  float* g;  // [tiles of all, G, warpgroup, D / 8 times 4 of each of 128 threads]
};
template <class Out> constexpr bool ADDS = false;
template <> constexpr bool ADDS<Sums> = true;

template <typename T, int D, class Out, class W>
ROOFTILE_DEVICE void store_keys(const Out& to, char* sX, float (&d)[D / 2], float scale, const Keys& keys, const W& w, int half) {
  using X = typename W::X;
  if constexpr (ADDS<Out>) {
    float* gMine = to.g + (w.sums(keys) * 2ll + half) * 64 * D + anew(threadIdx.x) % 128 * 4;
#pragma unroll
    for (int k = 0; k < D / 8; ++k) add_four(gMine + k * 512, d[4 * k], d[4 * k + 1], d[4 * k + 2], d[4 * k + 3]);
  } else {
    unsigned out[D / 16][4];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) d[i] *= scale;
    operands<T>(out, d);
    store_operand(sX, X::KEY_PANEL, half * 64 + anew(threadIdx.x) / WARP % 4 * 16, out);
    fence_async();
    barrier_sync(2 + half, 128);
    put<T, D>(to, sX, keys, w, half);
  }
}

// dQ of this step's queries as this thread holds it, where `drain` takes it.
template <int R> ROOFTILE_DEVICE void hand_over(char* sHalf, Pipeline<1>& sRing, int step, const float (&dq)[R]) {
  const Stage<1> at = nth_stage<1>(step);
  producer_acquire(sRing, at);
  float4* sDq = reinterpret_cast<float4*>(sHalf) + threadIdx.x % 128;
#pragma unroll
  for (int k = 0; k < R / 4; ++k) sDq[k * 128] = make_float4(dq[4 * k], dq[4 * k + 1], dq[4 * k + 2], dq[4 * k + 3]);
  fence_async();
  __syncwarp();
  if (lane() == 0) producer_commit(sRing, at);
}

// Eight queries of a half of dQ, a warp's: from the order of threads, of which four floats of each of 4 x 32 are theirs, rounded; to 1 KiB of shared memory;
// and after a __syncwarp from there to their rows, of which there may be fewer.
template <typename T> ROOFTILE_DEVICE void round_eight(unsigned (&rounded)[2][4], const float* mine, float scale, int i_lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    Vec<float, 4> r;
    load(r, mine + i * 128 + i_lane * 4);
    rounded[i / 2][i % 2 * 2] = pack_pair(T(), r[0] * scale, r[1] * scale), rounded[i / 2][i % 2 * 2 + 1] = pack_pair(T(), r[2] * scale, r[3] * scale);
  }
}
ROOFTILE_DEVICE void leave_eight(char* sMine, const unsigned (&rounded)[2][4], int i_lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) store_transposed(sMine + swizzled<128>(i_lane % 8 * LINE + i * 64 + i_lane / 8 * 16), rounded[i]);
}
template <bool TURNED, typename T>
ROOFTILE_DEVICE void store_eight(T* gRow, long long stride, int rows, const char* sMine, int i_lane, const Tables& tables, int i_t) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = i * 4 + i_lane / 8, column = i_lane % 8 * 8;
    Wide<T> r;
    load(r, reinterpret_cast<const T*>(sMine + swizzled<128>(row * LINE + column * 2)));
    if constexpr (TURNED) {  // rounded numbers, as rope would find them
      if (row >= rows) continue;
      const float sign = column < 32 ? 1.0f : -1.0f;
      const long long at = (i_t + row) * 32ll + column % 32;
      Wide<T> other;
      load(other, reinterpret_cast<const T*>(sMine + swizzled<128>(row * LINE + (column ^ 32) * 2)));
#pragma unroll
      for (int k = 0; k < 8; k += 4) {
        Vec<float, 4> cosine, sine;
        load(cosine, tables.gCos + at + k);
        load(sine, tables.gSin + at + k);
#pragma unroll
        for (int j = 0; j < 4; ++j) r[k + j] = T(float(r[k + j]) * cosine[j] + sign * float(other[k + j]) * sine[j]);
      }
    }
    if (row < rows) store_global(gRow + row * stride + column, r);
  }
}

// The tile's share of an earlier head, a block of queries a step: a stage of each ring has a half. They pass through sX, a panel of dS a warpgroup.
template <bool TURNED, typename T, class W>
ROOFTILE_DEVICE void round_earlier(const Earlier<T>& earlier, char* sX, char* sDs, Rings& sR, unsigned& turn, const Keys& keys, const W& w, float scale) {
  using X = typename W::X;
  constexpr int EIGHTS = X::N / 8;  // of a half: of 80 queries two warps have two
  const int i_bh = keys.i_bh - earlier.back;
  int heads = i_bh < 0 ? 0 : w.group, i = keys.i_tile;
  if (i >= heads * w.blocks) return;
  const unsigned i_thread = anew(threadIdx.x);
  const int eight = i_thread / WARP, i_lane = i_thread % WARP, T_ = w.T;
  char *sMine = sDs + eight / 4 * X::QUERY_PANEL + eight % 4 * 8 * LINE, *sOther = sMine + 32 * LINE;
  const long long stride = earlier.stride_t;
  T* gRow = head(earlier.g, earlier.stride_b, stride, earlier.stride_h, i_bh, earlier.H)[eight * 8];  // of the head's first block
  for (;; i += w.tiles, ++turn) {
    for (; i >= w.blocks; i -= w.blocks) --heads, gRow += earlier.stride_h;
    if (heads <= 0) break;
    const Stage<STAGES> at = nth_stage(turn);
    const int mine = at.index * X::HALF_BYTES / 4 + eight * 512;
    consumer_wait(sR.q, at);
    if constexpr (EIGHTS > 8) consumer_wait(sR.dout, at);
#pragma unroll
    for (int more = 0; more < EIGHTS; more += 8) {
      const bool has = more + 8 <= EIGHTS || eight < EIGHTS - more;
      unsigned rounded[2][4];
      if (has) {
        round_eight<T>(rounded, reinterpret_cast<const float*>(sX + X::Q) + mine + more * 512, scale, i_lane);
        leave_eight(sMine, rounded, i_lane);
        if constexpr (EIGHTS <= 8) consumer_wait(sR.dout, at);
        round_eight<T>(rounded, reinterpret_cast<const float*>(sX + X::DOUT) + mine + more * 512, scale, i_lane);
        leave_eight(sOther, rounded, i_lane);
      }
      if (more + 8 >= EIGHTS) {
        consumer_release(sR.q, at);
        consumer_release(sR.dout, at);
      } else
        __syncwarp();
      if (has) {
        const int i_t = i * X::BLOCK_M + more * 8, rows = T_ - i_t - eight * 8;
        store_eight<TURNED>(gRow + i_t * stride, stride, rows, sMine, i_lane, earlier.tables, i_t + eight * 8);
        store_eight<TURNED>(gRow + i_t * stride + (X::D == 64 ? 64 * stride : 64), stride, rows - (X::D == 64) * 64, sOther, i_lane, earlier.tables,
                            i_t + eight * 8 + 64);
      }
      __syncwarp();  // the next ones go where these lie
    }
  }
  barrier_sync(2 + eight / 4, 128);  // or the others' dS
}

// dK in registers, turned back: a thread has both numbers of a pair. The block's rows are from i_s on; those past S are not stored.
template <int D> ROOFTILE_DEVICE void turn_back(float (&dk)[D / 2], const Tables& tables, int i_s, int S) {
  const unsigned i_thread = anew(threadIdx.x);
  const int column = column_of(i_thread);
  i_s += i_thread / 128 * 64 + row_of(i_thread);
#pragma unroll
  for (int i = 0; i < D / 4; i += 2) {
    const long long at = min(i_s + i / 2 % 2 * 8, S - 1) * (D / 2ll) + i / 4 * 8 + column;
    Vec<float, 2> cosine, sine;
    load(cosine, tables.gCos + at);
    load(sine, tables.gSin + at);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float &a = dk[i + j], &b = dk[i + j + D / 4];
      const float from = a;
      a = from * cosine[j] + b * sine[j], b = b * cosine[j] - from * sine[j];
    }
  }
}

// A walk's first step where no query sees a key of this half: dS of zeros for dQ, nothing else. It waits for no queries: their stages were free, for all, before
// the tile's keys came, and the next step waits for the other half's dS of this one.
template <class X> ROOFTILE_DEVICE void pass_by(char* sDs, Rings& sR, unsigned step, unsigned turn) {
  const Stage<STAGES> at = nth_stage(turn);
  no_columns<X::BLOCK_M>(sDs);
  fence_async();
  consumer_release(sR.dout, at);
  if (lane() == 0) producer_commit(sR.ds, nth_stage(step));
  consumer_release(sR.q, at);
}

// A product under way across the loop's back edge makes the assembler run all of them one by one: the body ends with a wait for everything. The two
// warpgroups do not meet: a step stores its dS and makes dQ of the one before, whose other half was stored a step ago. dV is queued when dS is stored, so
// that it runs beside that dQ's way through the ring.
template <typename T, int D, bool ORDERED, bool TURNED, class Out, class W>
ROOFTILE_DEVICE void multiply(const Out& dk_to, const Out& dv_to, const Earlier<T>& earlier, char* sX, Rings& sR, W w, int half, float scale,
                              float scale_log2) {
  using X = typename W::X;
  constexpr int M = X::BLOCK_M, EARLY = M == 64 && !W::CAPS ? 8 : 4, DS_STAGES = X::DS_STAGES, DS_BYTES = 2 * X::QUERY_PANEL;
  char *sK = sX + X::K, *sV = sX + X::V, *sDq = sX + X::DQ + half * X::HALF_BYTES;
  const Matrix keys = k_major<128>(sK + half * 64 * LINE), values = k_major<128>(sV + half * 64 * LINE);
  const Matrix queries_by_d = k_major<128>(sX + X::Q), d_by_queries = mn_major<128>(sX + X::Q, X::QUERY_PANEL);
  const Matrix dout_by_d = k_major<128>(sX + X::DOUT), d_by_dout = mn_major<128>(sX + X::DOUT, X::QUERY_PANEL);
  const Matrix d_by_keys = mn_major<128>(sK + (D == 128) * half * X::KEY_PANEL, 0), ds = k_major<128>(sX + (D == 64) * half * 64 * LINE);
  float s[M / 2];
  for (unsigned n = 0, step = 0, turn = 0;; ++n) {  // turn: of q and dout, by which come the shares of earlier heads too
    consumer_wait(sR.v, nth_stage<1>(n));
    if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // before anyone's dS comes where dK and dV of the tile before lay
    if (step == sR.end) break;
    consumer_wait(sR.k, nth_stage<1>(n));
    float dk[D / 2] = {}, dv[D / 2] = {};
    if constexpr (M == 80) turn = uniform(turn);  // as round_earlier branches by warps, it would lie in a register, and be brought from there for 26 descriptors
    const unsigned begin = step;
    int i = sR.first;
    // A step; whether it was the walk's last.
    const auto go = [&](auto from, auto& s) __attribute__((always_inline)) {
      constexpr int FROM = decltype(from)::query, L = M - FROM;
      constexpr int WHOLE = W::LATE < L / 16 ? W::LATE : L / 16;
      const Stage<STAGES> at = nth_stage(turn);
      float dp[L / 2], dq[X::N / 2];
      unsigned p16[L / 16][4], ds16[L / 16][4];
      const int at_q = at.index * X::QUERIES + FROM * LINE;
      scores<T, X>(s, keys, queries_by_d + at_q);
      const Columns<EARLY> lse(reinterpret_cast<const float*>(sX + X::LSE) + at.index * M + FROM);
      consumer_wait(sR.dout, at);
      scores<T, X>(dp, values, dout_by_d + at_q);
      wgmma_wait<1>(s);
      unsigned slopes[W::CAPS ? L / 4 : 1];
      if constexpr (W::CAPS)
        capped_weights(s, slopes, lse, scale_log2, w.cap_log2);
      else
        weights(s, lse, scale_log2);
      w.mask(s, sR, half, i, FROM);
      const Columns<EARLY> delta(reinterpret_cast<const float*>(sX + X::DELTA) + at.index * M + FROM);
      operands<T, W::CAPS ? 0 : WHOLE>(p16, s);
      if constexpr (W::CAPS) sloped(s, slopes);
      finish_first(s);
      wgmma_wait<0>(dp);
      score_gradients<T, WHOLE>(ds16, s, p16, dp, delta);
#pragma unroll
      for (int k = 0; k < (W::CAPS ? 0 : WHOLE); ++k) wgmma_operand<T>(p16[k], s, k);
      const bool more = step > begin;
      if (DS_STAGES == 2 && more) consumer_wait(sR.ds, nth_stage(step - 1));  // who tells of that one has read the one before, where this goes
      char* sDs = sX + X::DS + step % DS_STAGES * DS_BYTES + half * X::QUERY_PANEL;
      if constexpr (FROM > 0) no_columns<FROM>(sDs);
      store_columns(sDs + FROM * LINE, ds16);
      gradient<T, D>(dv, p16, d_by_dout + at_q);
      fence_async();
      if (DS_STAGES == 3 && more) consumer_wait(sR.ds, nth_stage(step - 1));
      // else of something finite: what comes of it is not handed over
      if constexpr (FROM == 0) queries<T, X>(dq, d_by_keys, ds + int(more ? X::DS + (step - 1) % DS_STAGES * DS_BYTES : 0));
      gradient<T, D>(dk, ds16, d_by_queries + at_q);
      wgmma_wait<1>(dq);
      consumer_release(sR.dout, at);
      if (lane() == 0) producer_commit(sR.ds, nth_stage(step));  // this step's dS is there, as the warp has met for dout; the one before's has been read
      if (more) hand_over(sDq, sR.dq[half], step - 1, dq);
      const int first = sR.first, blocks = sR.blocks;  // while the last product runs
      const bool ends = anew(++step) == (W::ENDS ? sR.ends[half] : sR.end);
      ++turn;
      if (++i == blocks) i = first;
      if (!ends) consumer_wait(sR.q, nth_stage(turn));
      wgmma_wait<0>(s, dk, dv);  // s: or the next step's would get other registers
      // This step's dS is there, seen by the warp since dout's release; the one before's has been read.
      consumer_release(sR.q, at);
      return ends;
    };
    // With what a walk's first queries do not see. Of heads that share keys for the first one alone: a branch in the loop spills.
    if (W::CUTS && w.unseen(sR, half, i) >= (D == 64 ? 64 : M) && step + 1 != sR.end) {
      if constexpr (D == 64) {
        float part[M / 4];
        consumer_wait(sR.q, nth_stage(turn));
        go(From<M / 2>(), part);
      } else {
        pass_by<X>(sX + X::DS + step % DS_STAGES * DS_BYTES + half * X::QUERY_PANEL, sR, step, turn);
        ++step, ++turn;
        if (++i == sR.blocks) i = sR.first;
      }
    }
    if constexpr (W::CUTS) step = uniform(step);
    consumer_wait(sR.q, nth_stage(turn));
    while (!go(From<0>(), s)) continue;
    n = sR.n;
    const Stage<1> at_keys = nth_stage<1>(n);
    const Keys& tile = sR.keys[n % 2];
    float dq[X::N / 2];
    if constexpr (X::APART) consumer_release(sR.v, at_keys);
    const auto last = [&](int at_ds) __attribute__((always_inline)) {
      consumer_wait(sR.ds, nth_stage(step - 1));
      queries<T, X>(dq, d_by_keys, ds + at_ds);
      wgmma_wait<0>(dq);
      if constexpr (X::APART) consumer_release(sR.k, at_keys);
      hand_over(sDq, sR.dq[half], step - 1, dq);
    };
    if (W::ENDS && step != sR.end) {
      last(X::DS + (step - 1) % DS_STAGES * DS_BYTES);
      pass_by<X>(sX + X::DS + step % DS_STAGES * DS_BYTES + half * X::QUERY_PANEL, sR, step, turn);
      ++step, ++turn;
    }
    const int at_ds = X::DS + (step - 1) % DS_STAGES * DS_BYTES;
    last(at_ds);
    if constexpr (X::APART) barrier_sync(2 + half, 128);  // of dS a warpgroup reads the lines that its dK and dV come to
    store_keys<T, D>(dv_to, X::APART ? sX + at_ds : sV, dv, 1.0f, tile, w, half);
    if constexpr (TURNED) turn_back<D>(dk, earlier.tables, tile.i_tile * BLOCK_N, w.S);
    if constexpr (!X::APART) barrier_sync(1, 256);  // both read all of K
    store_keys<T, D>(dk_to, X::APART ? sX + at_ds + X::QUERY_PANEL : sK, dk, scale, tile, w, half);
    if constexpr (!X::APART) {
      if (threadIdx.x % 128 == 0) bulk_wait_read<0>();
      consumer_release(sR.v, at_keys);
      consumer_release(sR.k, at_keys);
    }
    if constexpr (W::ROUNDS) round_earlier<TURNED, T>(earlier, sX, sX + X::DS + (step + 1) % X::DS_STAGES * DS_BYTES, sR, turn, tile, w, scale);
  }
}

// ---- the kernels -------------------------------------------------------------------------------------------------------------

template <typename T, int D, bool ORDERED, bool TURNED, class Out, class W>
ROOFTILE_DEVICE void tile_of_keys(const Out& dk_to, const Out& dv_to, const Earlier<T>& earlier, const TensorMap& tQ, const TensorMap& tK,
                                  const TensorMap& tV, const TensorMap& tDout, float* gDq, int* gTurn, int* gTaken, const float* gRows, char* sX,
                                  Rings& sR, const W& w, float scale, float scale_log2) {
  if (threadIdx.x == 0) {
    let_next_stand_by();
    pipeline_init(sR.k, 1, 8);
    pipeline_init(sR.v, 1, 8 + 2 + W::CLEARS);  // and those who drain, and who clears
    pipeline_init(sR.q, 1, 8);
    pipeline_init(sR.dout, 1, 8);
    pipeline_init(sR.ds, 8, 1);
    for (int half = 0; half < 2; ++half) pipeline_init(sR.dq[half], 4, 1);
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    registers_lower<24>();  // three warpgroups have 3 x 168 to share
    const int i_warp = (threadIdx.x - 256) / WARP;
    if (threadIdx.x == 256) produce(sX, sR, tQ, tK, tV, tDout, gRows, gDq, gTaken, earlier, w);
    if (threadIdx.x == 256 + WARP || threadIdx.x == 256 + 2 * WARP)
      drain<ORDERED>(gDq, gTurn, earlier, sX + W::X::DQ + (i_warp - 1) * W::X::HALF_BYTES, sR, w, i_warp - 1);
    if constexpr (W::CLEARS)
      if (i_warp == 3) clear_later(gDq, earlier, sR, w);
  } else {
    registers_raise<240>();
    multiply<T, D, ORDERED, TURNED>(dk_to, dv_to, earlier, uniform(sX), *uniform(&sR), w, uniform(threadIdx.x / 128), scale, scale_log2);
  }
}

template <typename T, int D, bool CAUSAL, bool ORDERED, bool TURNED = false, int M = 8192 / D, bool SUMMED = false>
__global__ void ROOFTILE_EARLY __launch_bounds__(384, 1)
    attention_backward(const __grid_constant__ TensorMap tDk, const __grid_constant__ TensorMap tDv, const __grid_constant__ TensorMap tQ,
                       const __grid_constant__ TensorMap tK, const __grid_constant__ TensorMap tV, const __grid_constant__ TensorMap tDout, T* gOut,
                       float* gDq, float* gDk, float* gDv, int* gTurn, int* gAdded, const float* gRows, int G, int walks, int group, int T_, int S, int blocks,
                       int tiles, int together, int all, int heads, int back, int ahead, int clearing, long long stride_b, long long stride_t,
                       long long stride_h, float scale, float scale_log2, const float* gCos, const float* gSin) {
  static_assert(!TURNED || (D == 64 && !SUMMED), "a pair's numbers lie in one line of shared memory, or one thread");
  static_assert(!(ORDERED && SUMMED), "walks over a tile add in any order");
  extern __shared__ __align__(1024) char sX[];
  __shared__ Rings sR;
  const Plain<Tile<D, M>, CAUSAL ? Sees::EARLIER : Sees::ALL, ORDERED> w(G, walks, group, T_, S, blocks, tiles, together, all);
  const Earlier<T> earlier{gOut, stride_b, stride_t, stride_h, gAdded + 1, G * walks * group, heads, back, ahead, clearing, {gCos, gSin}};
  if constexpr (SUMMED)
    tile_of_keys<T, D, ORDERED, TURNED>(Sums{gDk}, Sums{gDv}, earlier, tQ, tK, tV, tDout, gDq, gTurn, gAdded, gRows, sX, sR, w, scale, scale_log2);
  else
    tile_of_keys<T, D, ORDERED, TURNED>(tDk, tDv, earlier, tQ, tK, tV, tDout, gDq, gTurn, gAdded, gRows, sX, sR, w, scale, scale_log2);
}

// The same in a window, of scores that a cap may bound, and of what a mask's bits let through. Who adds several walks over a tile has windows that no query
// passes.
template <typename T, int D, bool ORDERED, int M = 8192 / D, bool SUMMED = false, bool CAPS = false, bool BITS = false>
__global__ void ROOFTILE_EARLY __launch_bounds__(384, 1)
    attention_backward_windowed(const __grid_constant__ TensorMap tDk, const __grid_constant__ TensorMap tDv, const __grid_constant__ TensorMap tQ,
                                const __grid_constant__ TensorMap tK, const __grid_constant__ TensorMap tV, const __grid_constant__ TensorMap tDout, T* gOut,
                                float* gDq, float* gDk, float* gDv, int* gTurn, int* gAdded, const float* gRows, int G, int walks, int group, int T_, int S,
                                int blocks, int tiles, int together, int all, int heads, int back, int ahead, int clearing, long long stride_b,
                                long long stride_t, long long stride_h, float scale, float scale_log2, float cap_log2, int left, int right,
                                const uint2* gBits, const int2* gSpans, int masks_b, int masks_h) {
  static_assert(!(ORDERED && SUMMED), "walks over a tile add in any order");
  extern __shared__ __align__(1024) char sX[];
  __shared__ Rings sR;
  static_assert(!(BITS && M == 80), "a block of queries lies in one block of bits");
  Plain<Tile<D, M>, Sees::WINDOW, ORDERED, CAPS, !SUMMED, BITS> w(G, walks, group, T_, S, blocks, tiles, together, all);
  w.left = left, w.right = right, w.cap_log2 = cap_log2, w.gBits = gBits, w.gSpans = gSpans;
  w.masks_b = masks_b, w.masks_h = masks_h;
  const Earlier<T> earlier{gOut, stride_b, stride_t, stride_h, gAdded + 1, G * walks * group, heads, back, ahead, clearing, {}};
  if constexpr (SUMMED)
    tile_of_keys<T, D, ORDERED, false>(Sums{gDk}, Sums{gDv}, earlier, tQ, tK, tV, tDout, gDq, gTurn, gAdded, gRows, sX, sR, w, scale, scale_log2);
  else
    tile_of_keys<T, D, ORDERED, false>(tDk, tDv, earlier, tQ, tK, tV, tDout, gDq, gTurn, gAdded, gRows, sX, sR, w, scale, scale_log2);
}

// What comes before and after walks over the heads from the last to the first: the pass begins with those that were touched last, and leaves its last ones
// in the L2, some 40 MB of them.
ROOFTILE_DEVICE int from_the_end() { return int(gridDim.x - 1 - blockIdx.x); }

// Zeros to add to, for 2048 / D queries; `row` of all is this thread's.
template <int D> ROOFTILE_DEVICE void clear(float* gDq, long long row) {
  float4* gZero = reinterpret_cast<float4*>(gDq + (row - threadIdx.x / (D / 8)) * D);
  gZero[threadIdx.x] = gZero[threadIdx.x + 256] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// The rows of lse and delta, less the gradient of lse where there is one (OF_LSE), zeros in gTurn, gAdded (how many tiles have been taken, then Earlier's)
// and the first heads' gDq: 2048 / D queries of a head a block.
template <typename T, int D, int BLOCK_M = 8192 / D, bool OF_LSE = false>
__global__ void __launch_bounds__(256)
    prepare(float* gDq, int* gTurn, int* gAdded, float* gRows, const T* gDout, const T* gOut, const float* gLse, const float* gDlse, int first, int heads,
            int H, int T_, long long stride_gb, long long stride_gt, long long stride_gh, long long stride_ob, long long stride_ot, long long stride_oh) {
  constexpr int LANES = D / 8, ROWS = 256 / LANES;
  const int padded = ceil_div(T_, BLOCK_M) * BLOCK_M, chunks = padded / ROWS, i_bh = from_the_end() / chunks;
  const int i_t = from_the_end() % chunks * ROWS + threadIdx.x / LANES, i_d = threadIdx.x % LANES * 8;
  const long long row = (long long)i_bh * padded + i_t;
  let_next_stand_by();
  if (i_bh < first) clear<D>(gDq, row);
  if (i_t % BLOCK_M == 0 && i_d == 0) gTurn[row / BLOCK_M * 2] = gTurn[row / BLOCK_M * 2 + 1] = 0;
  if (i_t == 0 && i_d == 0) gAdded[1 + i_bh] = gAdded[1 + heads + i_bh] = 0;
  if (row == 0 && i_d == 0) gAdded[0] = 0;
  prepare_query<BLOCK_M, D>(gRows, head(gDout, stride_gb, stride_gt, stride_gh, i_bh, H), head(gOut, stride_ob, stride_ot, stride_oh, i_bh, H), gLse, i_bh,
                            i_t, i_d, T_, padded);
  if (OF_LSE && i_d == 0 && i_t < T_) gRows[(long long)i_bh * padded * 2 + (i_t / BLOCK_M * 2 + 1) * BLOCK_M + i_t % BLOCK_M] -= gDlse[(long long)i_bh * T_ + i_t];
}

// A half of dQ, rounded, a warp 16 of its queries, all of whose sums are under way at once; gRow is the first's.
template <bool TURNED = false, typename T>
ROOFTILE_DEVICE void rows_of_half(T* gRow, const float* gHalf, char* sX, long long stride, int rows, float scale, const Tables& tables = {}, int i_t = 0) {
  const int eight = threadIdx.x / WARP * 2;
  unsigned rounded[2][2][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) round_eight<T>(rounded[i], gHalf + (eight + i) * 512, scale, lane());
#pragma unroll
  for (int i = 0; i < 2; ++i) leave_eight(sX + (eight + i) * 8 * LINE, rounded[i], lane());
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = (eight + i) * 8;
    store_eight<TURNED>(gRow + row * stride, stride, rows - row, sX + row * LINE, lane(), tables, i_t + row);
  }
}

// Of what the pass before has not rounded: the halves from `first` on.
template <typename T, int D, bool TURNED = false, int BLOCK_M = 8192 / D>
__global__ void ROOFTILE_EARLY __launch_bounds__(BLOCK_M * D / 64)
    finish(T* gOut, const float* gDq, int first, int H, int T_, long long stride_b, long long stride_t, long long stride_h, float scale, const float* gCos,
           const float* gSin) {
  constexpr int N = Tile<D, BLOCK_M>::N, HALF = Tile<D, BLOCK_M>::HALF;
  __shared__ __align__(1024) char sX[N * LINE];
  const int i = first + from_the_end(), blocks = ceil_div(T_, BLOCK_M), i_half = i % 2, i_bh = i / 2 / blocks;
  const int i_t = i / 2 % blocks * BLOCK_M + (D == 64) * i_half * N, i_d = (D == 128) * i_half * 64;
  earlier_done();
  rows_of_half<TURNED>(head(gOut, stride_b, stride_t, stride_h, i_bh, H)[i_t] + i_d, gDq + (long long)i * HALF, sX, stride_t, T_ - i_t, scale, {gCos, gSin},
                       i_t);
}

// ---- the kernels of packed sequences -----------------------------------------------------------------------------------------

// Where `sequences` lie, which tile of keys is whose, the longest walks first, and which block of queries: sequence b's begin with at_q / BLOCK_M + b, where
// there is room for them. Offsets that are none (they go down, or beyond the tensor) stay within it. One block.
template <typename Offset, int D, int M = 8192 / D>
__global__ void __launch_bounds__(1024)
    order(int* gSpans, int* gOfTile, int* gOfBlock, const Offset* gCuQ, const Offset* gCuK, int sequences, int rows_q, int rows_k, int slots, int blocks) {
  Span* gSpan = reinterpret_cast<Span*>(gSpans);
  for (int i = threadIdx.x; i < slots; i += blockDim.x) gOfTile[i] = sequences;
  for (int i = threadIdx.x; i < blocks; i += blockDim.x) gOfBlock[i] = sequences;
  if (threadIdx.x == 0) gSpan[sequences] = Span{};
  for (int b = threadIdx.x; b < sequences; b += blockDim.x) {
    Span x;
    x.at_q = min(max((long long)gCuQ[b], 0LL), (long long)rows_q), x.T = min(max((long long)gCuQ[b + 1], (long long)x.at_q), (long long)rows_q) - x.at_q;
    x.at_k = min(max((long long)gCuK[b], 0LL), (long long)rows_k), x.S = min(max((long long)gCuK[b + 1], (long long)x.at_k), (long long)rows_k) - x.at_k;
    x.i_slot = 0, x.i_block = x.at_q / M + b;
    gSpan[b] = x;
  }
  __syncthreads();
  for (int b = threadIdx.x; b < sequences; b += blockDim.x) {
    const Span mine = gSpan[b];
    int slot = 0;
    for (int i = 0; i < sequences; ++i) {
      const int length = gSpan[i].T;
      if (length > mine.T || (length == mine.T && i < b)) slot += ceil_div(gSpan[i].S, BLOCK_N);
    }
    gSpan[b].i_slot = slot;
    for (int i = slot; i < min(slots, slot + ceil_div(mine.S, BLOCK_N)); ++i) gOfTile[i] = b;
    for (int i = 0; i < ceil_div(mine.T, M); ++i) gOfBlock[mine.i_block + i] = b;
  }
}

// A block of queries of a head: of batch i_b, its rows from `at` on; there are T of them, and `row` among all those of lse.
struct Place {
  int i_bh, i_block, at, T;
  long long row;
};
ROOFTILE_DEVICE Place place(int i, int T_, int blocks, const int* gSpans, const int* gOfBlock) {
  const int i_bh = i / blocks, i_block = i % blocks;
  const Span x = reinterpret_cast<const Span*>(gSpans)[gOfBlock[i_block]];
  return {i_bh, i_block - x.i_block, x.at_q, x.T, (long long)i_bh * T_ + x.at_q};
}

// As `prepare`.
template <typename T, int D, int M = 8192 / D>
__global__ void __launch_bounds__(256)
    prepare_ragged(float* gDq, int* gTurn, float* gRows, const int* gSpans, const int* gOfBlock, const T* gDout, const T* gOut, const float* gLse,
                   const float* gDlse, int H, int T_, int blocks, long long stride_gb, long long stride_gt, long long stride_gh, long long stride_ob,
                   long long stride_ot, long long stride_oh) {
  constexpr int LANES = D / 8, ROWS = 256 / LANES, CHUNKS = M / ROWS;
  const int i = from_the_end() / CHUNKS, i_row = from_the_end() % CHUNKS * ROWS + threadIdx.x / LANES, i_d = threadIdx.x % LANES * 8;
  const Place x = place(i, T_, blocks, gSpans, gOfBlock);
  const int i_t = x.i_block * M + i_row;
  let_next_stand_by();
  if (x.T == 0) return;
  clear<D>(gDq, (long long)i * M + i_row);
  if (i_row == 0 && i_d == 0) gTurn[i * 2ll] = gTurn[i * 2ll + 1] = 0;
  float* gRow = gRows + (long long)i * 2 * M;
  prepare_query<M, D>(gRow - x.i_block * 2 * M, head(gDout + x.at * stride_gt, stride_gb, stride_gt, stride_gh, x.i_bh, H),
                            head(gOut + x.at * stride_ot, stride_ob, stride_ot, stride_oh, x.i_bh, H), gLse + x.row, 0, i_t, i_d, x.T, 0);
  if (i_d == 0 && i_t < x.T) gRow[M + i_row] -= gDlse[x.row + i_t];
}

template <typename T, int D, bool ORDERED, int M = 8192 / D, bool SUMMED = false, bool CAPS = false>
__global__ void ROOFTILE_EARLY __launch_bounds__(384, 1)
    attention_backward_ragged(const __grid_constant__ TensorMap tQ, const __grid_constant__ TensorMap tK, const __grid_constant__ TensorMap tV,
                              const __grid_constant__ TensorMap tDout, T* gDk, T* gDv, float* gDq, float* gDkSums, float* gDvSums, int* gTurn,
                              const float* gRows, const int* gSpans, const int* gOfTile, int G, int walks, int group, int blocks, int most, float scale,
                              float scale_log2, float cap_log2, int left, int right) {
  static_assert(!(ORDERED && SUMMED), "walks over a tile add in any order");
  extern __shared__ __align__(1024) char sX[];
  __shared__ Rings sR;
  __shared__ Band sBand;
  Ragged<D, ORDERED, M, CAPS> w(reinterpret_cast<const Span*>(gSpans), gOfTile, G, walks, group, blocks, left, right, cap_log2);
  if (w.count == 0) {  // no query sees these keys, if there are any
    earlier_done();    // or this kernel could end before `prepare`, and `finish` begin
    if (SUMMED) return;
    Wide<T> none;
    fill(none, T(0.0f));
    for (int i = threadIdx.x; i < w.rows() * (D / 8); i += blockDim.x) {
      const long long at = w.at(G) + (long long)(i / (D / 8)) * G * D + i % (D / 8) * 8;
      store_global(gDk + at, none);
      store_global(gDv + at, none);
    }
    return;
  }
  w.tell(sBand, w.at(G), most);
  if constexpr (SUMMED)
    tile_of_keys<T, D, ORDERED, false>(Sums{gDkSums}, Sums{gDvSums}, Earlier<T>{}, tQ, tK, tV, tDout, gDq, gTurn, nullptr, gRows, sX, sR, w, scale,
                                       scale_log2);
  else
    tile_of_keys<T, D, ORDERED, false>(Rows<T>{gDk, G}, Rows<T>{gDv, G}, Earlier<T>{}, tQ, tK, tV, tDout, gDq, gTurn, nullptr, gRows, sX, sR, w, scale,
                                       scale_log2);
}

template <typename T, int D, int M = 8192 / D>
__global__ void ROOFTILE_EARLY __launch_bounds__(M * D / 64)
    finish_ragged(T* gOut, const float* gDq, const int* gSpans, const int* gOfBlock, int H, int T_, int blocks, long long stride_b, long long stride_t,
                  long long stride_h, float scale) {
  constexpr int N = Tile<D, M>::N, HALF = Tile<D, M>::HALF;
  __shared__ __align__(1024) char sX[N * LINE];
  const int i = from_the_end();
  const Place x = place(i / 2, T_, blocks, gSpans, gOfBlock);
  const int i_half = i % 2, i_t = x.i_block * M + (D == 64) * i_half * N, i_d = (D == 128) * i_half * 64;
  earlier_done();
  if (i_t >= x.T) return;
  rows_of_half(head(gOut, stride_b, stride_t, stride_h, x.i_bh, H)[x.at + i_t] + i_d, gDq + (long long)i * HALF, sX, stride_t, x.T - i_t, scale);
}

// ---- dK and dV of several walks ----------------------------------------------------------------------------------------------

// Sums, scaled and rounded: 64 rows of one of them a block. What four threads hold of eight columns is a thread's here, of two rows. Past the keys that a
// sequence was said to have at most is NaN.
template <typename T, int D, bool RAGGED>
__global__ void __launch_bounds__(4 * D)
    finish_keys(T* gDk, T* gDv, const float* gDkSums, const float* gDvSums, const int* gSpans, const int* gOfTile, int G, int S_, int most,
                long long stride_kb, long long stride_ks, long long stride_kh, long long stride_vb, long long stride_vs, long long stride_vh, float scale) {
  const bool of_v = blockIdx.y;
  const int i_half = blockIdx.x % 2, i_g = blockIdx.x / 2 % G, i_slot = blockIdx.x / 2 / G, i_eight = threadIdx.x % (D / 8), quad = threadIdx.x / (D / 8);
  int S = S_, tiles = ceil_div(S, BLOCK_N), i_b = i_slot / tiles, i_tile = i_slot % tiles, at_k = 0;
  if (RAGGED) {
    const Span x = reinterpret_cast<const Span*>(gSpans)[gOfTile[i_slot]];
    S = x.S, i_b = 0, i_tile = i_slot - x.i_slot, at_k = x.at_k;
  }
  const float* gMine = (of_v ? gDvSums : gDkSums) + (long long)blockIdx.x * 64 * D + i_eight * 512 + quad * 16;
  const auto to = of_v ? head(gDv, stride_vb, stride_vs, stride_vh, i_b * G + i_g, G) : head(gDk, stride_kb, stride_ks, stride_kh, i_b * G + i_g, G);
  const int i_s = i_tile * BLOCK_N + i_half * 64 + quad / 8 * 16 + quad % 8;
  if (i_s >= S) return;
  Vec<float, 4> part[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) load(part[i], gMine + i * 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = i_s + r * 8;
    Wide<T> out;
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = T(part[i / 2][r * 2 + i % 2] * (of_v ? 1.0f : scale));
    if (row >= most) fill(out, T(__int_as_float(0x7fc00000)));
    if (row < S) store_global(to[at_k + row] + i_eight * 8, out);
  }
}
