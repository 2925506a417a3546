// What a warp's requests cost: 32-byte sectors of global memory, wavefronts of shared memory (32 banks of 4 bytes).
// The n-th time that the lanes of a warp pass one instruction between two barriers is one request.
#pragma once
#include <algorithm>

#include "state.h"

namespace sim {

struct Gathered {
  uint32_t mask = 0, bytes = 0;
  Address address[32];
};

inline unsigned sectors(const Gathered& g) {
  Address seen[32 * 5];
  unsigned n = 0;
  for (unsigned l = 0; l < 32; ++l)
    if (g.mask >> l & 1)
      for (Address s = g.address[l] / 32; s <= (g.address[l] + std::min(g.bytes, 128u) - 1) / 32; ++s) seen[n++] = s;
  std::sort(seen, seen + n);
  return unsigned(std::unique(seen, seen + n) - seen);
}

// Accesses of 8 bytes go half a warp at a time, of 16 bytes a quarter; lanes that want the same word share it.
inline unsigned wavefronts(const Gathered& g) {
  unsigned together = g.bytes <= 4 ? 32 : g.bytes <= 8 ? 16 : 8, total = 0;
  for (unsigned first = 0; first < 32; first += together) {
    std::vector<Address> words;
    for (unsigned l = first; l < first + together; ++l)
      if (g.mask >> l & 1)
        for (Address w = g.address[l] / 4; w <= (g.address[l] + g.bytes - 1) / 4; ++w) words.push_back(w);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    unsigned in_bank[32] = {};
    for (Address w : words) ++in_bank[w % 32];
    total += *std::max_element(in_bank, in_bank + 32);
  }
  return total;
}

void flush(Block& block) {
  for (size_t first = 0; first < block.fibers.size(); first += 32) {
    using Key = std::tuple<uint32_t, bool, bool, bool>;
    std::map<Key, std::vector<Gathered>> requests;
    for (size_t i = first; i < std::min(first + 32, block.fibers.size()); ++i) {
      Fiber& f = *block.fibers[i];
      std::map<Key, size_t> passed;
      for (const Request& r : f.log) {
        auto key = Key(r.pc, r.shared, r.store, r.copied);
        size_t n = passed[key]++;
        auto& list = requests[key];
        if (list.size() <= n) list.emplace_back();
        list[n].mask |= 1u << f.lane, list[n].bytes = r.bytes, list[n].address[f.lane] = r.address;
      }
      f.log.clear();
    }
    for (auto& [key, list] : requests) {
      auto [pc, shared, store, copied] = key;
      AccessRow& row = launch->accesses[{pc, uint32_t(shared) * 4 + store * 2 + copied}];
      row.pc = pc, row.shared = shared, row.store = store, row.copied = copied;
      for (auto& g : list) row.bytes = g.bytes, ++row.requests, row.transactions += shared ? wavefronts(g) : sectors(g);
    }
  }
}

}  // namespace sim
