// adds: nothing, this is where the ladder begins: a block a chunk, found through the tables, and a thread an element after another
// costs: four loads of 2 or 4 bytes an element, with one element of each thread in flight
// loses when: always, by the requests: eight times as many in 16 bits as 16-byte accesses have
#include "rooftile/adamw.cuh"
#include "rooftile/tables.cuh"

using namespace rooftile;

template <typename P, typename G, typename S, typename F, bool MASTER, bool STOCHASTIC>
__global__ void adamw(const long long* gTable, const long long* gLayout, const float* gHyper, const float* gScale, const long long* gSeed,
                      int count, int chunk, bool scaled, float beta1, float beta2, float rest1, float rest2, float eps) {
  const Chunk c = chunk_of(gLayout, count, blockIdx.x, chunk);
  const Tensors<P, F, G, S> tensors(gTable, count, c.t, MASTER);
  Rates r{0, 0, 0, beta1, beta2, rest1, rest2, eps, scaled ? *gScale : 1.0f};
  r.of(gHyper, c.t);
  const unsigned long long seed = STOCHASTIC ? *gSeed : 0;
  const long long end = min(c.first + chunk, c.size);
  for (long long i = c.first + threadIdx.x; i < end; i += blockDim.x) tensors.template one<MASTER, STOCHASTIC>(c.t, i, r, seed);
}
