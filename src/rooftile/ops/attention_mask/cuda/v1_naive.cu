// adds: a thread an element of the mask
// costs: five divisions and a look-up of the length an element; a byte a store, 32 bytes a request of a boolean mask
// loses when: always: arithmetic and store instructions, not bytes, decide
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T> __device__ __forceinline__ T entry(bool allowed) { return T(allowed ? 0.0f : -__int_as_float(0x7f800000)); }
template <> __device__ __forceinline__ unsigned char entry<unsigned char>(bool allowed) { return allowed; }

template <typename T, typename L, bool CAUSAL>
__global__ void attention_mask(T* gMask, const L* __restrict__ gLengths, long long total, int queries, int keys, int G, int repeats,
                               long long stride_b, long long stride_g) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= total) return;
  const long long i_m = i / keys;
  const int i_s = int(i % keys), i_t = int(i_m % queries), i_h = int(i_m / queries % (G * repeats));
  long long bound = gLengths[i_m / queries / (G * repeats) * stride_b + i_h / repeats * stride_g];
  if (CAUSAL && bound > i_t + (keys - queries) + 1) bound = i_t + (keys - queries) + 1;
  gMask[i] = entry<T>(i_s < bound);
}
