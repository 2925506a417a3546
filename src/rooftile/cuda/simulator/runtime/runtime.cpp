// The simulator's runtime: one library for all kernels, built once a machine. Never compiled with -fsanitize: it is the sanitizer.
#include <cxxabi.h>
#include <dlfcn.h>

#include <tuple>

#include "state.h"
//
#include "schedule.h"
//
#include "memory.h"
//
#include "races.h"
//
#include "accesses.h"
//
#include "intrinsics.h"
//
#include "async.h"
//
#include "cluster.h"
//
#include "wgmma.h"
//
#include "watchdog.h"

struct Buffer { uint64_t begin, bytes; const char* name; };

struct Settings {  // as Python fills it in
  uint32_t grid[3], block[3];
  int32_t level, buffers;
  uint64_t seed, dynamic_bytes, code_begin, code_end;
  int64_t bound;
  void (*entry)(void**);
  void** arguments;
  uint64_t arguments_bytes;  // of the pointers and, right behind, what they point to
  const Buffer* buffer;
  uint32_t cluster;
  int32_t one_by_one;
};

static std::unique_ptr<sim::Launch> kept;

extern "C" {

void rooftile_simulate(const Settings* s) {
  kept = std::make_unique<sim::Launch>();
  sim::Launch& l = *kept;
  sim::launch = &l;
  l.level = sim::Level(s->level);
  l.grid = {s->grid[0], s->grid[1], s->grid[2]}, l.block = {s->block[0], s->block[1], s->block[2]};
  l.threads = l.block.x * l.block.y * l.block.z;
  l.seed = s->seed, l.bound = s->bound, l.entry = s->entry, l.arguments = s->arguments, l.dynamic_bytes = s->dynamic_bytes;
  l.cluster = s->cluster, l.one_by_one = s->one_by_one != 0;
  l.code_begin = s->code_begin, l.code_end = s->code_end;
  l.variables = sim::region(s->code_begin, s->code_end - s->code_begin, "", false);
  l.arguments_begin = sim::Address(s->arguments), l.arguments_bytes = s->arguments_bytes;
  sim::random_state = s->seed * 0x9e3779b97f4a7c15u | 1;
  for (int i = 0; i < s->buffers; ++i)
    l.buffers.push_back(sim::region(s->buffer[i].begin, s->buffer[i].bytes, s->buffer[i].name, false));
  {
    sim::Watchdog watchdog;
    sim::run_grid();
  }
  std::fflush(stdout);  // what the kernel has printed
  auto guess = [&](const sim::Finding& f) { return f.plain_read && l.confirmed.count(f.plain_read); };
  l.findings.erase(std::remove_if(l.findings.begin(), l.findings.end(), guess), l.findings.end());
  for (auto& [key, row] : l.accesses) l.rows.push_back(row);
}

uint32_t rooftile_findings(const sim::Finding** out) {
  *out = kept->findings.data();
  return uint32_t(kept->findings.size());
}

uint32_t rooftile_accesses(const sim::AccessRow** out) {
  *out = kept->rows.data();
  return uint32_t(kept->rows.size());
}
}
