// The memory callbacks: whose memory is it, is it inside, is it aligned, was it ever written, who else touches it.
#pragma once
#include <algorithm>

#include "state.h"

namespace sim {

inline Region* search(std::deque<Region>& regions, Address a) {
  for (auto& r : regions)
    if (a >= r.begin && a < r.end) return &r;
  return nullptr;
}

// The region whose edge is nearest, to say by how much an access misses; within the redzones that lie between regions.
inline Region* neighbour(Address a) {
  Region* best = nullptr;
  Address distance = Address(1) << 30;
  auto look = [&](std::deque<Region>& regions) {
    for (auto& r : regions) {
      Address d = a < r.begin ? r.begin - a : a >= r.end ? a - r.end : 0;
      if (d < distance) distance = d, best = &r;
    }
  };
  look(now->block->shared);
  look(launch->buffers);
  return best;
}

inline void outside(Address a, unsigned bytes, unsigned how, uint32_t pc) {
  const char* verb = how & WRITE ? "writes" : "reads";
  std::string me = who(*now);
  if (a < 4096) fatal(OUT_OF_BOUNDS, pc, "%s %s %u bytes through a null pointer", me.c_str(), verb, bytes);
  if (!launch->dynamic_bytes && a - Address(now->block->arena) < 1024)
    fatal(OUT_OF_BOUNDS, pc, "%s %s %u bytes of dynamic shared memory, of which the launch asks for none (--shared BYTES)", me.c_str(), verb, bytes);
  Region* r = neighbour(a);
  if (!r) fatal(OUT_OF_BOUNDS, pc, "%s %s %u bytes at an address that is in no buffer and no shared array", me.c_str(), verb, bytes);
  long at = long(a) - long(r->begin), size = long(r->end - r->begin);
  fatal(OUT_OF_BOUNDS, pc, "%s %s %u bytes at offset %ld of %s, which has %ld bytes", me.c_str(), verb, bytes, at, r->name.c_str(), size);
}

void poison(Address a, unsigned bytes) {
  Region* r = search(now->block->shared, a);
  if (r) std::memset(&r->written[a - r->begin], 0, bytes);
}

void access(Address a, unsigned bytes, unsigned how, bool range, uint32_t pc, const Via* via) {
  Fiber& f = *now;
  f.pc = pc;
  if (a - Address(f.stack) < STACK || a - launch->arguments_begin < launch->arguments_bytes) return;  // its own locals, its parameters
  Region* r;
  if (a - Address(f.block->arena) < ARENA) {
    r = search(f.block->shared, a);
  } else {
    r = launch->last;  // most accesses are to where the one before was
    if (!r || a < r->begin || a >= r->end) r = search(launch->buffers, a);
    if (!r && a >= launch->code_begin && a + bytes <= launch->code_end) {  // __constant__ and __device__ variables, tables
      if (launch->level == ALL) race(launch->variables, a, bytes, how, pc, via);
      return;
    }
    launch->last = r;
  }
  if (!r || a + bytes > r->end) outside(a, bytes, how, pc);
  if (!range && a % bytes)
    fatal(MISALIGNED, pc, "%s %s %u bytes at offset %ld of %s, an address that is no multiple of %u", who(f).c_str(),
          how & WRITE ? "writes" : "reads", bytes, long(a - r->begin), r->name.c_str(), bytes);
  if (!range && bytes > r->align)
    find(MISALIGNED, pc, 0, "%s %s %u bytes of %s at one time, which is declared for %zu: __align__(%u) is missing", who(f).c_str(),
         how & WRITE ? "writes" : "reads", bytes, r->name.c_str(), r->align, bytes);
  if (launch->level == VALUES) return;
  if (r->shared) {
    uint8_t* written = &r->written[a - r->begin];
    if (how & WRITE && !(how & BOTH)) {
      std::memset(written, 1, bytes);
    } else if (std::memchr(written, 0, bytes)) {
      find(UNINITIALISED, pc, 0, "%s reads %u bytes at offset %ld of %s, which nobody has written", who(f).c_str(), bytes,
           long(a - r->begin), r->name.c_str());
      std::memset(written, 1, bytes);  // said once
    }
  }
  if (launch->level != ALL) return;
  if (!(how & (STRONG | UNCOUNTED)) && !via) f.log.push_back({pc, bytes, a, (how & WRITE) != 0, r->shared, (how & COPY) != 0});
  race(*r, a, bytes, how, pc, via);
}

}  // namespace sim

#define HOOK(name, bytes, how)                                                                                        \
  extern "C" void __tsan_##name(void* p) {                                                                            \
    if (sim::now) sim::access(sim::Address(p), bytes, how, false, sim::offset(__builtin_return_address(0)));          \
  }
#define HOOKS(bytes)                              \
  HOOK(read##bytes, bytes, sim::READ)             \
  HOOK(write##bytes, bytes, sim::WRITE)           \
  HOOK(unaligned_read##bytes, bytes, sim::READ)   \
  HOOK(unaligned_write##bytes, bytes, sim::WRITE) \
  HOOK(volatile_write##bytes, bytes, sim::WRITE | sim::STRONG)
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)

// A volatile read may be one of a loop that waits for another thread, so the others go first.
#define SPIN(bytes)                                                                                                              \
  extern "C" void __tsan_volatile_read##bytes(void* p) {                                                                         \
    if (!sim::now) return;                                                                                                       \
    uint32_t pc = sim::offset(__builtin_return_address(0));                                                                      \
    sim::now->pc = pc, sim::now->waits = "a volatile read", sim::now->spinning = true;                                           \
    sim::yield_fiber();                                                                                                          \
    sim::access(sim::Address(p), bytes, sim::READ | sim::STRONG, false, pc);                                                     \
  }
SPIN(1) SPIN(2) SPIN(4) SPIN(8) SPIN(16)

extern "C" {
void __tsan_read_range(void* p, long n) {
  if (sim::now) sim::access(sim::Address(p), unsigned(n), sim::READ, true, sim::offset(__builtin_return_address(0)));
}
void __tsan_write_range(void* p, long n) {
  if (sim::now) sim::access(sim::Address(p), unsigned(n), sim::WRITE, true, sim::offset(__builtin_return_address(0)));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
}

// g++ asks before each use of an array whose length it knows, a thread's own and those of __constant__ and __device__ memory too.
struct Typed { uint16_t kind, info; char name[1]; };
struct Indexed { const char* file; uint32_t line, column; const Typed *array, *index; };
extern "C" void __ubsan_handle_out_of_bounds(const Indexed* at, uintptr_t index) {
  if (!sim::now) return;
  bool is_signed = at->index->kind == 0 && at->index->info & 1;
  unsigned spare = 64 - std::min(64u, 1u << (at->index->info >> 1));
  long long value = is_signed ? (long long)(uint64_t(index) << spare) >> spare : (long long)index;
  sim::fatal(sim::OUT_OF_BOUNDS, sim::offset(__builtin_return_address(0)), "%s uses index %lld of an array %s", sim::who(*sim::now).c_str(), value, at->array->name);
}
