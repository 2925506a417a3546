// Many tensors in one launch (ops/_shared/tables.py): a table of addresses, and a layout: the tensors' sizes, then for each chunk of them
// its tensor in the high word and its number there in the low.
#pragma once
#include "rooftile/check.cuh"

namespace rooftile {

struct Chunk {
  int t;                  // its tensor
  long long first, size;  // its first element there, and how many the tensor has
};
ROOFTILE_DEVICE Chunk chunk_of(const long long* gLayout, int P, long long number, int chunk) {
  const long long packed = __ldg(gLayout + P + number);
  const int t = int(packed >> 32);
  return {t, (packed & 0xffffffffll) * chunk, __ldg(gLayout + t)};
}
template <typename T> ROOFTILE_DEVICE T* tensor_of(const long long* gTable, int t) { return reinterpret_cast<T*>(__ldg(gTable + t)); }

}  // namespace rooftile
