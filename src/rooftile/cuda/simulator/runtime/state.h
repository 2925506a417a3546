// What the simulator knows while a grid runs: regions of memory, threads as fibers, blocks, and the findings made so far.
#pragma once
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sim {

using Address = uintptr_t;

enum Kind { RACE, UNINITIALISED, OUT_OF_BOUNDS, MISALIGNED, DIVERGENT_BARRIER, BAD_MASK, TIMEOUT, TOO_LARGE, TRAP };
enum Level { VALUES, CHECKS, ALL };  // bounds and alignment; and uninitialised reads; and races and access statistics
enum Access : unsigned { READ = 0, WRITE = 1, STRONG = 2, BOTH = 4 };  // strong: atomic or volatile, it never races with another strong one

// One access as the race check remembers it. `thread` counts through the whole grid from 1; 0 means none.
struct Stamp {
  uint32_t thread = 0, generation = 0, clock = 0, pc = 0;
  bool strong = false;
};
enum Readers : uint8_t { ONE, WARP, BLOCK, MANY };  // who has read since the last write: `reader` is one of them, the last

struct Cell {  // of 4, 2 or 1 bytes
  Stamp writer, reader;
  uint32_t lanes = 0;  // of a WARP that has read; of MANY, the index of the list of blocks
  Readers readers = ONE;
};

struct Region {  // one argument buffer, one shared array
  Address begin, end;
  std::string name;
  bool shared;
  const void* key = nullptr;
  unsigned granule = 4;
  std::vector<Cell> cells;
  std::vector<uint8_t> written;  // shared memory only, a byte each
};

inline Region region(Address begin, size_t bytes, std::string name, bool shared) {
  Region r;
  r.begin = begin, r.end = begin + bytes, r.name = std::move(name), r.shared = shared;
  return r;
}

// What a thread knows to have happened before: of whole blocks, all before a barrier; of single threads, all before a clock.
struct Knowledge {
  std::map<uint32_t, uint32_t> blocks, threads;
  bool empty() const { return blocks.empty() && threads.empty(); }
  static void raise(std::map<uint32_t, uint32_t>& into, const std::map<uint32_t, uint32_t>& from) {
    for (auto [who, when] : from) { auto& known = into[who]; if (known < when) known = when; }
  }
  void join(const Knowledge& other) { raise(blocks, other.blocks); raise(threads, other.threads); }
};

struct Copy { void* to; const void* from; unsigned bytes, zeros; uint32_t pc; };  // a cp.async under way

struct Request { uint32_t pc; uint32_t bytes; Address address; bool store, shared; };

struct Index { unsigned x, y, z; };

enum State : uint8_t { READY, BARRIER, COLLECTIVE, DONE };

struct Collective {  // lanes that meet in one warp intrinsic
  uint32_t mask, arrived = 0, leaving = 0;
  const char* what;
  unsigned char values[32][64];
};

struct Block;

struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  Block* block = nullptr;
  Index index{};
  unsigned linear = 0, lane = 0, warp = 0;
  uint32_t id = 0;  // through the whole grid, from 1
  State state = DONE;
  bool spinning = false;
  uint32_t pc = 0;            // where it last spoke to us
  const char* waits = "";     // in what
  uint32_t clock = 1;
  uint32_t warp_known[32]{};  // of each lane of its warp, everything before this clock happened before
  Knowledge known, pending, fenced;  // pending: read from flags, and known after the next fence; fenced: what a flag written now tells
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> open;
  std::vector<Request> log;
};

struct Block {
  Index index{};
  uint32_t id = 0, generation = 1, alive = 0, arrived = 0;
  int votes = 0, counted = 0;  // for the barrier that is being reached, of the last one passed
  uint32_t barrier_pc = 0;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::deque<Fiber*> ready, spun;
  std::vector<std::vector<std::unique_ptr<Collective>>> collectives;  // a warp
  std::deque<Region> shared;
  char *arena = nullptr, *arena_next = nullptr;
  size_t static_bytes = 0;
  bool foreign = false;  // some thread knows of other blocks or through flags
};

struct Finding {  // as Python reads it; {hex} in the text stands for the line of that program counter
  int32_t kind;
  uint32_t pc, other_pc;
  char text[1024];
};

struct AccessRow { uint32_t pc, shared, store, bytes; uint64_t requests, transactions; };

struct Launch {
  Level level = ALL;
  Index grid{}, block{};
  unsigned threads = 0;
  uint64_t seed = 0;
  int64_t bound = 0, steps = 0;
  void (*entry)(void**) = nullptr;
  void** arguments = nullptr;
  size_t dynamic_bytes = 0;
  Address code_begin = 0, code_end = 0, arguments_begin = 0, arguments_bytes = 0;
  std::deque<Region> buffers;
  Region* last = nullptr;
  std::vector<Finding> findings;
  std::vector<AccessRow> rows;
  std::map<std::pair<uint32_t, uint32_t>, AccessRow> accesses;  // by program counter and space
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> reader_lists;  // of MANY: block and generation
  std::unordered_map<Address, Knowledge> flags;
  bool stop = false, progress = false;
  uint64_t turns = 0;  // of fibers; the watchdog looks whether it moves
};

extern Launch* launch;
extern Fiber* now;
extern int32_t quantum;

constexpr size_t STACK = 128 << 10, GUARD = 4096;
constexpr int32_t QUANTUM = 1 << 14;
constexpr size_t STATIC_LIMIT = 48 << 10, SHARED_LIMIT = 227 << 10, ARENA = 1 << 20, REDZONE = 512;

void yield_fiber();                          // back to the scheduler
void find(Kind kind, uint32_t pc, uint32_t other_pc, const char* format, ...) __attribute__((format(printf, 4, 5)));
[[noreturn]] void fatal(Kind kind, uint32_t pc, const char* format, ...) __attribute__((format(printf, 3, 4)));
std::string who(const Fiber& f);
inline uint32_t offset(const void* pc) { return uint32_t(Address(pc) - launch->code_begin - 1); }

void access(Address address, unsigned bytes, unsigned how, bool range, uint32_t pc);
void poison(Address address, unsigned bytes);
void race(Region& region, Address address, unsigned bytes, unsigned how, uint32_t pc);
void fence(Fiber& f);
void sync_warp(Block& block, unsigned warp, uint32_t mask);
void flush(Block& block);                    // access statistics of all threads' logs
void run_grid();

}  // namespace sim
