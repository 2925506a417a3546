// What every header of ours begins with: one word for "inline device function", and conditions that a template argument must meet.
#pragma once

#define ROOFTILE_DEVICE __device__ __forceinline__

namespace rooftile {

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

__host__ __device__ constexpr bool power_of_two(long long n) { return n > 0 && (n & (n - 1)) == 0; }
__host__ __device__ constexpr bool whole_warps(int threads) { return threads > 0 && threads <= 1024 && threads % WARP == 0; }
template <typename T> __host__ __device__ constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }

ROOFTILE_DEVICE int lane() { return int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % WARP; }
ROOFTILE_DEVICE int warp() { return int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) / WARP; }
ROOFTILE_DEVICE int warps() { return int(blockDim.x * blockDim.y * blockDim.z + WARP - 1) / WARP; }

}  // namespace rooftile

// A block size that a kernel is written for.
#define ROOFTILE_CHECK_BLOCK(threads) static_assert(rooftile::whole_warps(threads), "a block is 32 to 1024 threads, a multiple of 32")
