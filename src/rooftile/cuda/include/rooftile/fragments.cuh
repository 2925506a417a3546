// What becomes of a product's D on its way into the next: weights, halves of the size, a tile in shared memory. Hopper and later.
#pragma once
#include "rooftile/approximate.cuh"
#include "rooftile/tma.cuh"
#include "rooftile/wgmma.cuh"

namespace rooftile {

// pack_pair undone.
ROOFTILE_DEVICE float2 unpack_pair(__half, unsigned pair) { return __half22float2(*reinterpret_cast<const __half2*>(&pair)); }
ROOFTILE_DEVICE float2 unpack_pair(__nv_bfloat16, unsigned pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// The assembler may move a wgmma_wait up past arithmetic that was to run beside the products. Between the two this is a __syncwarp whose mask, all
// lanes as it is, depends on the words.
template <int K> ROOFTILE_DEVICE void finish_first(const unsigned (&a)[K][4]) {
#ifndef ROOFTILE_SIMULATOR
  unsigned any = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) any |= a[k][1] | a[k][3];
  asm volatile("{\n.reg .b32 m;\nor.b32 m, %0, 0xffffffff;\nbar.warp.sync m;\n}" ::"r"(any) : "memory");
#endif
}

// Four matrices of 8 x 8 16-bit elements. Lane 8 i + r brings the address of row r of matrix i, 16 bytes; a[i] of lane 4 g + t is its row g, columns
// 2 t and 2 t + 1.
ROOFTILE_DEVICE void store_matrices(void* sRow, const unsigned (&a)[4]) {
#ifdef ROOFTILE_SIMULATOR
  struct Words { unsigned of[4]; };
  Words mine{{a[0], a[1], a[2], a[3]}}, all[WARP];
  rooftile_sim_exchange(ALL_LANES, &mine, sizeof mine, all, "stmatrix");
  const int l = int(rooftile_sim_lane()), first = l % 8 * 4, i = l / 8;
  *static_cast<uint4*>(sRow) = make_uint4(all[first].of[i], all[first + 1].of[i], all[first + 2].of[i], all[first + 3].of[i]);
#else
  ROOFTILE_SM90("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(sRow)), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
                : "memory");
#endif
}

// This warp's 16 rows of D, 16 K columns as wgmma_operand makes them, from row `row` of panels of 64 columns: lines of 128 bytes, swizzled by 128.
template <int K> ROOFTILE_DEVICE void store_operand(char* sX, int panel, int row, const unsigned (&a)[K][4]) {
#pragma unroll
  for (int k = 0; k < K; ++k) store_matrices(sX + k / 4 * panel + swizzled<128>((row + lane() % 16) * 128 + k % 4 * 32 + lane() / 16 * 16), a[k]);
}

}  // namespace rooftile
