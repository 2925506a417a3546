// Reads of what passes through: once, beside next to nothing that is written.
#pragma once
#include "rooftile/policy.cuh"

namespace rooftile {

// The first to leave the L2, of `bytes` in all: lines that others wrote stay there, and are not brought to memory in this kernel's time. From some five times
// the L2 on such reads are slower than any others, for a reason not found, and leave what is there as it is: a policy that says "normal" is slower than
// none from there on, by a tenth on an H200.
ROOFTILE_DEVICE Policy evict_first(long long bytes) {
#ifdef ROOFTILE_SIMULATOR
  return bytes > 0;
#else
  constexpr long long MANY = 256 << 20;
  Policy first, any;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(any));
  return bytes > MANY ? any : first;
#endif
}

}  // namespace rooftile
