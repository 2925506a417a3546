// Who happened before whom. Two accesses to the same bytes race when one writes, they are not both strong, and neither is known to the
// other's thread to lie before: by a barrier of the block, by __syncwarp, by an mbarrier or a named barrier, or by a fence, a flag (atomic or
// volatile) and a fence.
#pragma once
#include "state.h"

namespace sim {

inline uint32_t block_of(uint32_t thread) { return (thread - 1) / launch->threads; }

inline bool before(const Stamp& s, const Fiber& f) {
  if (s.agent) return f.known.passed(s.agent, s.owner, s.clock);  // a barrier that nobody waited before orders no agent
  if (s.thread == f.id) return true;
  uint32_t b = block_of(s.thread);
  if (b == f.block->id) {
    if (s.generation < f.block->generation) return true;
    unsigned linear = s.thread - 1 - b * launch->threads;
    if (linear / 32 == f.warp && f.warp_known[linear % 32] > s.clock) return true;
  }
  if (f.known.empty()) return false;
  auto i = f.known.blocks.find(b);
  if (i != f.known.blocks.end() && i->second > s.generation) return true;
  auto j = f.known.threads.find(s.thread);
  return j != f.known.threads.end() && j->second > s.clock;
}

inline bool block_before(uint32_t block, uint32_t generation, const Fiber& f) {
  if (block == f.block->id) return generation < f.block->generation;
  auto i = f.known.blocks.find(block);
  return i != f.known.blocks.end() && i->second > generation;
}

inline bool readers_before(const Cell& c, const Fiber& f) {
  const Stamp& s = c.reader;
  if (!s.thread) return true;
  switch (c.readers) {
    case ONE: return before(s, f);
    case WARP: {
      uint32_t b = block_of(s.thread), warp = (s.thread - 1 - b * launch->threads) / 32;
      if (block_before(b, s.generation, f)) return true;
      if (b != f.block->id || warp != f.warp) return false;
      for (unsigned l = 0; l < 32; ++l)
        if (c.lanes >> l & 1 && l != f.lane && f.warp_known[l] <= s.clock) return false;
      return true;
    }
    case BLOCK: return block_before(block_of(s.thread), s.generation, f);
    default:
      for (auto [b, g] : launch->reader_lists[c.lanes])
        if (!block_before(b, g, f)) return false;
      return true;
  }
}

inline void add_reader(Cell& c, const Stamp& mine, const Fiber& f) {
  const Stamp old = c.reader;
  if (!old.thread || readers_before(c, f)) {
    c.reader = mine, c.readers = ONE, c.other_thread = 0;
    return;
  }
  if (old.thread != mine.thread) c.other_thread = old.thread, c.other_pc = old.pc;
  uint32_t b = block_of(old.thread);
  unsigned lane = (old.thread - 1 - b * launch->threads) % 32, warp = (old.thread - 1 - b * launch->threads) / 32;
  bool both_strong = old.strong && mine.strong;
  uint32_t clock = std::max(old.clock, mine.clock);
  if (c.readers == MANY || b != f.block->id) {
    if (c.readers != MANY) {
      launch->reader_lists.push_back({{b, old.generation}});
      c.lanes = uint32_t(launch->reader_lists.size() - 1), c.readers = MANY;
    }
    auto& list = launch->reader_lists[c.lanes];
    auto found = std::find_if(list.begin(), list.end(), [&](auto& e) { return e.first == f.block->id; });
    if (found == list.end()) list.push_back({f.block->id, mine.generation});
    else found->second = mine.generation;
  } else if (c.readers == BLOCK || warp != f.warp) {
    c.readers = BLOCK;
  } else {
    c.lanes = (c.readers == WARP ? c.lanes : 1u << lane) | 1u << f.lane;
    c.readers = WARP;
  }
  c.reader = mine, c.reader.strong = both_strong, c.reader.clock = clock;
}

inline void add_agent(Cell& c, const Stamp& mine) {
  if (!c.agents) {
    c.agents = uint32_t(launch->agent_readers.size());
    launch->agent_readers.emplace_back();
  }
  auto& list = launch->agent_readers[c.agents];
  auto place = std::lower_bound(list.begin(), list.end(), mine, [](const Stamp& a, const Stamp& b) { return key(a.agent, a.owner) < key(b.agent, b.owner); });
  if (place != list.end() && place->agent == mine.agent && place->owner == mine.owner) *place = mine;  // its work completes in order
  else list.insert(place, mine);
}

inline std::string where(uint32_t thread) {
  uint32_t b = block_of(thread), t = (thread - 1) % launch->threads;
  const Index &g = launch->grid, &n = launch->block;
  Fiber other;
  Block home;
  home.index = {b % g.x, b / g.x % g.y, b / g.x / g.y};
  other.block = &home, other.index = {t % n.x, t / n.x % n.y, t / n.x / n.y};
  return who(other);
}

// "offset 4 of out"; of a file's own variables by the names that the linker knows.
inline std::string place(const Region& r, Address a) {
  Dl_info found;
  if (&r != &launch->variables) return "offset " + std::to_string(a - r.begin) + " of " + r.name;
  if (!dladdr(reinterpret_cast<void*>(a), &found) || !found.dli_sname) return "a __device__ variable";
  char* plain = abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, nullptr);  // of one in a namespace
  std::string name = plain ? plain : found.dli_sname;
  std::free(plain);
  return "offset " + std::to_string(a - Address(found.dli_saddr)) + " of " + name;
}

// Threads and agents reach memory by different ways: what a thread has stored an agent sees only after the thread's fence_async.
inline void unfenced(const Region& r, Address a, const Stamp& s, uint32_t pc) {
  find(RACE, pc, s.pc, "%s lets a copy or a tensor core use %s, which %s writes in line {%x} with no %s after it",
       who(*now).c_str(), place(r, a).c_str(), where(s.thread).c_str(), unsigned(s.pc), r.shared ? "fence_async" : "fence_async_global");
}

inline Stamp another(const Cell& c, const Fiber& f) {  // of the readers, for a thread that may be the last of them itself
  Stamp they = c.reader;
  if (they.thread == f.id && c.other_thread) they.thread = c.other_thread, they.pc = c.other_pc;
  return they;
}

inline void racing(const Region& r, Address a, const Stamp& s, bool they_write, unsigned how, uint32_t pc) {
  if (s.agent)
    return find(RACE, pc, s.pc, "%s %s %s, which the copy or product of line {%x} %s, and nothing has waited for that",
                who(*now).c_str(), how & WRITE ? "writes" : "reads", place(r, a).c_str(), unsigned(s.pc), they_write ? "writes" : "reads");
  find(RACE, pc, s.pc, "%s %s %s, which %s %s in line {%x} with nothing in between that orders the two", who(*now).c_str(),
       how & WRITE ? "writes" : "reads", place(r, a).c_str(), where(s.thread).c_str(), they_write ? "writes" : "reads",
       unsigned(s.pc));
  Finding& f = launch->findings.back();
  if (f.kind == RACE && f.pc == pc && f.other_pc == s.pc) f.plain_read = !(how & WRITE) && s.strong ? pc : !they_write && how & BOTH ? s.pc : 0;
}

// Volatile accesses do not race, but they do not hold the lanes of a warp in step either, as code written before Volta has it. A single word is
// a flag, which lanes may look at when they like.
inline void out_of_step(const Region& r, Address a, const Stamp& s, bool they_write, unsigned how, uint32_t pc) {
  if (s.atomic || s.agent || s.thread == now->id || block_of(s.thread) != now->block->id) return;
  if ((s.thread - 1) % launch->threads / 32 != now->warp) return;
  find(RACE, pc, s.pc, "%s %s %s, which %s %s in line {%x}: volatile does not hold the lanes of a warp in step, __syncwarp() is missing in between",
       who(*now).c_str(), how & WRITE ? "writes" : "reads", place(r, a).c_str(), where(s.thread).c_str(), they_write ? "writes" : "reads",
       unsigned(s.pc));
}

inline void refine(Page& p, unsigned granule) {
  std::vector<Cell> finer;
  finer.reserve(p.cells.size() * p.granule / granule);
  for (auto& c : p.cells)
    for (unsigned i = 0; i < p.granule / granule; ++i) {
      finer.push_back(c);
      if (!i || !c.agents) continue;  // each part has a list of its own
      finer.back().agents = uint32_t(launch->agent_readers.size());
      launch->agent_readers.push_back(std::vector<Stamp>(launch->agent_readers[c.agents]));
    }
  p.cells.swap(finer);
  p.granule = granule;
}

inline Page& page_of(Region& r, size_t i) {
  size_t size = r.end - r.begin;
  if (r.pages.empty()) r.pages.resize((size + PAGE - 1) / PAGE);
  auto& p = r.pages[i];
  if (!p) {
    p = std::make_unique<Page>();
    p->cells.resize((std::min(PAGE, size - i * PAGE) + p->granule - 1) / p->granule);
  }
  return *p;
}

void race(Region& r, Address a, unsigned bytes, unsigned how, uint32_t pc, const Via* via) {
  Fiber& f = *now;
  Stamp mine;
  mine.thread = f.id, mine.generation = f.block->generation, mine.clock = f.clock, mine.pc = pc, mine.strong = (how & STRONG) != 0, mine.atomic = (how & BOTH) != 0;
  bool in_step = r.shared && mine.strong && !mine.atomic && r.end - r.begin > bytes;  // what somebody may have taken warps to be
  if (via) mine.agent = via->agent, mine.owner = via->owner, mine.clock = via->clock;
  auto each = [&](Cell& c) {
    if (c.writer.thread && !(c.writer.strong && mine.strong) && !before(c.writer, f)) racing(r, a, c.writer, true, how, pc);
    else if (via && c.writer.thread && !c.writer.agent && !f.known.passed(r.shared ? PROXY : PROXY_GLOBAL, c.writer.thread, c.writer.clock)) unfenced(r, a, c.writer, pc);
    else if (in_step && c.writer.thread && !before(c.writer, f)) out_of_step(r, a, c.writer, true, how, pc);
    if (how & WRITE) {
      if (c.reader.thread && !(c.reader.strong && mine.strong) && !readers_before(c, f)) {
        racing(r, a, another(c, f), false, how, pc);
      } else if (in_step && c.reader.thread && (c.readers == ONE || c.readers == WARP) && !readers_before(c, f)) {
        out_of_step(r, a, another(c, f), false, how, pc);
      }
      for (const Stamp& s : launch->agent_readers[c.agents])
        if (!before(s, f)) racing(r, a, s, false, how, pc);
      if (c.agents) launch->agent_readers[c.agents].clear();
      c.writer = mine, c.reader.thread = 0, c.readers = ONE;
    } else if (via || (launch->one_by_one && r.shared && !mine.strong)) {
      if (!via) mine.owner = f.id;
      add_agent(c, mine);
    } else {
      add_reader(c, mine, f);
    }
  };
  for (size_t at = a - r.begin, end = at + bytes; at < end;) {
    size_t i = at / PAGE, stop = std::min(end, (i + 1) * PAGE);
    Page& p = page_of(r, i);
    unsigned narrow = unsigned(at | stop | p.granule);
    narrow &= ~narrow + 1;
    if (narrow < p.granule) refine(p, narrow);
    for (; at < stop; at += p.granule) each(p.cells[at % PAGE / p.granule]);
  }
  if (!via) flagged(f, a, how);
}

// What an atomic or volatile access reads, and what it tells others.
void flagged(Fiber& f, Address a, unsigned how) {
  if (how & COMPARED && f.read == a) launch->confirmed.insert(f.read_pc);
  f.read = how ? 0 : a, f.read_pc = f.pc;
  if (!(how & STRONG)) return;
  auto flag = launch->flags.find(a);
  if (flag != launch->flags.end() && (!(how & WRITE) || how & BOTH)) f.pending.join(flag->second);
  if (how & WRITE) {
    if (how & BOTH) {
      if (!f.fenced.empty()) launch->flags[a].join(f.fenced);
    } else if (!f.fenced.empty()) {
      launch->flags[a] = f.fenced;
    } else if (flag != launch->flags.end()) {
      launch->flags.erase(flag);
    }
  }
}

void fence(Fiber& f) {
  if (launch->level != ALL) return;
  if (!f.pending.empty()) f.known.join(f.pending), f.pending = {}, f.block->foreign = true;
  f.fenced = told(f);
}

Knowledge told(Fiber& f) {
  Knowledge all = f.known;
  all.blocks[f.block->id] = f.block->generation;
  unsigned first = f.id - f.lane;
  for (unsigned l = 0; l < 32; ++l)
    if (f.warp_known[l]) Knowledge::raise(all.threads, first + l, f.warp_known[l]);
  all.threads[f.id] = ++f.clock;
  return all;
}

void sync_warp(Block& block, unsigned warp, uint32_t mask) {
  uint32_t clock = 0, known[32] = {};
  Knowledge all;
  Fiber* lanes[32];
  for (unsigned l = 0; l < 32; ++l) {
    if (!(mask >> l & 1)) continue;
    lanes[l] = block.fibers[warp * 32 + l].get();
    clock = std::max(clock, lanes[l]->clock + 1);
    for (unsigned k = 0; k < 32; ++k) known[k] = std::max(known[k], lanes[l]->warp_known[k]);
    if (block.foreign) all.join(lanes[l]->known);
  }
  for (unsigned l = 0; l < 32; ++l)
    if (mask >> l & 1) known[l] = clock;
  for (unsigned l = 0; l < 32; ++l) {
    if (!(mask >> l & 1)) continue;
    lanes[l]->clock = clock;
    std::memcpy(lanes[l]->warp_known, known, sizeof known);
    if (block.foreign) lanes[l]->known = all;
  }
}

}  // namespace sim
