// wgmma: a warpgroup's product, D[64, N] += A[64, K] B[K, N]. Operands are found where the descriptors say, swizzle included. A product is
// carried out when some thread waits for it, and until then its accumulators hold NaN: what is read or overwritten too early shows.
#pragma once
#include <cmath>

#include "state.h"

namespace sim {

struct Wgmma {  // as device code fills it in
  uint32_t n, type, a_transposed, b_transposed;
  uint64_t a, b;
  uint32_t accumulate, a_in_registers;
};
enum Type : uint32_t { F16, BF16, E4M3 };

struct Product {
  Wgmma what;
  uint32_t threads = 0, warp_lanes[4] = {}, pc = 0;
  float* d[128] = {};
  uint32_t a[128][4];
};

inline float decoded(uint32_t type, const char* p) {
  if (type == E4M3) {
    uint8_t b;
    std::memcpy(&b, p, 1);
    int e = b >> 3 & 15, m = b & 7;
    float value = (b & 127) == 127 ? NAN : e ? std::ldexp(8.0f + float(m), e - 10) : std::ldexp(float(m), -9);
    return b & 128 ? -value : value;
  }
  uint16_t b;
  std::memcpy(&b, p, 2);
  if (type == BF16) {
    uint32_t bits = uint32_t(b) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  int e = b >> 10 & 31, m = b & 1023;
  float value = e == 31 ? (m ? NAN : INFINITY) : e ? std::ldexp(1024.0f + float(m), e - 25) : std::ldexp(float(m), -24);
  return b & 0x8000 ? -value : value;
}

// Where element (i, k) of an operand begins: i is the row of A or the column of B. 16 bytes that begin at a multiple of 16 stay together.
inline Address element(const Block& block, uint64_t descriptor, bool transposed, unsigned i, unsigned k, unsigned size) {
  uint32_t start = uint32_t(descriptor & 0x3fff) << 4, leading = uint32_t(descriptor >> 16 & 0x3fff) << 4, stride = uint32_t(descriptor >> 32 & 0x3fff) << 4;
  uint32_t layout = uint32_t(descriptor >> 62), span = layout == 1 ? 128 : layout == 2 ? 64 : layout == 3 ? 32 : 16;
  uint32_t at;
  if (!transposed && layout) {
    at = i / 8 * stride + i % 8 * span + k * size;
  } else if (!transposed) {
    at = i / 8 * stride + i % 8 * 16 + k * size / 16 * leading + k * size % 16;
  } else if (layout) {
    at = i * size / span * leading + i * size % span + k / 8 * stride + k % 8 * span;
  } else {
    at = i * size / 16 * stride + i * size % 16 + k / 8 * leading + k % 8 * 16;
  }
  return swizzled(Address(block.arena) + ((start + at) & 0x3ffff), layout ? span : 0);
}

// The caller's warp reads its 16 rows of A and all of B.
inline void read_operands(const Product& p) {
  Fiber& f = *now;
  const Wgmma& w = p.what;
  unsigned size = w.type == E4M3 ? 1 : 2, depth = 32 / size, wide = 16 / size;
  Via via{WGMMA, f.id - f.lane, f.products_committed};
  auto read = [&](uint64_t descriptor, bool transposed, unsigned first, unsigned count) {
    for (unsigned i = first; i < first + count; i += transposed ? wide : 1)
      for (unsigned k = 0; k < depth; k += transposed ? 1 : wide) access(element(*f.block, descriptor, transposed, i, k, size), 16, READ, true, p.pc, &via);
  };
  if (!w.a_in_registers) read(w.a, w.a_transposed, f.warp % 4 * 16, 16);
  read(w.b, w.b_transposed, 0, w.n);
}

inline void carry_out(Block& block, Warpgroup& group, Product& p) {
  const Wgmma& w = p.what;
  unsigned size = w.type == E4M3 ? 1 : 2, depth = 32 / size;
  std::vector<float> a(64 * depth), b(w.n * depth);
  auto fetch = [&](uint64_t descriptor, bool transposed, unsigned i, unsigned k) {
    return decoded(w.type, reinterpret_cast<const char*>(element(block, descriptor, transposed, i, k, size)));
  };
  for (unsigned i = 0; i < 64; ++i)
    for (unsigned k = 0; k < depth; ++k) {
      if (!w.a_in_registers) {
        a[i * depth + k] = fetch(w.a, w.a_transposed, i, k);
        continue;
      }
      unsigned per = 4 / size, half = depth / 2;  // elements of a register; lane 4 g + t has rows g and g + 8, from each half of K
      unsigned t = i / 16 * 32 + i % 8 * 4 + k % half / per, which = k / half * 2 + i % 16 / 8;
      a[i * depth + k] = decoded(w.type, reinterpret_cast<const char*>(&p.a[t][which]) + k % per * size);
    }
  for (unsigned j = 0; j < w.n; ++j)
    for (unsigned k = 0; k < depth; ++k) b[j * depth + k] = fetch(w.b, w.b_transposed, j, k);
  for (unsigned t = 0; t < 128; ++t) {
    auto found = group.accumulators.find(p.d[t]);
    Accumulator& d = found->second;
    for (unsigned r = 0; r < w.n / 2; ++r) {
      unsigned row = t / 32 * 16 + t % 32 / 4 + r / 2 % 2 * 8, column = r / 4 * 8 + t % 4 * 2 + r % 2;
      double sum = w.accumulate ? d.values[r] : 0;  // the hardware's order and width of sums is not told: here it has no rounding
      for (unsigned k = 0; k < depth; ++k) sum += double(a[row * depth + k]) * b[column * depth + k];
      d.values[r] = float(sum);
    }
    if (--d.under_way) continue;
    std::memcpy(p.d[t], d.values.data(), d.values.size() * 4);
    group.accumulators.erase(found);
  }
}

// The n-th product of this thread since the kernel began is its warpgroup's n-th.
inline Product& product_of(Warpgroup& group, const Wgmma& w, uint32_t pc) {
  Fiber& f = *now;
  uint32_t n = f.products++ - group.landed;
  if (n == group.products.size()) {
    group.products.push_back(std::make_shared<Product>());
    group.products.back()->what = w, group.products.back()->pc = pc;
  }
  Product& p = *group.products[n];
  if (std::memcmp(&p.what, &w, sizeof w))
    fatal(DIVERGENT_BARRIER, pc, "%s issues another wgmma than the threads of its warpgroup before it: other descriptors or another shape", who(f).c_str());
  return p;
}

}  // namespace sim

extern "C" {

unsigned rooftile_sim_shared_address(const void* p) {
  Address at = Address(p) - Address(now->block->arena);
  if (at >= 1u << 18) fatal(OUT_OF_BOUNDS, HERE, "%s makes a matrix descriptor of an address that is not in the first 256 KB of shared memory", who(*now).c_str());
  return unsigned(at);
}

void rooftile_sim_wgmma(const void* what, float* d, const unsigned* a) {
  uint32_t pc = HERE;
  Fiber& f = *now;
  f.pc = f.product_pc = pc;
  unsigned first = f.warp / 4 * 128;
  if (first + 128 > launch->threads)
    fatal(BAD_MASK, pc, "%s issues wgmma, and its warpgroup has %u threads, not 128", who(f).c_str(), launch->threads - first);
  if (!f.registers_fenced)
    find(RACE, pc, 0, "%s issues wgmma on registers that it may have touched since it last waited: no wgmma_fence in between", who(f).c_str());
  Block& block = *f.block;
  block.warpgroups.resize((launch->threads + 127) / 128);
  Warpgroup& group = block.warpgroups[f.warp / 4];
  Wgmma w;
  std::memcpy(&w, what, sizeof w);
  Product& p = product_of(group, w, pc);
  unsigned t = f.linear % 128;
  p.d[t] = d;
  if (w.a_in_registers) std::memcpy(p.a[t], a, 16);
  Accumulator& acc = group.accumulators[d];
  if (!acc.under_way++) {
    acc.values.assign(d, d + w.n / 2);
    std::memset(d, 0xff, w.n / 2 * 4);
  }
  if (++p.warp_lanes[t / 32] == 32) read_operands(p);
  if (++p.threads == 128)
    for (unsigned i = 0; i < 128; ++i)
      if (Fiber& other = *block.fibers[first + i]; other.state == ASYNC && !std::strcmp(other.waits, "wgmma_wait")) wake(other);
}

void rooftile_sim_wgmma_fence() { now->registers_fenced = true; }
void rooftile_sim_wgmma_commit() { now->product_groups.push_back({now->products_committed++, now->products}); }

void rooftile_sim_wgmma_wait(unsigned left) {
  uint32_t pc = HERE;
  Fiber& f = *now;
  f.registers_fenced = false;
  while (f.product_groups.size() > left) {
    uint32_t until = f.product_groups.front().second;
    Warpgroup* group = f.products ? &f.block->warpgroups[f.warp / 4] : nullptr;
    while (group && group->landed < until) {
      Product& p = *group->products.front();
      if (p.threads < 128) {
        block_in("wgmma_wait", pc);
        continue;
      }
      carry_out(*f.block, *group, p);
      group->products.pop_front(), ++group->landed;
    }
    f.product_groups.pop_front();
  }
  if (f.products_committed > left) f.known.reach(WGMMA, f.id - f.lane, f.products_committed - left), f.block->foreign = true;
}
}
