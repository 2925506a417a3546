// adds: a block takes one step and leaves, beside others that look up their chunk, addresses and data; what is read is the last to leave the L2, what is written the first
// costs: every tensor must begin at a multiple of 16 bytes; a tensor's last chunk may have blocks that find nothing
// loses when: each block leaves a sum behind (MEASURED): there are four to eight times as many
#include "rooftile/adamw.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/tables.cuh"

using namespace rooftile;

// 16 bytes by the policy; half as many, of a bf16 tensor beside wider ones, as ever.
template <int WIDTH, typename T> ROOFTILE_DEVICE Packed<T, WIDTH> keep(const T* gX, Policy policy) {
  if constexpr (sizeof(T) * WIDTH == 16) {
    return load_global(reinterpret_cast<uint4*>(const_cast<T*>(gX)), policy);
  } else {
    return take<false, WIDTH>(gX);
  }
}

template <typename P, typename G, typename S, typename F, bool MASTER, bool STOCHASTIC, int VECS, int THREADS, int STEPS, bool MEASURED>
__global__ void __launch_bounds__(THREADS, (VECS > 1 || STOCHASTIC ? 1024 : 1280) / THREADS)
    adamw(const long long* gTable, const long long* gLayout, const float* gHyper, const float* gScale, const long long* gSeed, int count,
          int chunk, bool scaled, float beta1, float beta2, float rest1, float rest2, float eps, float* gPartial) {
  constexpr int BYTES = sizeof(G) > sizeof(S) ? sizeof(G) : sizeof(S), WIDTH = 16 / (sizeof(F) > BYTES ? sizeof(F) : BYTES);
  constexpr int NEXT = THREADS * WIDTH;  // elements from a thread's vector to its next
  const Chunk c = chunk_of(gLayout, count, blockIdx.x / STEPS, STEPS * VECS * NEXT);  // STEPS blocks share one
  const Tensors<P, F, G, S> tensors(gTable, count, c.t, MASTER);
  const long long i = c.first + blockIdx.x % STEPS * (VECS * NEXT) + threadIdx.x * WIDTH;
  const Policy policy = evict_last(gridDim.x * (long long)(VECS * NEXT) * int(sizeof(F) + sizeof(G) + 2 * sizeof(S)));
  Packed<F, WIDTH> rP[VECS];
  Packed<G, WIDTH> rG[VECS];
  Packed<S, WIDTH> rM[VECS], rV[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const long long j = i + v * NEXT;
    if (j + WIDTH <= c.size) {
      rP[v] = keep<WIDTH>(tensors.gF + j, policy), rG[v] = keep<WIDTH>(tensors.gG + j, policy);
      rM[v] = keep<WIDTH>(tensors.gM + j, policy), rV[v] = keep<WIDTH>(tensors.gV + j, policy);
    }
  }
  Rates r{0, 0, 0, beta1, beta2, rest1, rest2, eps, scaled ? *gScale : 1.0f};
  r.of(gHyper, c.t);
  const unsigned long long seed = STOCHASTIC ? *gSeed : 0;
  Squares<MEASURED> squares;
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    tensors.template packed<MASTER, STOCHASTIC, false, WIDTH>(c.t, i + v * NEXT, c.size, rP[v], rG[v], rM[v], rV[v], r, seed, squares);
  squares.close();
  squares.leave(gPartial);
}
