// adds: 16 bytes an access, VECS of them from each of the four tensors asked for before the first is used, and a block leaves when it has used them
// costs: every tensor must begin at a multiple of 16 bytes; a chunk is THREADS x VECS vectors and has 8 bytes in the layout: 2 MB a billion bytes
// loses when: blocks leave a number for each chunk (MEASURED): there are four to eight times as many
#include "rooftile/adamw.cuh"
#include "rooftile/tables.cuh"

using namespace rooftile;

template <typename P, typename G, typename S, typename F, bool MASTER, bool STOCHASTIC, int VECS, int THREADS, bool ONCE, bool MEASURED>
__global__ void __launch_bounds__(THREADS, (VECS > 1 ? 1024 : STOCHASTIC ? 1024 : 1280) / THREADS)
    adamw(const long long* gTable, const long long* gLayout, const float* gHyper, const float* gScale, const long long* gSeed, int count,
          int chunk, bool scaled, float beta1, float beta2, float rest1, float rest2, float eps, float* gPartial) {
  constexpr int BYTES = sizeof(G) > sizeof(S) ? sizeof(G) : sizeof(S), WIDTH = 16 / (sizeof(F) > BYTES ? sizeof(F) : BYTES);
  constexpr int NEXT = THREADS * WIDTH;  // elements from a thread's vector to its next; a chunk is VECS of them
  const Chunk c = chunk_of(gLayout, count, blockIdx.x, VECS * NEXT);
  const Tensors<P, F, G, S> tensors(gTable, count, c.t, MASTER);
  const long long i = c.first + threadIdx.x * WIDTH;
  Packed<F, WIDTH> rP[VECS];
  Packed<G, WIDTH> rG[VECS];
  Packed<S, WIDTH> rM[VECS], rV[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const long long j = i + v * NEXT;
    if (j + WIDTH <= c.size) {
      rP[v] = take<ONCE, WIDTH>(tensors.gF + j), rG[v] = take<ONCE, WIDTH>(tensors.gG + j);
      rM[v] = take<ONCE, WIDTH>(tensors.gM + j), rV[v] = take<ONCE, WIDTH>(tensors.gV + j);
    }
  }
  Rates r{0, 0, 0, beta1, beta2, rest1, rest2, eps, scaled ? *gScale : 1.0f};
  r.of(gHyper, c.t);
  const unsigned long long seed = STOCHASTIC ? *gSeed : 0;
  Squares<MEASURED> squares;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const long long j = i + v * NEXT;
    if (j + WIDTH <= c.size) {
      float rFP[WIDTH], rFG[WIDTH], rFM[WIDTH], rFV[WIDTH];
      opened<F>(rFP, rP[v]), opened<G>(rFG, rG[v]), opened<S>(rFM, rM[v]), opened<S>(rFV, rV[v]);
      squares.add(rFG);
      tensors.template whole<MASTER, STOCHASTIC, ONCE>(c.t, j, rFP, rFG, rFM, rFV, r, seed);
    } else {
      for (long long k = j; k < c.size; ++k) squares.add(float(tensors.gG[k])), tensors.template one<MASTER, STOCHASTIC>(c.t, k, r, seed);
    }
  }
  squares.close();
  squares.leave(gPartial);
}
