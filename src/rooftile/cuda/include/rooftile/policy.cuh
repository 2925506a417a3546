// Reads from global memory that say how soon what they bring may leave the L2. 16 bytes an access, copies by the engine multiples of them.
#pragma once
#include "rooftile/async.cuh"
#include "rooftile/tma.cuh"

namespace rooftile {

using Policy = unsigned long long;

// The last to leave, where `bytes` are read, each once, and the L2 holds only a part of them: lines that were written go first then, to memory
// and soon, and the reads beside them lose less time to it. What might stay as a whole is read as ever: it would keep out what comes after it.
ROOFTILE_DEVICE Policy evict_last(long long bytes) {
#ifdef ROOFTILE_SIMULATOR
  return bytes > 0;
#else
  constexpr long long MANY = 64 << 20;
  Policy last, any;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(any));
  return bytes > MANY ? last : any;
#endif
}

// Of what no thread writes while the kernel runs.
ROOFTILE_DEVICE uint4 load_global(const uint4* gX, Policy policy) {
#ifdef ROOFTILE_SIMULATOR
  return *gX;
#else
  uint4 rX;
  asm("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
      : "=r"(rX.x), "=r"(rX.y), "=r"(rX.z), "=r"(rX.w)
      : "l"(__cvta_generic_to_global(gX)), "l"(policy));
  return rX;
#endif
}

// Of what the thread that asks may overwrite when it has it.
ROOFTILE_DEVICE uint4 load_global(uint4* gX, Policy policy) {
#ifdef ROOFTILE_SIMULATOR
  return *gX;
#else
  uint4 rX;
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(rX.x), "=r"(rX.y), "=r"(rX.z), "=r"(rX.w)
               : "l"(__cvta_generic_to_global(gX)), "l"(policy)
               : "memory");
  return rX;
#endif
}

// copy_async<16> of async.cuh. Its address is one register, masked to what it is already: left to itself ptxas 13.0 may split it in loops unrolled in part,
// and then names another's policy and another's half of the address.
ROOFTILE_DEVICE void copy_async(uint4* sX, const void* gX, bool there, Policy policy) {
#ifdef ROOFTILE_SIMULATOR
  copy_async<16>(sX, gX, there);
#else
  asm volatile(
      "{\n.reg .u32 to;\nand.b32 to, %0, 0xfffffff0;\n"
      "cp.async.cg.shared.global.L2::cache_hint [to], [%1], 16, %2, %3;\n}" ::"r"(shared_address(sX)),
      "l"(gX), "r"(there ? 16 : 0), "l"(policy)
      : "memory");
#endif
}

// bulk_load of tma.cuh.
ROOFTILE_DEVICE void bulk_load(void* sX, const void* gX, int bytes, MBarrier* sBarrier, Policy policy) {
#ifdef ROOFTILE_SIMULATOR
  bulk_load(sX, gX, bytes, sBarrier);
#else
  ROOFTILE_SM90("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(sX)),
                "l"(__cvta_generic_to_global(gX)), "r"(bytes), "r"(shared_address(sBarrier)), "l"(policy)
                : "memory");
#endif
}

}  // namespace rooftile
