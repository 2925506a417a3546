// Cooperative groups: the grid, the block, tiles of a warp. A group of the lanes that happen to be together (coalesced_threads) is not known here.
#pragma once

namespace cooperative_groups {

inline unsigned rooftile_linear() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
inline unsigned rooftile_threads() { return blockDim.x * blockDim.y * blockDim.z; }
inline unsigned rooftile_block() { return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; }

// So many lanes of a warp that lie side by side. Of a whole block where `lanes` is 0.
struct thread_group {
  unsigned lanes;
  unsigned size() const { return lanes ? lanes : rooftile_threads(); }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const { return lanes ? rooftile_linear() % lanes : rooftile_linear(); }
  unsigned mask() const { return (lanes == 32 ? ~0u : (1u << lanes) - 1) << (rooftile_linear() % 32 / lanes * lanes); }
  unsigned first() const { return rooftile_linear() % 32 / lanes * lanes; }
  unsigned meta_group_size() const { return (rooftile_threads() + lanes - 1) / lanes; }
  unsigned meta_group_rank() const { return rooftile_linear() / lanes; }
  __forceinline__ void sync() const {
    if (lanes) __syncwarp(mask());
    else __syncthreads();
  }
  template <class T> __forceinline__ T shfl(T v, int lane) const { return __shfl_sync(mask(), v, lane, lanes); }
  template <class T> __forceinline__ T shfl_up(T v, unsigned by) const { return __shfl_up_sync(mask(), v, by, lanes); }
  template <class T> __forceinline__ T shfl_down(T v, unsigned by) const { return __shfl_down_sync(mask(), v, by, lanes); }
  template <class T> __forceinline__ T shfl_xor(T v, unsigned by) const { return __shfl_xor_sync(mask(), v, by, lanes); }
  __forceinline__ int any(int p) const { return __any_sync(mask(), p); }
  __forceinline__ int all(int p) const { return __all_sync(mask(), p); }
  __forceinline__ unsigned ballot(int p) const { return __ballot_sync(mask(), p) >> first(); }
  template <class T> __forceinline__ unsigned match_any(T v) const { return __match_any_sync(mask(), v) >> first(); }
};
struct thread_block : thread_group {
  thread_block() : thread_group{0} {}
  __forceinline__ static void sync() { __syncthreads(); }
  static unsigned thread_rank() { return rooftile_linear(); }
  static unsigned size() { return rooftile_threads(); }
  static unsigned num_threads() { return size(); }
  static dim3 thread_index() { return threadIdx; }
  static dim3 group_index() { return blockIdx; }
  static dim3 group_dim() { return blockDim; }
  static dim3 dim_threads() { return blockDim; }
};

struct grid_group {
  __forceinline__ static void sync() { rooftile_sim_grid_sync(); }
  static bool is_valid() { return true; }
  static unsigned long long thread_rank() { return (unsigned long long)rooftile_block() * rooftile_threads() + rooftile_linear(); }
  static unsigned long long size() { return (unsigned long long)num_blocks() * rooftile_threads(); }
  static unsigned long long num_threads() { return size(); }
  static unsigned num_blocks() { return gridDim.x * gridDim.y * gridDim.z; }
  static unsigned block_rank() { return rooftile_block(); }
  static dim3 block_index() { return blockIdx; }
  static dim3 group_dim() { return gridDim; }
  static dim3 dim_blocks() { return gridDim; }
};

template <unsigned N, class Parent = void> struct thread_block_tile : thread_group {
  static_assert(N >= 1 && N <= 32 && (N & (N - 1)) == 0, "the simulator has tiles of 1, 2, 4, 8, 16 or 32 threads");
  thread_block_tile() : thread_group{N} {}
  template <class Other> thread_block_tile(const thread_block_tile<N, Other>&) : thread_group{N} {}
  static constexpr unsigned size() { return N; }
  static constexpr unsigned num_threads() { return N; }
};
struct coalesced_group : thread_group {};

inline thread_block this_thread_block() { return {}; }
inline grid_group this_grid() { return {}; }
__forceinline__ coalesced_group coalesced_threads() {
  rooftile_sim_not_modelled("coalesced_threads: which lanes are together is the hardware's choice");
  return {};
}
template <unsigned N, class G> inline thread_block_tile<N, G> tiled_partition(const G&) { return {}; }
template <class G> inline thread_group tiled_partition(const G&, unsigned lanes) { return {lanes}; }
template <class G> __forceinline__ void sync(const G& g) { g.sync(); }
template <class G> inline auto thread_rank(const G& g) { return g.thread_rank(); }
template <class G> inline auto group_size(const G& g) { return g.size(); }

template <class T> struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_or { T operator()(T a, T b) const { return a | b; } };
template <class T> struct bit_xor { T operator()(T a, T b) const { return a ^ b; } };
template <class G, class T, class F> __forceinline__ T reduce(const G& g, T v, F combine) {
  for (unsigned by = g.size() / 2; by; by /= 2) v = combine(v, g.shfl_xor(v, by));
  return v;
}
template <class G, class T, class F> __forceinline__ T inclusive_scan(const G& g, T v, F combine) {
  for (unsigned by = 1; by < g.size(); by *= 2) {
    T before = g.shfl_up(v, by);
    if (g.thread_rank() >= by) v = combine(before, v);
  }
  return v;
}
template <class G, class T> __forceinline__ T inclusive_scan(const G& g, T v) { return inclusive_scan(g, v, plus<T>()); }
template <class G, class T, class F> __forceinline__ T exclusive_scan(const G& g, T v, F combine) {
  T before = g.shfl_up(inclusive_scan(g, v, combine), 1);
  return g.thread_rank() ? before : T(0);
}
template <class G, class T> __forceinline__ T exclusive_scan(const G& g, T v) { return exclusive_scan(g, v, plus<T>()); }

}  // namespace cooperative_groups
