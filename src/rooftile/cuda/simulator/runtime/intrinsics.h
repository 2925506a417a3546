// What device code calls: barriers, warp intrinsics, shared memory, atomics, asynchronous copies. Declared to it in device/prelude.h.
#pragma once
#include "state.h"

namespace sim {

// Waits until every lane of the mask is here; then `values` of all of them may be read until leave().
inline Collective& meet(uint32_t mask, const void* value, unsigned bytes, const char* what, uint32_t pc) {
  Fiber& f = *now;
  Block& b = *f.block;
  f.pc = pc;
  if (!(mask >> f.lane & 1)) fatal(BAD_MASK, pc, "%s is lane %u and calls %s with mask 0x%08x, which does not name it", who(f).c_str(), f.lane, what, mask);
  unsigned there = std::min(32u, launch->threads - f.warp * 32);
  uint32_t lanes = mask & (there == 32 ? ~0u : (1u << there) - 1);
  for (unsigned l = 0; l < there; ++l)
    if (lanes >> l & 1 && b.fibers[f.warp * 32 + l]->state == DONE)
      fatal(BAD_MASK, pc, "%s calls %s with mask 0x%08x, which names lane %u, which has left the kernel", who(f).c_str(), what, mask, l);
  Collective* c = nullptr;
  for (auto& open : b.collectives[f.warp])
    if (open->mask == lanes && open->arrived != lanes && !(open->arrived >> f.lane & 1) && !std::strcmp(open->what, what)) c = open.get();
  if (!c) {
    b.collectives[f.warp].push_back(std::make_unique<Collective>());
    c = b.collectives[f.warp].back().get();
    c->mask = c->leaving = lanes, c->what = what;
  }
  std::memcpy(c->values[f.lane], value, bytes);
  c->arrived |= 1u << f.lane;
  if (c->arrived == lanes) {
    for (unsigned l = 0; l < there; ++l)
      if (lanes >> l & 1 && l != f.lane) {
        Fiber& other = *b.fibers[f.warp * 32 + l];
        other.state = READY;
        b.ready.push_back(&other);
      }
    launch->progress = true;
    if (!std::strcmp(what, "__syncwarp") && launch->level == ALL) sync_warp(b, f.warp, lanes);
  } else {
    f.state = COLLECTIVE, f.waits = what;
    yield_fiber();
  }
  return *c;
}

inline void leave(Collective& c) {
  c.leaving &= ~(1u << now->lane);
  if (c.leaving) return;
  auto& list = now->block->collectives[now->warp];
  for (auto i = list.begin(); i != list.end(); ++i)
    if (i->get() == &c) {
      list.erase(i);
      return;
    }
}

inline int wait_for_block(int vote, const char* what, uint32_t pc) {
  Fiber& f = *now;
  Block& b = *f.block;
  f.pc = pc;
  if (b.alive < launch->threads) {
    unsigned gone = 0;
    while (b.fibers[gone]->state != DONE) ++gone;
    fatal(DIVERGENT_BARRIER, pc, "%s waits in %s, which %s has left the kernel without reaching", who(f).c_str(), what, who(*b.fibers[gone]).c_str());
  }
  if (b.arrived == 0) b.barrier_pc = pc;
  else if (b.barrier_pc != pc)  // Python drops it where both are one line, which the compiler has doubled
    find(DIVERGENT_BARRIER, pc, b.barrier_pc, "%s waits in the %s here while others of its block wait in the one in line {%x}", who(f).c_str(), what, b.barrier_pc);
  b.votes += vote != 0;
  if (++b.arrived < launch->threads) {
    f.state = BARRIER, f.waits = what;
    yield_fiber();
    return b.counted;
  }
  b.counted = b.votes, b.votes = 0, b.arrived = 0;
  ++b.generation;
  if (launch->level == ALL) flush(b);
  if (b.foreign) {
    Knowledge all;
    for (auto& other : b.fibers) all.join(other->known);
    for (auto& other : b.fibers) other->known = all;
  }
  for (auto& other : b.fibers)
    if (other.get() != &f) {
      other->state = READY;
      b.ready.push_back(other.get());
    }
  launch->progress = true;
  return b.counted;
}

inline void land(const std::vector<Copy>& group) {
  for (const Copy& c : group) {
    access(Address(c.to), c.bytes, WRITE | UNCOUNTED, true, c.pc);
    std::memcpy(c.to, c.from, c.bytes - c.zeros);
    std::memset(static_cast<char*>(c.to) + c.bytes - c.zeros, 0, c.zeros);
  }
}

}  // namespace sim

#define HERE sim::offset(__builtin_return_address(0))
using namespace sim;

extern "C" {

Index rooftile_sim_thread() { return now->index; }
Index rooftile_sim_block() { return now->block->index; }
Index rooftile_sim_block_size() { return launch->block; }
Index rooftile_sim_grid_size() { return launch->grid; }
unsigned rooftile_sim_lane() { return now->lane; }

void* rooftile_sim_dynamic() {
  return launch->dynamic_bytes ? reinterpret_cast<void*>(now->block->shared.front().begin) : now->block->arena;
}

// An array lies well, so that a float[] that is read as float4 can go on; that it is declared for less is told.
void* rooftile_sim_shared(const void* key, const char* name, size_t bytes, size_t align) {
  Block& b = *now->block;
  for (auto& r : b.shared)
    if (r.key == key) return reinterpret_cast<void*>(r.begin);
  b.static_bytes += bytes;
  if (b.static_bytes > STATIC_LIMIT) fatal(TOO_LARGE, HERE, "%zu bytes of static shared memory, at most %zu", b.static_bytes, STATIC_LIMIT);
  if (b.static_bytes + launch->dynamic_bytes > SHARED_LIMIT)
    fatal(TOO_LARGE, HERE, "%zu bytes of shared memory, at most %zu", b.static_bytes + launch->dynamic_bytes, SHARED_LIMIT);
  Address at = (Address(b.arena_next) + 127) / 128 * 128;
  at = (at + align - 1) / align * align;
  Region r = region(at, bytes, std::string("shared array ") + name, true);
  r.key = key, r.align = align;
  r.written.assign(bytes, 0);
  std::memset(reinterpret_cast<void*>(at), 0xff, bytes);
  b.shared.push_back(std::move(r));
  b.arena_next = reinterpret_cast<char*>(at) + bytes + REDZONE;
  return reinterpret_cast<void*>(at);
}

int rooftile_sim_barrier(int vote, const char* what) { return wait_for_block(vote, what, HERE); }

// Copies the values of all lanes, 0 where a lane takes no part, to `all`; returns the lanes that take part.
unsigned rooftile_sim_exchange(unsigned mask, const void* value, unsigned bytes, void* all, const char* what) {
  Collective& c = meet(mask, value, bytes, what, HERE);
  for (unsigned l = 0; l < 32; ++l) std::memcpy(static_cast<char*>(all) + l * bytes, c.values[l], bytes);
  uint32_t lanes = c.mask;
  leave(c);
  return lanes;
}

uint64_t rooftile_sim_shuffle(unsigned mask, uint64_t value, int how, int by, int width, const char* what) {
  uint32_t pc = HERE;
  if (width < 1 || width > 32 || width & (width - 1))
    fatal(BAD_MASK, pc, "%s calls %s with width %d, which must be 1, 2, 4, 8, 16 or 32", who(*now).c_str(), what, width);
  by &= 31;  // the hardware reads five bits
  Collective& c = meet(mask, &value, 8, what, pc);
  int lane = int(now->lane), base = lane & ~(width - 1), from;
  switch (how) {
    case 0: from = base + (by & (width - 1)); break;
    case 1: from = lane - by < base ? lane : lane - by; break;
    case 2: from = lane + by >= base + width ? lane : lane + by; break;
    default: from = (lane ^ by) >= base + width ? lane : lane ^ by;
  }
  if (!(c.mask >> from & 1))
    fatal(BAD_MASK, pc, "%s reads lane %d through %s with mask 0x%08x, and that lane takes no part", who(*now).c_str(), from, what, mask);
  std::memcpy(&value, c.values[from], 8);
  leave(c);
  return value;
}

void rooftile_sim_strong(void* p, unsigned bytes, unsigned how) {  // an atomic or a volatile access comes
  uint32_t pc = HERE;
  if (how == (READ | STRONG)) {
    now->pc = pc, now->waits = "a volatile read", now->spinning = true;
    yield_fiber();
  }
  access(Address(p), bytes, how, false, pc);
  if (how & BOTH) quantum = std::max(quantum, 64);  // the read, the combination and the write are not to be interrupted
}
void rooftile_sim_access(const void* p, unsigned bytes, unsigned how) { access(Address(p), bytes, how, false, HERE); }
void rooftile_sim_range(const void* p, unsigned bytes, unsigned how) { access(Address(p), bytes, how, true, HERE); }

void rooftile_sim_pause() {
  now->pc = HERE, now->waits = "a pause", now->spinning = true;
  yield_fiber();
}
void rooftile_sim_not_modelled(const char* what) { fatal(NOT_MODELLED, HERE, "the simulator does not model %s", what); }
void rooftile_sim_fence() { fence(*now); }
unsigned rooftile_sim_active() {
  unsigned lanes = 0;
  for (unsigned l = 0; l < std::min(32u, launch->threads - now->warp * 32); ++l)
    lanes |= unsigned(now->block->fibers[now->warp * 32 + l]->state != DONE) << l;
  return lanes;
}
// All threads of the grid meet. Those that wait let further blocks begin.
void rooftile_sim_grid_sync() {
  uint32_t pc = HERE;
  Cluster& c = launch->whole;
  uint32_t mine = c.phase;
  if (launch->level == ALL) c.gathered.join(told(*now));
  if (++c.arrived == uint64_t(launch->grid.x) * launch->grid.y * launch->grid.z * launch->threads) {
    c.arrived = 0, ++c.phase;
    std::swap(c.completed, c.gathered);
    c.gathered = {};
    launch->progress = true;
  }
  while (c.phase == mine) {
    now->pc = pc, now->waits = "grid.sync", now->spinning = true;
    yield_fiber();
  }
  if (launch->level == ALL) now->known.join(c.completed), now->block->foreign = true;
}
long long rooftile_sim_clock() { return launch->steps; }

// The bytes arrive at the wait and not before; until then the destination counts as never written.
void rooftile_sim_copy_async(void* to, const void* from, unsigned bytes, unsigned zeros) {
  uint32_t pc = HERE;
  access(Address(to), bytes, WRITE | COPY, false, pc);
  if (bytes > zeros) access(Address(from), bytes - zeros, READ | COPY, true, pc);
  if (Address(from) % bytes) fatal(MISALIGNED, pc, "%s copies %u bytes from an address that is no multiple of %u", who(*now).c_str(), bytes, bytes);
  std::memset(to, 0xff, bytes);
  poison(Address(to), bytes);
  now->open.push_back({to, from, bytes, zeros, pc});
}
void rooftile_sim_copy_commit() {
  now->groups.push_back(std::move(now->open));
  now->open.clear();
}
void rooftile_sim_copy_wait(unsigned left) {
  while (now->groups.size() > left) {
    land(now->groups.front());
    now->groups.pop_front();
  }
}
}
