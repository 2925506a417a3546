// What Hopper does beside the threads: mbarriers, bulk and tensor copies; and named barriers. Declared to device code in device/prelude.h.
// A copy arrives as late as it can: when a thread waits for its barrier or its group, or when no thread of the block can go on without it.
// Until then its destination counts as never written, and a shared source is not read yet.
#pragma once
#include "state.h"

namespace sim {

inline void wake(Fiber& f) {
  f.state = READY;
  f.block->ready.push_back(&f);
  launch->progress = true;
}
inline void wake(std::vector<Fiber*>& list) {
  for (Fiber* f : list) wake(*f);
  list.clear();
}
inline void block_in(const char* what, uint32_t pc) {
  now->state = ASYNC, now->waits = what, now->pc = pc;
  yield_fiber();
}
inline void learn(Fiber& f, const Knowledge& all) {
  f.known.join(all);
  f.block->foreign = true;
}

// ---- mbarriers -------------------------------------------------------------------------------------------------------------

inline MBarrier& mbarrier(const void* p, const char* what, uint32_t pc) {
  access(Address(p), 8, READ | STRONG, false, pc);
  auto& all = now->block->mbarriers;
  auto i = all.find(Address(p));
  if (i == all.end()) fatal(UNINITIALISED, pc, "%s calls %s on an mbarrier that nobody has initialised", who(*now).c_str(), what);
  return i->second;
}

inline void complete(MBarrier& m) {
  if (m.pending || m.bytes) return;
  m.pending = m.count, ++m.phase;
  m.gathered.reach(MBARRIER, m.serial, m.phase);
  m.completed = m.gathered;
  wake(m.waiting);
}

inline bool deliver(MBarrier& m) {
  if (m.under_way.empty()) return false;
  std::vector<Transfer> all;
  all.swap(m.under_way);
  for (auto& t : all) t.land(), m.bytes -= t.bytes;
  complete(m);
  return true;
}

bool deliver(Block& b) {
  bool any = false;
  for (auto& [at, m] : b.mbarriers) any |= deliver(m);
  return any;
}

inline void arrive(MBarrier& m, uint32_t pc) {
  if (!m.pending)
    fatal(DIVERGENT_BARRIER, pc, "%s arrives at an mbarrier that has had all %u arrivals of its phase %u", who(*now).c_str(), m.count, m.phase);
  if (launch->level == ALL) m.gathered.join(told(*now));
  --m.pending;
  complete(m);
}

inline bool passed(const MBarrier& m, unsigned parity) { return (m.phase & 1) != (parity & 1); }

// ---- copies ----------------------------------------------------------------------------------------------------------------

struct Map {  // TensorMap in device code, as cuda/tensor_map.py fills it in for the simulator; innermost first
  uint64_t address;
  uint32_t rank, bytes, swizzle, size[5];
  uint64_t stride[4];  // of the outer dimensions, in bytes; sums wrap at 2^64, as the engine's do
  uint32_t box[5];
};

// The 16-byte chunks of each 128 bytes of shared memory change places by the number of the 128 bytes. An arena lies at a multiple of 4096.
inline Address swizzled(Address a, uint32_t span) { return a ^ (a >> 7 & (span ? span / 16 - 1 : 0)) << 4; }

inline void aligned(Address a, unsigned by, const char* what, const char* name, uint32_t pc) {
  if (a % by) fatal(MISALIGNED, pc, "%s calls %s with %s at an address that is no multiple of %u", who(*now).c_str(), name, what, by);
}

inline void aligned_bulk(const void* sX, const void* gX, unsigned bytes, const char* name, uint32_t pc) {
  aligned(Address(sX), 16, "shared memory", name, pc);
  aligned(Address(gX), 16, "global memory", name, pc);
  if (bytes % 16) fatal(MISALIGNED, pc, "%s calls %s with %u bytes, which is no multiple of 16", who(*now).c_str(), name, bytes);
}

inline Via load_via(MBarrier& m, const char* name, uint32_t pc) {
  if (!m.fenced) find(RACE, pc, 0, "%s calls %s on an mbarrier that no mbarrier_fence has shown to the copy engine", who(*now).c_str(), name);
  return {MBARRIER, m.serial, m.phase};
}
inline Via reading() { return {BULK_READ, now->id, now->bulk_committed}; }
inline Via writing() { return {BULK_WRITE, now->id, now->bulk_committed}; }

inline void into_shared(void* sX, unsigned bytes, const Via& via, uint32_t pc) {
  access(Address(sX), bytes, WRITE, true, pc, &via);
  std::memset(sX, 0xff, bytes);
  poison(Address(sX), bytes);
}
inline void written(Block& b, Address a, unsigned bytes) {
  for (auto& r : b.shared)
    if (a >= r.begin && a < r.end) std::memset(&r.written[a - r.begin], 1, bytes);
}

// Calls row(shared address, global address or 0 where the row is outside, bytes of the row that are inside, bytes before them).
template <class F> inline void rows_of(const Map& map, Address sX, const int* at, F row) {
  uint64_t rows = 1;
  for (unsigned d = 1; d < map.rank; ++d) rows *= map.box[d];
  long first = at[0], inside = std::min<long>(map.size[0], first + map.box[0]) - std::max(0l, first);
  for (uint64_t i = 0; i < rows; ++i) {
    uint64_t rest = i, from = map.address + std::max(0l, first) * map.bytes;
    bool there = inside > 0;
    for (unsigned d = 1; d < map.rank; ++d) {
      long c = at[d] + long(rest % map.box[d]);
      rest /= map.box[d];
      there = there && c >= 0 && c < long(map.size[d]);
      from += uint64_t(c) * map.stride[d - 1];
    }
    row(sX + i * map.box[0] * map.bytes, there ? from : 0, there ? unsigned(inside * map.bytes) : 0, unsigned(std::max(0l, -first) * map.bytes));
  }
}

inline Map tensor_map(const void* p, unsigned rank, const void* sX, const char* name, uint32_t pc) {
  Map map;
  std::memcpy(&map, p, sizeof map);
  if (!map.address || map.rank < 2 || map.rank > 5) fatal(OUT_OF_BOUNDS, pc, "%s calls %s with a tensor map that the host has not made", who(*now).c_str(), name);
  if (map.rank != rank)
    fatal(OUT_OF_BOUNDS, pc, "%s calls %s with %u coordinates, its tensor map has %u dimensions", who(*now).c_str(), name, rank, map.rank);
  aligned(Address(sX), 128, "shared memory", name, pc);
  return map;
}

inline unsigned box_bytes(const Map& map) {
  unsigned n = map.bytes;
  for (unsigned d = 0; d < map.rank; ++d) n *= map.box[d];
  return n;
}

// The box on its way to that place of that block, whose mbarrier m is.
inline void bring(Block& block, Address sX, const Map& map, const int* at, MBarrier& m, const Via& via, uint32_t pc) {
  struct Row { Address to, from; unsigned inside, before; };
  std::vector<Row> rows;
  rows_of(map, sX, at, [&](Address to, Address from, unsigned inside, unsigned before) {
    if (inside) access(from, inside, READ, true, pc, &via);
    rows.push_back({to, from, inside, before});
  });
  Block* b = &block;
  uint32_t width = map.box[0] * map.bytes, span = map.swizzle, all = box_bytes(map);
  m.under_way.push_back({pc, all, [=] {
    std::vector<char> row(width);
    for (const Row& r : rows) {
      std::fill(row.begin(), row.end(), 0);
      if (r.inside) std::memcpy(row.data() + r.before, reinterpret_cast<const void*>(r.from), r.inside);
      for (unsigned i = 0; i < width; i += 16) std::memcpy(reinterpret_cast<void*>(swizzled(r.to + i, span)), row.data() + i, std::min(16u, width - i));
    }
    written(*b, sX, all);
  }});
}

inline void reach_groups(unsigned left, Agent agent) {
  Fiber& f = *now;
  while (!f.bulk_groups.empty() && f.bulk_groups.front().first + left < f.bulk_committed) {
    for (auto& t : f.bulk_groups.front().second) t.land();
    f.bulk_groups.pop_front();
  }
  if (f.bulk_committed <= left) return;
  f.known.reach(agent, f.id, f.bulk_committed - left);
  f.block->foreign = true;
}

// ---- at the end ------------------------------------------------------------------------------------------------------------

void leave_async(Fiber& f) {
  const Transfer* t = !f.bulk_groups.empty() && !f.bulk_groups.front().second.empty() ? &f.bulk_groups.front().second.front()
                      : !f.bulk_open.empty()                                           ? &f.bulk_open.front()
                                                                                       : nullptr;
  if (t) fatal(RACE, t->pc, "%s ends while this copy still reads shared memory: no bulk_commit and bulk_wait_read cover it", who(f).c_str());
  if (f.products && (f.product_groups.empty() ? f.block->warpgroups[f.warp / 4].landed < f.products : true))
    fatal(RACE, f.product_pc, "%s ends while this product is under way: no wgmma_commit and wgmma_wait cover it", who(f).c_str());
}

void leave_async(Block& b) {
  for (auto& [at, m] : b.mbarriers)
    if (!m.under_way.empty())
      find(RACE, m.under_way.front().pc, 0, "%s is the last of its block to end, and nothing has waited for this copy", who(*now).c_str());
}

bool stuck(Block& b) {
  for (auto& f : b.fibers) {
    if (f->state != ASYNC) continue;
    unsigned waiting = 0;
    for (auto& other : b.fibers) waiting += other->state == ASYNC && other->pc == f->pc;
    std::string why = "which others do not come to";
    for (auto& [at, m] : b.mbarriers) {
      if (std::find(m.waiting.begin(), m.waiting.end(), f.get()) == m.waiting.end()) continue;
      char text[256];
      std::snprintf(text, sizeof text, "whose phase %u has %u of %u arrivals and %lld bytes %s", m.phase, m.count - m.pending, m.count,
                    (long long)std::abs(m.bytes), m.bytes < 0 ? "that nobody announced" : "announced that no copy brings");
      why = text;
    }
    find(TIMEOUT, f->pc, 0, "%u threads wait for ever in %s in line {%x}, %s (first %s)", waiting, f->waits, unsigned(f->pc), why.c_str(), who(*f).c_str());
    return true;
  }
  return false;
}

}  // namespace sim

extern "C" {

void rooftile_sim_mbarrier_init(void* p, unsigned count) {
  uint32_t pc = HERE;
  access(Address(p), 8, WRITE | UNCOUNTED, false, pc);
  std::memset(p, 0, 8);
  if (!count || count >= 1u << 20) fatal(DIVERGENT_BARRIER, pc, "%s makes an mbarrier for %u arrivals, there are 1 to 1048575", who(*now).c_str(), count);
  MBarrier& m = now->block->mbarriers[Address(p)];
  m = {};
  m.serial = ++launch->mbarriers, m.count = m.pending = count, m.maker = now->id;
}
void rooftile_sim_mbarrier_fence() {
  for (auto& [at, m] : now->block->mbarriers) m.fenced |= m.maker == now->id;
}
void rooftile_sim_mbarrier_arrive(void* p, unsigned bytes) {
  uint32_t pc = HERE;
  MBarrier& m = mbarrier(p, bytes ? "mbarrier_arrive_expect" : "mbarrier_arrive", pc);
  m.bytes += bytes;
  arrive(m, pc);
}
void rooftile_sim_mbarrier_expect(void* p, unsigned bytes) { mbarrier(p, "mbarrier_expect", HERE).bytes += bytes; }
void rooftile_sim_mbarrier_wait(void* p, unsigned parity) {
  uint32_t pc = HERE;
  MBarrier& m = mbarrier(p, "mbarrier_wait", pc);
  if (!passed(m, parity)) deliver(m);
  while (!passed(m, parity)) {
    m.waiting.push_back(now);
    block_in("mbarrier_wait", pc);
  }
  learn(*now, m.completed);
}
int rooftile_sim_mbarrier_test(void* p, unsigned parity) {
  uint32_t pc = HERE;
  MBarrier& m = mbarrier(p, "mbarrier_test", pc);
  if (passed(m, parity)) {
    learn(*now, m.completed);
    return 1;
  }
  deliver(m);
  now->pc = pc, now->waits = "mbarrier_test", now->spinning = true;
  yield_fiber();
  return 0;
}
void rooftile_sim_fence_async(int global) {
  now->known.reach(global ? PROXY_GLOBAL : PROXY, now->id, ++now->clock);
  now->block->foreign = true;
}

void rooftile_sim_named_barrier(unsigned id, unsigned threads, int wait) {
  uint32_t pc = HERE;
  const char* what = wait ? "barrier_sync" : "barrier_arrive";
  Fiber& f = *now;
  if (id < 1 || id > 15 || threads % 32 || !threads || threads > launch->threads)
    fatal(DIVERGENT_BARRIER, pc, "%s calls %s for barrier %u of %u threads; there are barriers 1 to 15, of a multiple of 32 threads up to the block's %u",
          who(f).c_str(), what, id, threads, launch->threads);
  NamedBarrier& b = f.block->named[id];
  if (b.arrived && b.threads != threads)
    fatal(DIVERGENT_BARRIER, pc, "%s calls %s for barrier %u of %u threads, others for %u", who(f).c_str(), what, id, threads, b.threads);
  b.threads = threads;
  if (launch->level == ALL) b.gathered.join(told(f));
  if (++b.arrived < threads) {
    if (!wait) return;
    b.waiting.push_back(&f);
    return block_in(what, pc);
  }
  Knowledge all;
  std::swap(all, b.gathered);
  b.arrived = 0;
  for (Fiber* other : b.waiting) learn(*other, all);
  wake(b.waiting);
  if (wait) learn(f, all);
}

void rooftile_sim_bulk_load(void* sX, const void* gX, unsigned bytes, void* bar) {
  uint32_t pc = HERE;
  MBarrier& m = mbarrier(bar, "bulk_load", pc);
  aligned_bulk(sX, gX, bytes, "bulk_load", pc);
  if (!bytes) return;
  Via via = load_via(m, "bulk_load", pc);
  access(Address(gX), bytes, READ, true, pc, &via);
  into_shared(sX, bytes, via, pc);
  Block* b = now->block;
  m.under_way.push_back({pc, bytes, [=] {
    std::memcpy(sX, gX, bytes);
    written(*b, Address(sX), bytes);
  }});
}

void rooftile_sim_bulk_store(void* gX, const void* sX, unsigned bytes, int add) {
  uint32_t pc = HERE;
  aligned_bulk(sX, gX, bytes, add ? "bulk_add" : "bulk_store", pc);
  if (!bytes) return;
  Via from = reading(), to = writing();
  access(Address(sX), bytes, READ, true, pc, &from);
  access(Address(gX), bytes, add ? WRITE | STRONG : WRITE, true, pc, &to);
  now->bulk_open.push_back({pc, bytes, [=] {
    if (!add) return void(std::memcpy(gX, sX, bytes));
    for (unsigned i = 0; i < bytes / 4; ++i) static_cast<float*>(gX)[i] += static_cast<const float*>(sX)[i];
  }});
}

void rooftile_sim_tensor_load(void* sX, const void* p, void* bar, unsigned rank, const int* at) {
  uint32_t pc = HERE;
  MBarrier& m = mbarrier(bar, "tensor_load", pc);
  Map map = tensor_map(p, rank, sX, "tensor_load", pc);
  Via via = load_via(m, "tensor_load", pc);
  into_shared(sX, box_bytes(map), via, pc);
  bring(*now->block, Address(sX), map, at, m, via, pc);
}

void rooftile_sim_tensor_store(const void* p, const void* sX, unsigned rank, const int* at) {
  uint32_t pc = HERE;
  Map map = tensor_map(p, rank, sX, "tensor_store", pc);
  Via from = reading(), to = writing();
  access(Address(sX), box_bytes(map), READ, true, pc, &from);
  struct Row { Address from, to; unsigned inside, before; };
  std::vector<Row> rows;
  rows_of(map, Address(sX), at, [&](Address from, Address to_row, unsigned inside, unsigned before) {
    if (!inside) return;
    access(to_row, inside, WRITE, true, pc, &to);
    rows.push_back({from, to_row, inside, before});
  });
  uint32_t width = map.box[0] * map.bytes, span = map.swizzle;
  now->bulk_open.push_back({pc, box_bytes(map), [=] {
    std::vector<char> row(width);
    for (const Row& r : rows) {
      for (unsigned i = 0; i < width; i += 16) std::memcpy(row.data() + i, reinterpret_cast<const void*>(swizzled(r.from + i, span)), std::min(16u, width - i));
      std::memcpy(reinterpret_cast<void*>(r.to), row.data() + r.before, r.inside);
    }
  }});
}

void rooftile_sim_bulk_commit() {
  now->bulk_groups.push_back({now->bulk_committed++, std::move(now->bulk_open)});
  now->bulk_open.clear();
}
void rooftile_sim_bulk_wait(unsigned left, int read_only) {
  reach_groups(left, BULK_READ);
  if (!read_only) reach_groups(left, BULK_WRITE);
}
}
