// adds: the gradient of sinks behind v5: minus a sink's share of every query's sum, times what the query's output weighs
// costs: dout and out are read once more, right before the pass that makes the other gradients reads them
// loses when: windows are so short that reading is a part of that pass: it has the rows of delta, which this makes again
#include "rooftile/attention.cuh"

using namespace rooftile;

constexpr int THREADS = 256, CHUNK = 256;  // queries of a block

// gParts [B chunks, H]; lse and dlse are [B, H, T]. A query whose lse is -inf has seen nothing, and its sink weighs nothing.
template <typename T, typename Sink, int D>
__global__ void __launch_bounds__(THREADS)
    sink_parts(float* gParts, const Sink* gSinks, long long stride_sink, const T* gDout, const T* gOut, const float* gLse, const float* gDlse, int H, int T_,
               long long stride_gb, long long stride_gt, long long stride_gh, long long stride_ob, long long stride_ot, long long stride_oh) {
  constexpr int LANES = D / 8;  // of a query
  const int chunks = ceil_div(T_, CHUNK), i_chunk = blockIdx.x % chunks, i_bh = blockIdx.x / chunks, i_h = i_bh % H, i_d = threadIdx.x % LANES * 8;
  const Head<const T> dout = head(gDout, stride_gb, stride_gt, stride_gh, i_bh, H), out = head(gOut, stride_ob, stride_ot, stride_oh, i_bh, H);
  const float sink = float(gSinks[i_h * stride_sink]);
  float sum = 0.0f;
#pragma unroll 4
  for (int i = 0; i < CHUNK; i += THREADS / LANES) {
    const int i_t = i_chunk * CHUNK + i + threadIdx.x / LANES;
    float delta = 0.0f;
    if (i_t < T_) {
      Vec<T, 8> rDout, rOut;
      load_global(rDout, dout[i_t] + i_d);
      load_global(rOut, out[i_t] + i_d);
#pragma unroll
      for (int j = 0; j < 8; ++j) delta += float(rDout[j]) * float(rOut[j]);
    }
    delta = warp_reduce<LANES>(delta, Sum());
    if (i_t < T_ && i_d == 0) {
      const long long at = (long long)i_bh * T_ + i_t;
      const float lse = gLse[at];
      if (lse != minus_inf()) sum -= exp_fast(sink - lse) * (delta - gDlse[at]);
    }
  }
  sum = block_reduce(sum, Sum());
  if (threadIdx.x == 0) gParts[(long long)(i_bh / H * chunks + i_chunk) * H + i_h] = sum;
}
