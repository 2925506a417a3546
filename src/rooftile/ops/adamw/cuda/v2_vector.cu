// adds: 16 bytes an access, VECS of them from each of the four tensors asked for before the first is used
// costs: every tensor must begin at a multiple of 16 bytes; registers: 4 VECS a tensor in flight
// loses when: blocks are short: chunk, addresses, then data are three latencies in a chain, and a block has nothing in flight for two of them
#include "rooftile/adamw.cuh"
#include "rooftile/tables.cuh"

using namespace rooftile;

template <typename P, typename G, typename S, typename F, bool MASTER, bool STOCHASTIC, int VECS, int THREADS, bool ONCE, bool MEASURED>
__global__ void __launch_bounds__(THREADS, 512 / THREADS)
    adamw(const long long* gTable, const long long* gLayout, const float* gHyper, const float* gScale, const long long* gSeed, int count,
          int chunk, bool scaled, float beta1, float beta2, float rest1, float rest2, float eps, float* gPartial) {
  constexpr int BYTES = sizeof(G) > sizeof(S) ? sizeof(G) : sizeof(S), WIDTH = 16 / (sizeof(F) > BYTES ? sizeof(F) : BYTES);
  constexpr int NEXT = THREADS * WIDTH;  // elements from a thread's vector to its next
  const Chunk c = chunk_of(gLayout, count, blockIdx.x, chunk);
  const Tensors<P, F, G, S> tensors(gTable, count, c.t, MASTER);
  Rates r{0, 0, 0, beta1, beta2, rest1, rest2, eps, scaled ? *gScale : 1.0f};
  r.of(gHyper, c.t);
  const unsigned long long seed = STOCHASTIC ? *gSeed : 0;
  const long long end = min(c.first + chunk, c.size);
  Squares<MEASURED> squares;
  for (long long i = c.first + threadIdx.x * WIDTH; i < end; i += VECS * NEXT) {
    Packed<F, WIDTH> rP[VECS];
    Packed<G, WIDTH> rG[VECS];
    Packed<S, WIDTH> rM[VECS], rV[VECS];
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      const long long j = i + v * NEXT;
      if (j + WIDTH <= end) {
        rP[v] = take<ONCE, WIDTH>(tensors.gF + j), rG[v] = take<ONCE, WIDTH>(tensors.gG + j);
        rM[v] = take<ONCE, WIDTH>(tensors.gM + j), rV[v] = take<ONCE, WIDTH>(tensors.gV + j);
      }
    }
#pragma unroll
    for (int v = 0; v < VECS; ++v)
      tensors.template packed<MASTER, STOCHASTIC, ONCE, WIDTH>(c.t, i + v * NEXT, end, rP[v], rG[v], rM[v], rV[v], r, seed, squares);
  }
  squares.close();
  squares.leave(gPartial);
}
