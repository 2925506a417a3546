// Blocks and their threads take turns. A thread runs until it waits, spins or has had its quantum; a block until all its threads
// wait or spin; then the next block is let in, so that a block may wait for one that comes after it.
#pragma once
#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "fibers.h"
#include "state.h"

namespace sim {

Launch* launch = nullptr;
Fiber* now = nullptr;
int32_t quantum = QUANTUM;
static void* scheduler = nullptr;  // its stack pointer while a fiber runs
static uint64_t random_state = 0;

inline uint32_t random_below(uint32_t n) {
  random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
  return uint32_t(random_state >> 33) % n;
}

std::string who(const Fiber& f) {
  char text[128];
  const Index &b = f.block->index, &t = f.index, &g = launch->grid, &n = launch->block;
  char block[48], thread[48];
  std::snprintf(block, sizeof block, g.y * g.z > 1 ? "(%u,%u,%u)" : "%u", b.x, b.y, b.z);
  std::snprintf(thread, sizeof thread, n.y * n.z > 1 ? "(%u,%u,%u)" : "%u", t.x, t.y, t.z);
  std::snprintf(text, sizeof text, "thread %s of block %s", thread, block);
  return text;
}

static void note(Kind kind, uint32_t pc, uint32_t other_pc, const char* format, va_list words) {
  for (auto& f : launch->findings)
    if (f.kind == kind && f.pc == pc && f.other_pc == other_pc) return;
  if (launch->findings.size() >= 64) return;
  Finding f{kind, pc, other_pc, {}, 0};
  std::vsnprintf(f.text, sizeof f.text, format, words);
  launch->findings.push_back(f);
}

void find(Kind kind, uint32_t pc, uint32_t other_pc, const char* format, ...) {
  va_list words;
  va_start(words, format);
  note(kind, pc, other_pc, format, words);
  va_end(words);
}

void yield_fiber() { rooftile_switch(&now->stack_pointer, scheduler); }

void fatal(Kind kind, uint32_t pc, const char* format, ...) {
  va_list words;
  va_start(words, format);
  note(kind, pc, 0, format, words);
  va_end(words);
  launch->stop = true;
  for (;;) yield_fiber();
}

static void exit_checks(Fiber& f) {
  Block& b = *f.block;
  leave_async(f);
  for (auto& other : b.fibers)
    if (other->state == BARRIER)
      fatal(DIVERGENT_BARRIER, other->pc, "%s waits in %s, which %s has left the kernel without reaching", who(*other).c_str(), other->waits,
            who(f).c_str());
  for (auto& c : b.collectives[f.warp])
    if (c->mask >> f.lane & 1 && c->arrived != c->mask) {
      Fiber& waiting = *b.fibers[f.warp * 32 + unsigned(__builtin_ctz(c->arrived))];
      fatal(BAD_MASK, waiting.pc, "%s calls %s with a mask that names lane %u, which has left the kernel", who(waiting).c_str(), c->what, f.lane);
    }
}

static void body() {
  launch->entry(launch->arguments);
  Fiber& f = *now;
  exit_checks(f);
  f.state = DONE;
  if (--f.block->alive == 0) leave_async(*f.block);
  launch->steps = 0;
  launch->progress = true;
  for (;;) yield_fiber();
}

// Kept from launch to launch. Stacks go from block to block: were each block's its own, blocks of 32 threads and of 1024 would
// together come to more mappings than a process may have.
static std::vector<std::unique_ptr<Block>> idle_blocks;
static std::vector<std::unique_ptr<Fiber>> idle_fibers;

static void leave(std::unique_ptr<Block> b) {
  for (auto& f : b->fibers)
    if (f->stack) idle_fibers.push_back(std::move(f));
  b->fibers.clear();
  idle_blocks.push_back(std::move(b));
}

static bool enter(Block& b, uint32_t id) {  // false where the system has no memory for it
  const Index &g = launch->grid, &n = launch->block;
  b.id = id, b.index = {id % g.x, id / g.x % g.y, id / g.x / g.y};
  b.generation = 1, b.arrived = 0, b.votes = 0, b.alive = launch->threads, b.foreign = false, b.static_bytes = 0;
  b.ready.clear(), b.spun.clear(), b.shared.clear(), b.mbarriers.clear(), b.warpgroups.clear();
  for (auto& n : b.named) n = {};
  b.collectives.clear(), b.collectives.resize((launch->threads + 31) / 32);
  size_t stacks = launch->threads - std::min<size_t>(launch->threads, idle_fibers.size());
  if (stacks && !room(stacks * (STACK + BESIDE))) return false;  // asked in one piece, so that what is left suffices to say so
  if (!b.arena && !(b.arena = mapped(ARENA))) return false;
  b.arena_next = b.arena + 1024;
  if (launch->dynamic_bytes) {
    Region r = region(Address(b.arena_next), launch->dynamic_bytes, "dynamic shared memory", true);
    r.written.assign(launch->dynamic_bytes, 0);
    std::memset(b.arena_next, 0xff, launch->dynamic_bytes);
    b.arena_next += launch->dynamic_bytes + REDZONE;
    b.shared.push_back(std::move(r));
  }
  for (unsigned t = 0; t < launch->threads; ++t) {
    if (idle_fibers.empty()) idle_fibers.push_back(std::make_unique<Fiber>());
    b.fibers.push_back(std::move(idle_fibers.back()));
    idle_fibers.pop_back();
    Fiber& f = *b.fibers.back();
    f.block = &b, f.linear = t, f.lane = t % 32, f.warp = t / 32, f.id = id * launch->threads + t + 1;
    f.index = {t % n.x, t / n.x % n.y, t / n.x / n.y};
    f.state = READY, f.spinning = false, f.waits = "", f.pc = 0, f.read = 0, f.clock = 1;
    std::memset(f.warp_known, 0, sizeof f.warp_known);
    f.known = f.pending = f.fenced = {};
    f.groups.clear(), f.open.clear(), f.log.clear();
    f.bulk_open.clear(), f.bulk_groups.clear(), f.product_groups.clear();
    f.bulk_committed = f.products = f.products_committed = f.cluster_arrivals = 0, f.registers_fenced = false;
    if (!prepare(f, body)) return false;
    b.ready.push_back(&f);
  }
  return true;
}

static void run(Fiber& f) {
  now = &f;
  f.spinning = false;
  int32_t given = quantum = launch->seed ? 1 + int32_t(random_below(512)) : QUANTUM;
  rooftile_switch(&scheduler, f.stack_pointer);
  now = nullptr;
  ++launch->turns;
  launch->steps += given - quantum + 32;
  if (f.state != READY) return;
  if (f.spinning) {
    f.block->spun.push_back(&f);
  } else {
    launch->progress = true;
    f.block->ready.push_back(&f);
  }
}

static void timeout(std::vector<std::unique_ptr<Block>>& resident) {
  struct Position { unsigned count; uint32_t pc; const char* waits; std::string first; };
  std::map<std::pair<uint32_t, std::string>, Position> positions;
  unsigned threads = 0;
  for (auto& b : resident)
    for (auto& f : b->fibers)
      if (f->state != DONE && f->pc) {
        auto& p = positions[{f->pc, f->state == READY && !f->spinning ? "" : f->waits}];
        if (!p.count++) p.pc = f->pc, p.waits = f->state == READY && !f->spinning ? "" : f->waits, p.first = who(*f);
        ++threads;
      }
  std::string text = std::to_string(threads) + " threads do not end:";
  uint32_t pc = 0;
  unsigned most = 0, said = 0;
  for (auto& [key, p] : positions) {
    bool running = !*p.waits || std::strcmp(p.waits, "a volatile read") == 0 || std::strcmp(p.waits, "a pause") == 0;
    if (p.count + (running ? 1u << 20 : 0) > most) most = p.count + (running ? 1u << 20 : 0), pc = p.pc;
    if (said++ >= 6) continue;
    char line[256];
    std::snprintf(line, sizeof line, "%s %u in line {%x}%s%s (%s%s)", said > 1 ? "," : "", p.count, p.pc, *p.waits ? " in " : "", p.waits,
                  p.count > 1 ? "first " : "", p.first.c_str());
    text += line;
  }
  find(TIMEOUT, pc, 0, "%s", text.c_str());
  launch->stop = true;
}

static void deadlock(Block& b) {
  if (stuck(b)) {
    launch->stop = true;
    return;
  }
  for (auto& f : b.fibers) {
    if (f->state != COLLECTIVE) continue;
    for (auto& c : b.collectives[f->warp]) {
      if (c->arrived == c->mask || !(c->arrived >> f->lane & 1)) continue;
      unsigned lane = unsigned(__builtin_ctz(c->mask & ~c->arrived));
      Fiber& missing = *b.fibers[f->warp * 32 + lane];
      find(BAD_MASK, f->pc, missing.pc, "%s calls %s with mask 0x%08x, which names lane %u; that lane waits in %s in line {%x}", who(*f).c_str(),
           c->what, c->mask, lane, missing.waits, missing.pc);
      launch->stop = true;
      return;
    }
  }
}

// Runs the block's threads until they all wait, spin or have ended.
static void turn(Block& b, std::vector<std::unique_ptr<Block>>& resident) {
  uint32_t left = launch->seed ? 1 + random_below(4 * launch->threads) : ~0u;
  int rounds = 0;  // threads that only use up their quanta may be waiting for a block that is not there yet
  do {
    launch->progress = false;
    while (!b.ready.empty()) {
      if (launch->seed) std::swap(b.ready.front(), b.ready[random_below(uint32_t(b.ready.size()))]);
      Fiber* f = b.ready.front();
      b.ready.pop_front();
      run(*f);
      if (launch->stop) return;
      if (launch->steps > launch->bound) return timeout(resident);
      if (--left == 0) break;
    }
    if (left && deliver(b)) launch->progress = true;  // as late as can be: nobody could go on without
    for (Fiber* f : b.spun) b.ready.push_back(f);
    b.spun.clear();
  } while (launch->progress && left && !b.ready.empty() && ++rounds < 1024);
}

void run_grid() {
  uint64_t total = uint64_t(launch->grid.x) * launch->grid.y * launch->grid.z, next = 0;
  size_t limit = std::max(1u, 16384 / launch->threads);  // blocks with memory of their own at one time
  std::vector<std::unique_ptr<Block>> resident;
  launch->resident = &resident;
  auto still = [](Block& b) {  // nothing can happen in it any more; a copy may be under way when its turn was up
    if (!b.ready.empty()) return false;
    for (auto& [at, m] : b.mbarriers)
      if (!m.under_way.empty()) return false;
    return true;
  };
  auto quiet = [&] { return std::all_of(resident.begin(), resident.end(), [&](auto& b) { return still(*b); }); };
  auto admit = [&] {
    if (idle_blocks.empty()) idle_blocks.push_back(std::make_unique<Block>());
    resident.push_back(std::move(idle_blocks.back()));
    idle_blocks.pop_back();
    if (enter(*resident.back(), uint32_t(next++))) return;
    find(TOO_LARGE, 0, 0, "the system gives no memory for the stacks of %zu blocks of %u threads at one time: %s", resident.size(),
         launch->threads, std::strerror(errno));
    launch->stop = true;
  };
  size_t turn_of = 0;
  while (!launch->stop && (next < total || !resident.empty())) {
    while (next < total && resident.size() < (launch->seed ? std::min<size_t>(limit, 8) : 1) && !launch->stop) admit();
    if (launch->stop) break;
    turn_of = launch->seed ? random_below(uint32_t(resident.size())) : turn_of % resident.size();
    Block& b = *resident[turn_of];
    turn(b, resident);
    if (launch->stop) break;
    if (b.alive == 0) {
      if (launch->level == ALL) flush(b);
      leave(std::move(resident[turn_of]));
      resident.erase(resident.begin() + long(turn_of));
    } else if (still(b) && (launch->cluster == 1 || (quiet() && (next == total || resident.size() == limit)))) {
      deadlock(b);
    } else if (next < total && resident.size() < limit) {
      admit();
      turn_of = resident.size() - 1;
    } else {
      ++turn_of;
    }
  }
  for (auto& b : resident) leave(std::move(b));
}

}  // namespace sim

extern "C" void __sanitizer_cov_trace_pc() {
  if (__builtin_expect(--sim::quantum < 0, 0)) {
    if (!sim::now) return;
    sim::now->pc = sim::offset(__builtin_return_address(0));
    sim::now->waits = "";
    sim::yield_fiber();
  }
}
