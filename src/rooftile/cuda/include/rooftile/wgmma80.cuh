// The product of wgmma.cuh with N = 80, both operands from shared memory: rows of 80 leave room in 227 KiB where 128 do not, and read less of A than 64.
#pragma once
#include "rooftile/wgmma.cuh"

namespace rooftile {

template <typename T, Major A = K_MAJOR, Major B = K_MAJOR> ROOFTILE_DEVICE void wgmma_80(float (&d)[40], Matrix a, Matrix b, bool accumulate = true) {
  static_assert(sizeof(T) == 2, "16-bit types only");
#ifdef ROOFTILE_SIMULATOR
  const model::Wgmma what{80, WgmmaType<T>::value, A, B, a.bits, b.bits, accumulate, 0};
  rooftile_sim_wgmma(&what, d, nullptr);
#else
  const int add = accumulate;
#define ROOFTILE_80(type)                                                                                                                    \
  ROOFTILE_SM90A("{\n.reg .pred p;\nsetp.ne.b32 p, %42, 0;\nwgmma.mma_async.sync.aligned.m64n80k16.f32." type "." type " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," \
                 "%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39}, "  \
                 "%40, %41, p, 1, 1, %43, %44;\n}"                                                                                         \
                 : ROOFTILE_F32(0), ROOFTILE_F8(32)                                                                                        \
                 : "l"(a.bits), "l"(b.bits), "r"(add), "n"(int(A)), "n"(int(B))                                                            \
                 : "memory")
  if constexpr (WgmmaType<T>::value == 0) ROOFTILE_80("f16");
  if constexpr (WgmmaType<T>::value == 1) ROOFTILE_80("bf16");
#undef ROOFTILE_80
#endif
}

}  // namespace rooftile
