// Tensor cores, one warp at a time: D[16,8] += A[16,16] B[16,8], f16 or bf16 in, float sums. All 32 lanes must come.
// Lane l = 4 g + t holds of A: rows g and g+8, columns 2t, 2t+1 (a0, a1) and 2t+8, 2t+9 (a2, a3); of B: rows 2t, 2t+1 (b0) and
// 2t+8, 2t+9 (b1) of column g; of D: columns 2t, 2t+1 of row g (d0, d1) and of row g+8 (d2, d3).
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/check.cuh"

namespace rooftile {

#ifdef ROOFTILE_SIMULATOR
namespace model {
// Lane l reads elements 2 (l % 4) and the next of row l / 4 of each 8 x 8 matrix, or with TRANS of column l / 4. The rows' addresses are
// brought by lanes 8 i to 8 i + 7, for matrix i; each of those lanes counts as the reader of its row.
template <int N, bool TRANS> ROOFTILE_DEVICE void ldmatrix(unsigned (&r)[N], const void* sRow) {
  const int l = int(rooftile_sim_lane());
  uint4 row{}, all[32];
  if (l < 8 * N) row = *static_cast<const uint4*>(sRow);
  rooftile_sim_exchange(ALL_LANES, &row, 16, all, "ldmatrix");
  const unsigned short* element = reinterpret_cast<const unsigned short*>(all);
  for (int i = 0; i < N; ++i) {
    unsigned low, high;
    if (TRANS) {
      low = element[(8 * i + l % 4 * 2) * 8 + l / 4], high = element[(8 * i + l % 4 * 2 + 1) * 8 + l / 4];
    } else {
      low = element[(8 * i + l / 4) * 8 + l % 4 * 2], high = element[(8 * i + l / 4) * 8 + l % 4 * 2 + 1];
    }
    r[i] = low | high << 16;
  }
}

template <typename T> ROOFTILE_DEVICE float element(unsigned pair, int which) {
  unsigned short bits = (unsigned short)(which ? pair >> 16 : pair);
  T value;
  __builtin_memcpy((void*)&value, &bits, 2);
  return float(value);
}

template <typename T> ROOFTILE_DEVICE void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  struct Fragment { unsigned a[4], b[2]; };
  Fragment mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, all[32];
  rooftile_sim_exchange(ALL_LANES, &mine, sizeof mine, all, "mma.sync.m16n8k16");
  const int l = int(rooftile_sim_lane()), g = l / 4, t = l % 4;
  for (int row = 0; row < 2; ++row)
    for (int column = 0; column < 2; ++column) {
      double sum = d[row * 2 + column];  // the hardware's order within a sum of 16 is not told: here it has no rounding
      for (int k = 0; k < 16; ++k) {
        const Fragment &left = all[g * 4 + k % 8 / 2], &right = all[(t * 2 + column) * 4 + k % 8 / 2];
        sum += double(element<T>(left.a[k / 8 * 2 + row], k % 2)) * element<T>(right.b[k / 8], k % 2);
      }
      d[row * 2 + column] = float(sum);
    }
}
}  // namespace model
#endif

#ifdef ROOFTILE_SIMULATOR
#define ROOFTILE_LDMATRIX(name, count, trans, suffix, outputs, operands) \
  ROOFTILE_DEVICE void name(unsigned (&r)[count], const void* sRow) { model::ldmatrix<count, trans>(r, sRow); }
#else
#define ROOFTILE_LDMATRIX(name, count, trans, suffix, outputs, operands)                                                        \
  ROOFTILE_DEVICE void name(unsigned (&r)[count], const void* sRow) {                                                           \
    asm volatile("ldmatrix.sync.aligned.m8n8." suffix ".shared.b16 " outputs ";"                                                \
                 : ROOFTILE_LIST operands                                                                                        \
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(sRow)))                                                   \
                 : "memory");                                                                                                   \
  }
#endif
#define ROOFTILE_LIST(...) __VA_ARGS__
// Lane l brings the address of a row of 8 elements, a multiple of 16 bytes: rows 0 to 7 of the first matrix, then of the second ...
ROOFTILE_LDMATRIX(ldmatrix, 2, false, "x2", "{%0, %1}, [%2]", ("=r"(r[0]), "=r"(r[1])))
ROOFTILE_LDMATRIX(ldmatrix, 4, false, "x4", "{%0, %1, %2, %3}, [%4]", ("=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])))
ROOFTILE_LDMATRIX(ldmatrix_transposed, 2, true, "x2.trans", "{%0, %1}, [%2]", ("=r"(r[0]), "=r"(r[1])))
ROOFTILE_LDMATRIX(ldmatrix_transposed, 4, true, "x4.trans", "{%0, %1, %2, %3}, [%4]", ("=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])))
#undef ROOFTILE_LDMATRIX
#undef ROOFTILE_LIST

template <typename T> ROOFTILE_DEVICE void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
#ifdef ROOFTILE_SIMULATOR
#define ROOFTILE_MMA(T, name) \
  template <> ROOFTILE_DEVICE void mma_m16n8k16<T>(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { model::mma<T>(d, a, b); }
#else
#define ROOFTILE_MMA(T, name)                                                                                         \
  template <> ROOFTILE_DEVICE void mma_m16n8k16<T>(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {   \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                 \
  }
#endif
ROOFTILE_MMA(__half, "f16")
ROOFTILE_MMA(__nv_bfloat16, "bf16")
#undef ROOFTILE_MMA

}  // namespace rooftile
