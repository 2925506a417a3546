// Copies by the engine that Hopper has for it: one thread issues, no registers carry data. Into shared memory they end on an mbarrier,
// which must have been told of their bytes; out of it they are gathered into groups that the issuing thread waits for. In the simulator
// bytes arrive at the wait that covers them, or when no thread can go on without them, and never before.
#pragma once
#include "rooftile/mbarrier.cuh"

namespace rooftile {

// A tensor in global memory, cut into boxes; made on the host (rooftile.cuda.tensor_map), a parameter `const __grid_constant__ TensorMap`.
#ifdef ROOFTILE_SIMULATOR
struct TensorMap {
#else
struct alignas(64) TensorMap {
#endif
  unsigned long long words[16];
};

// Where byte `at` of a tile lies under a swizzle of 32, 64 or 128 bytes: chunks of 16 bytes change places by bits 7 to 9 of the address, so
// the tile begins at a multiple of 1024 bytes (128), 512 (64) or 256 (32), and its rows have as many bytes as the swizzle.
template <int SWIZZLE> __host__ __device__ constexpr int swizzled(int at) {
  static_assert(SWIZZLE == 0 || SWIZZLE == 32 || SWIZZLE == 64 || SWIZZLE == 128, "a swizzle is 0, 32, 64 or 128 bytes");
  return SWIZZLE == 0 ? at : at ^ (at >> 7 & (SWIZZLE / 16 - 1)) << 4;
}

// bytes, and both addresses: multiples of 16.
ROOFTILE_DEVICE void bulk_load(void* sX, const void* gX, int bytes, MBarrier* sBarrier) {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_bulk_load(sX, gX, bytes, sBarrier);
#else
  ROOFTILE_SM90("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(sX)),
                "l"(__cvta_generic_to_global(gX)), "r"(bytes), "r"(shared_address(sBarrier))
                : "memory");
#endif
}
ROOFTILE_DEVICE void bulk_store(void* gX, const void* sX, int bytes) {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_bulk_store(gX, sX, bytes, 0);
#else
  ROOFTILE_SM90("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(gX)), "r"(shared_address(sX)), "r"(bytes)
                : "memory");
#endif
}
// gX[i] += sX[i], each addition atomic; the order of additions is the hardware's.
ROOFTILE_DEVICE void bulk_add(float* gX, const float* sX, int bytes) {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_bulk_store(gX, sX, bytes, 1);
#else
  ROOFTILE_SM90("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(gX)),
                "r"(shared_address(sX)), "r"(bytes)
                : "memory");
#endif
}

// The box that begins at these coordinates, innermost first, which may lie outside in part or be negative: what is outside is loaded as
// zero, counts as bytes of the box, and is not stored. sX is a multiple of 128 bytes, and holds the box without gaps, swizzled by the map.
#ifdef ROOFTILE_SIMULATOR
#define ROOFTILE_TENSOR(rank, coordinates, load_list, store_list, operands, ...)                           \
  ROOFTILE_DEVICE void tensor_load(void* sX, const TensorMap& map, MBarrier* sBarrier, coordinates) {      \
    const int at[] = {__VA_ARGS__};                                                                        \
    rooftile_sim_tensor_load(sX, &map, sBarrier, rank, at);                                                \
  }                                                                                                        \
  ROOFTILE_DEVICE void tensor_store(const TensorMap& map, const void* sX, coordinates) {                   \
    const int at[] = {__VA_ARGS__};                                                                        \
    rooftile_sim_tensor_store(&map, sX, rank, at);                                                         \
  }
#else
#define ROOFTILE_TENSOR(rank, coordinates, load_list, store_list, operands, ...)                                                                \
  ROOFTILE_DEVICE void tensor_load(void* sX, const TensorMap& map, MBarrier* sBarrier, coordinates) {                                           \
    ROOFTILE_SM90("cp.async.bulk.tensor." #rank "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" load_list "}], [%2];" \
                  ::"r"(shared_address(sX)), "l"(&map), "r"(shared_address(sBarrier)), operands                                                 \
                  : "memory");                                                                                                                  \
  }                                                                                                                                             \
  ROOFTILE_DEVICE void tensor_store(const TensorMap& map, const void* sX, coordinates) {                                                        \
    ROOFTILE_SM90("cp.async.bulk.tensor." #rank "d.global.shared::cta.tile.bulk_group [%0, {" store_list "}], [%1];"                            \
                  ::"l"(&map), "r"(shared_address(sX)), operands                                                                                \
                  : "memory");                                                                                                                  \
  }
#endif
#define ROOFTILE_LIST(...) __VA_ARGS__
ROOFTILE_TENSOR(2, ROOFTILE_LIST(int x, int y), "%3, %4", "%2, %3", ROOFTILE_LIST("r"(x), "r"(y)), x, y)
ROOFTILE_TENSOR(3, ROOFTILE_LIST(int x, int y, int z), "%3, %4, %5", "%2, %3, %4", ROOFTILE_LIST("r"(x), "r"(y), "r"(z)), x, y, z)
ROOFTILE_TENSOR(4, ROOFTILE_LIST(int x, int y, int z, int w), "%3, %4, %5, %6", "%2, %3, %4, %5", ROOFTILE_LIST("r"(x), "r"(y), "r"(z), "r"(w)),
                x, y, z, w)
#undef ROOFTILE_TENSOR
#undef ROOFTILE_LIST

// Ends the group that this thread's copies out of shared memory have gone into so far.
ROOFTILE_DEVICE void bulk_commit() {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_bulk_commit();
#else
  ROOFTILE_SM90("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
// Until at most LEFT of this thread's groups, the newest, have still to write global memory.
template <int LEFT> ROOFTILE_DEVICE void bulk_wait() {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_bulk_wait(LEFT, 0);
#else
  ROOFTILE_SM90("cp.async.bulk.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}
// Until at most LEFT have still to read shared memory, which may then be written again; a thread must not end before.
template <int LEFT> ROOFTILE_DEVICE void bulk_wait_read() {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_bulk_wait(LEFT, 1);
#else
  ROOFTILE_SM90("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
#endif
}

}  // namespace rooftile
