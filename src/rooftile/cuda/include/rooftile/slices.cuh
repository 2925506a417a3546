// Rows of one head of [M, H, D] that clip at the end of a slice of M: what lies behind it, another sequence's, is neither read nor written.
#pragma once
#include "rooftile/tma.cuh"

namespace rooftile {

// A map of two axes more (rooftile.cuda.tensor_map.SliceMap; Triton's ragged descriptors have shown how). Row x of a slice is at x - length of an axis of
// 2^30 rows, from its end, so that those past the slice are past the axis. What that adds to an address two axes take back: one of the rows' stride by
// begin + length, and one by 2^30 times 2^34 elements less a row, which in 64 bits is 2^30 rows back.
constexpr int SLICE_ROWS = 1 << 30;

struct alignas(8) Slice {
  int rows, end;  // where its first row is on the long axis, and its end in the tensor
  static ROOFTILE_DEVICE Slice of(int begin, int length) { return {SLICE_ROWS - length, begin + length}; }
};

// As tensor_load, of one head: columns from `column` on, the slice's rows from `row` on.
ROOFTILE_DEVICE void slice_load(void* sX, const TensorMap& map, MBarrier* sBarrier, int column, int i_h, int row, Slice x) {
#ifdef ROOFTILE_SIMULATOR
  const int at[] = {column, x.rows + row, i_h, x.end, SLICE_ROWS};
  rooftile_sim_tensor_load(sX, &map, sBarrier, 5, at);
#else
  ROOFTILE_SM90("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(
                    shared_address(sX)),
                "l"(&map), "r"(shared_address(sBarrier)), "r"(column), "r"(x.rows + row), "r"(i_h), "r"(x.end), "r"(SLICE_ROWS)
                : "memory");
#endif
}

}  // namespace rooftile
