// adds: blocks stay and take chunk after chunk; STAGES steps of all four tensors are under way through cp.async while one is computed and written
// costs: 64 bytes of shared memory a vector of 4 tensors; every element passes through it; a chunk's addresses are looked up twice
// loses when: there are fewer chunks than blocks, or the chunks are no multiple of the blocks and the last round is ragged
#include "rooftile/adamw.cuh"
#include "rooftile/async.cuh"
#include "rooftile/tables.cuh"

using namespace rooftile;

template <typename P, typename G, typename S, typename F, bool MASTER, bool STOCHASTIC, int STAGES, int THREADS, bool ONCE, bool MEASURED>
__global__ void __launch_bounds__(THREADS, 512 / THREADS)
    adamw(const long long* gTable, const long long* gLayout, const float* gHyper, const float* gScale, const long long* gSeed, int count,
          int chunk, bool scaled, float beta1, float beta2, float rest1, float rest2, float eps, float* gPartial, int chunks) {
  constexpr int BYTES = sizeof(G) > sizeof(S) ? sizeof(G) : sizeof(S), WIDTH = 16 / (sizeof(F) > BYTES ? sizeof(F) : BYTES);
  constexpr int STEP = THREADS * WIDTH;
  extern __shared__ __align__(128) uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  const int i_l = threadIdx.x * WIDTH;
  int next = blockIdx.x, at_next = 0;  // the chunk whose copies are asked for, and how far they are
  Chunk ahead = chunk_of(gLayout, count, next, chunk);
  Tensors<P, F, G, S> from(gTable, count, ahead.t, MASTER);
  const auto fetch = [&](int stage) {
    if (next < chunks) {
      const long long i = ahead.first + at_next + i_l;
      if (i + WIDTH <= ahead.size) {
        uint4* sTo = sX + stage * (4 * THREADS) + threadIdx.x;
        copy_async<sizeof(F) * WIDTH>(sTo, from.gF + i), copy_async<sizeof(G) * WIDTH>(sTo + THREADS, from.gG + i);
        copy_async<sizeof(S) * WIDTH>(sTo + 2 * THREADS, from.gM + i), copy_async<sizeof(S) * WIDTH>(sTo + 3 * THREADS, from.gV + i);
      }
      at_next += STEP;
      if (at_next >= chunk || ahead.first + at_next >= ahead.size) {
        next += gridDim.x, at_next = 0;
        if (next < chunks) {
          ahead = chunk_of(gLayout, count, next, chunk);
          from = Tensors<P, F, G, S>(gTable, count, ahead.t, MASTER);
        }
      }
    }
    copy_commit();
  };
#pragma unroll 1
  for (int s = 0; s < STAGES; ++s) fetch(s);
  Rates r{0, 0, 0, beta1, beta2, rest1, rest2, eps, scaled ? *gScale : 1.0f};
  const unsigned long long seed = STOCHASTIC ? *gSeed : 0;
  Squares<MEASURED> squares;
  int stage = 0;
  for (int number = blockIdx.x; number < chunks; number += gridDim.x) {
    const Chunk c = chunk_of(gLayout, count, number, chunk);
    const Tensors<P, F, G, S> tensors(gTable, count, c.t, MASTER);
    r.of(gHyper, c.t);
    const long long end = min(c.first + chunk, c.size);
    for (long long first = c.first; first < end; first += STEP) {
      const long long i = first + i_l;
      float rP[WIDTH], rG[WIDTH], rM[WIDTH], rV[WIDTH];
      copy_wait<STAGES - 1>();
      const bool there = i + WIDTH <= end;
      if (there) {
        const uint4* sFrom = sX + stage * (4 * THREADS) + threadIdx.x;
        opened<F>(rP, *reinterpret_cast<const Packed<F, WIDTH>*>(sFrom)), opened<G>(rG, *reinterpret_cast<const Packed<G, WIDTH>*>(sFrom + THREADS));
        opened<S>(rM, *reinterpret_cast<const Packed<S, WIDTH>*>(sFrom + 2 * THREADS));
        opened<S>(rV, *reinterpret_cast<const Packed<S, WIDTH>*>(sFrom + 3 * THREADS));
      }
      fetch(stage);
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      if (there) {
        squares.add(rG);
        tensors.template whole<MASTER, STOCHASTIC, ONCE>(c.t, i, rP, rG, rM, rV, r, seed);
      } else {
        for (long long k = i; k < end; ++k) squares.add(float(tensors.gG[k])), tensors.template one<MASTER, STOCHASTIC>(c.t, k, r, seed);
      }
    }
    squares.close();
  }
  copy_wait<0>();
  squares.leave(gPartial);
}
