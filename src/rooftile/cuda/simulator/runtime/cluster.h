// Blocks of a cluster: who is who, the barrier they have in common, stores and copies into each other's shared memory, and arrivals at each other's mbarriers.
#pragma once
#include "async.h"

namespace sim {

inline unsigned cluster_rank(const Block& b) { return b.id % launch->cluster; }

// The block of that rank in the caller's cluster. It must have begun and not ended.
inline Block& ranked(unsigned rank, const char* what, uint32_t pc) {
  if (rank >= launch->cluster) fatal(OUT_OF_BOUNDS, pc, "%s calls %s for rank %u of a cluster of %u blocks", who(*now).c_str(), what, rank, launch->cluster);
  uint32_t id = now->block->id - cluster_rank(*now->block) + rank;
  for (auto& b : *launch->resident)
    if (b->id == id && b->alive) return *b;
  fatal(RACE, pc, "%s calls %s for block %u, which has ended, or not begun: no cluster barrier stands between", who(*now).c_str(), what, id);
}

// The region of the other block that `region` is of this one's, by the array it is.
inline Region& twin(const Region& region, Block& other, const char* what, uint32_t pc) {
  if (&other == now->block) return const_cast<Region&>(region);
  for (auto& r : other.shared)
    if (r.key == region.key && r.name == region.name) return r;
  fatal(RACE, pc, "%s calls %s for block %u, which has not come to %s: no cluster barrier stands between", who(*now).c_str(), what, other.id, region.name.c_str());
}

struct Place { Block* block; Region* region; Address at; };

inline Place placed(const void* p, unsigned bytes, unsigned by, unsigned rank, const char* what, uint32_t pc) {
  now->pc = pc;
  Block& other = ranked(rank, what, pc);
  Region* own = search(now->block->shared, Address(p));
  if (!own || Address(p) + bytes > own->end) outside(Address(p), bytes, WRITE, pc);
  aligned(Address(p), by, "shared memory", what, pc);
  Region& r = twin(*own, other, what, pc);
  return {&other, &r, r.begin + (Address(p) - own->begin)};
}

inline MBarrier& mbarrier_of(const void* p, unsigned rank, const char* what, uint32_t pc) {
  Place b = placed(p, 8, 8, rank, what, pc);
  auto found = b.block->mbarriers.find(b.at);
  if (found == b.block->mbarriers.end())
    fatal(UNINITIALISED, pc, "%s calls %s on an mbarrier of block %u that nobody has initialised", who(*now).c_str(), what, b.block->id);
  return found->second;
}

// What is there is gone, and what comes has not arrived.
inline void overwrite(const Place& p, unsigned bytes, const Via& via, uint32_t pc) {
  if (launch->level == ALL) race(*p.region, p.at, bytes, WRITE, pc, &via);
  std::memset(reinterpret_cast<void*>(p.at), 0xff, bytes);
  std::memset(&p.region->written[p.at - p.region->begin], 0, bytes);
}

}  // namespace sim

extern "C" {

unsigned rooftile_sim_cluster_rank() { return cluster_rank(*now->block); }

void rooftile_sim_cluster_arrive() {
  uint32_t pc = HERE;
  Cluster& c = launch->clusters[now->block->id / launch->cluster];
  if (now->cluster_arrivals > c.phase) fatal(DIVERGENT_BARRIER, pc, "%s arrives at the cluster's barrier twice, with no cluster_wait between", who(*now).c_str());
  ++now->cluster_arrivals;
  if (launch->level == ALL) c.gathered.join(told(*now));
  if (++c.arrived < launch->cluster * launch->threads) return;
  c.arrived = 0, ++c.phase;
  std::swap(c.completed, c.gathered);
  c.gathered = {};
  wake(c.waiting);
}
void rooftile_sim_cluster_wait() {
  uint32_t pc = HERE;
  Cluster& c = launch->clusters[now->block->id / launch->cluster];
  while (c.phase < now->cluster_arrivals) {
    c.waiting.push_back(now);
    block_in("cluster_wait", pc);
  }
  learn(*now, c.completed);
}

void rooftile_sim_store_cluster(void* sX, unsigned rank, const void* value, unsigned bytes) {
  uint32_t pc = HERE;
  Place p = placed(sX, bytes, bytes, rank, "store_cluster", pc);
  if (launch->level == ALL) race(*p.region, p.at, bytes, WRITE, pc, nullptr);
  std::memcpy(reinterpret_cast<void*>(p.at), value, bytes);
  std::memset(&p.region->written[p.at - p.region->begin], 1, bytes);
}

// Arrives as late as it can, as a copy does, and releases what the thread has done before.
void rooftile_sim_store_async(void* sX, unsigned rank, const void* value, unsigned bytes, void* bar) {
  uint32_t pc = HERE;
  Place p = placed(sX, bytes, bytes, rank, "store_async", pc);
  MBarrier& m = mbarrier_of(bar, rank, "store_async", pc);
  overwrite(p, bytes, load_via(m, "store_async", pc), pc);
  if (launch->level == ALL) m.gathered.join(told(*now));
  std::vector<char> data(static_cast<const char*>(value), static_cast<const char*>(value) + bytes);
  m.under_way.push_back({pc, bytes, [=] {
    std::memcpy(reinterpret_cast<void*>(p.at), data.data(), data.size());
    written(*p.block, p.at, unsigned(data.size()));
  }});
  launch->progress = true;
}

void rooftile_sim_mbarrier_arrive_at(void* bar, unsigned rank) {
  uint32_t pc = HERE;
  arrive(mbarrier_of(bar, rank, "mbarrier_arrive", pc), pc);
}

// To the same place of the first `blocks` blocks, each told by its own mbarrier.
void rooftile_sim_multicast_load(void* sX, const void* p, void* bar, unsigned rank, const int* at, unsigned blocks) {
  uint32_t pc = HERE;
  Map map = tensor_map(p, rank, sX, "multicast_load", pc);
  for (unsigned i = 0; i < blocks; ++i) {
    Place to = placed(sX, box_bytes(map), 128, i, "multicast_load", pc);
    MBarrier& m = mbarrier_of(bar, i, "multicast_load", pc);
    Via via = load_via(m, "multicast_load", pc);
    overwrite(to, box_bytes(map), via, pc);
    bring(*to.block, to.at, map, at, m, via, pc);
  }
  launch->progress = true;
}
}
