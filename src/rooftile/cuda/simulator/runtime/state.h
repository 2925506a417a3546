// What the simulator knows while a grid runs: regions of memory, threads as fibers, blocks, and the findings made so far.
#pragma once
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sim {

using Address = uintptr_t;

enum Kind { RACE, UNINITIALISED, OUT_OF_BOUNDS, MISALIGNED, DIVERGENT_BARRIER, BAD_MASK, TIMEOUT, TOO_LARGE, TRAP, NOT_MODELLED };
enum Level { VALUES, CHECKS, ALL };  // bounds and alignment; and uninitialised reads; and races and access statistics
// Strong: atomic or volatile, it never races with another strong one. Copy: what a cp.async asks for.
// Compared: by atomicCAS, with what the thread expects. Uncounted: no request to a memory's load and store path, as where an mbarrier is set up or a copy's bytes arrive.
enum Access : unsigned { READ = 0, WRITE = 1, STRONG = 2, BOTH = 4, COPY = 8, UNCOUNTED = 16, COMPARED = 32 };

// Who carries out an access: the thread itself, or for it a part of the hardware that runs beside the threads. The work of such an agent
// completes in order, and a thread knows of it by having waited: the phases of an mbarrier, a thread's bulk groups (first they have read
// shared memory, later they have written), a warp's wgmma groups. PROXY: what a thread's fence_async
// has shown to them of shared memory, or fence_async_global of global.
enum Agent : uint8_t { THREAD, MBARRIER, BULK_READ, BULK_WRITE, WGMMA, PROXY, PROXY_GLOBAL };
struct Via {
  Agent agent;
  uint32_t owner, clock;  // the serial of an mbarrier and its phase, or a thread and its group
};
inline uint64_t key(Agent agent, uint32_t owner) { return uint64_t(agent) << 32 | owner; }

// One access as the race check remembers it. `thread` counts through the whole grid from 1; 0 means none.
struct Stamp {
  uint32_t thread = 0, generation = 0, clock = 0, pc = 0, owner = 0;
  Agent agent = THREAD;
  bool strong = false, atomic = false;
};
enum Readers : uint8_t { ONE, WARP, BLOCK, MANY };  // who has read since the last write: `reader` is one of them, the last

struct Cell {  // of 4, 2 or 1 bytes
  Stamp writer, reader;
  uint32_t lanes = 0;  // of a WARP that has read; of MANY, the index of the list of blocks
  Readers readers = ONE;
  uint32_t other_thread = 0, other_pc = 0;  // of several that have read: the one before the last, for what is said where the last one writes
  uint32_t agents = 0;  // agents that have read since the last write, and threads one by one: an index of `agent_readers`, or 0
};

struct Page {  // what is remembered of PAGE bytes, made when one of them is touched: cells take 20 times the memory that they speak of
  unsigned granule = 4;
  std::vector<Cell> cells;
};
constexpr size_t PAGE = 4096;

struct Region {  // one argument buffer, one shared array; or all of a file's own memory, __device__ and __constant__ variables
  Address begin, end;
  std::string name;
  bool shared;
  const void* key = nullptr;
  size_t align = 512;  // as declared; where it really lies is better
  std::vector<std::unique_ptr<Page>> pages;
  std::vector<uint8_t> written;  // shared memory only, a byte each
};

inline Region region(Address begin, size_t bytes, std::string name, bool shared) {
  Region r;
  r.begin = begin, r.end = begin + bytes, r.name = std::move(name), r.shared = shared;
  return r;
}

// What a thread knows to have happened before: of whole blocks, all before a barrier; of single threads, all before a clock.
struct Knowledge {
  using Clocks = std::map<uint64_t, uint32_t>;
  Clocks blocks, threads;  // threads and the agents that work for them, each under its key
  bool empty() const { return blocks.empty() && threads.empty(); }
  static void raise(Clocks& into, uint64_t who, uint32_t when) { auto& known = into[who]; if (known < when) known = when; }
  static void raise(Clocks& into, const Clocks& from) {
    for (auto [who, when] : from) raise(into, who, when);
  }
  void join(const Knowledge& other) { raise(blocks, other.blocks); raise(threads, other.threads); }
  void reach(Agent agent, uint32_t owner, uint32_t clock) { raise(threads, key(agent, owner), clock); }
  bool passed(Agent agent, uint32_t owner, uint32_t clock) const {
    auto i = threads.find(key(agent, owner));
    return i != threads.end() && i->second > clock;
  }
};

struct Copy { void* to; const void* from; unsigned bytes, zeros; uint32_t pc; };  // a cp.async under way

struct Transfer { uint32_t pc, bytes; std::function<void()> land; };  // a bulk or tensor copy under way

struct Request { uint32_t pc; uint32_t bytes; Address address; bool store, shared, copied; };

struct Index { unsigned x, y, z; };

enum State : uint8_t { READY, BARRIER, COLLECTIVE, ASYNC, DONE };  // ASYNC: in an mbarrier, a named barrier or wgmma_wait

struct Collective {  // lanes that meet in one warp intrinsic
  uint32_t mask, arrived = 0, leaving = 0;
  const char* what;
  unsigned char values[32][64];
};

struct Block;
struct Fiber;

struct MBarrier {
  uint32_t serial = 0, count = 0, pending = 0, phase = 0;  // phases completed
  int64_t bytes = 0;                                        // expected and not yet brought
  bool fenced = false;                                      // shown to the copy engine
  uint32_t maker = 0;                                       // the thread that initialised it
  Knowledge gathered, completed;                            // what all that arrived knew; the same when the last phase was completed
  std::vector<Transfer> under_way;
  std::vector<Fiber*> waiting;
};

struct NamedBarrier {
  uint32_t threads = 0, arrived = 0;
  Knowledge gathered;
  std::vector<Fiber*> waiting;
};

struct Cluster {  // the barrier that its blocks have in common
  uint32_t arrived = 0, phase = 0;
  Knowledge gathered, completed;
  std::vector<Fiber*> waiting;
};

struct Product;  // one wgmma

struct Accumulator { std::vector<float> values; unsigned under_way = 0; };

struct Warpgroup {
  std::deque<std::shared_ptr<Product>> products;  // under way, oldest first
  uint32_t landed = 0;                            // products no longer in the list
  std::unordered_map<float*, Accumulator> accumulators;  // by the array of the thread
};

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
  Address read = 0;           // what it has just read, if its last access was a plain read
  uint32_t read_pc = 0;
  const char* waits = "";     // in what
  uint32_t clock = 1;
  uint32_t warp_known[32]{};  // of each lane of its warp, everything before this clock happened before
  Knowledge known, pending, fenced;  // pending: read from flags, and known after the next fence; fenced: what a flag written now tells
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> open;
  std::vector<Transfer> bulk_open;
  std::deque<std::pair<uint32_t, std::vector<Transfer>>> bulk_groups;  // that still read shared memory, by number
  uint32_t bulk_committed = 0, products = 0, products_committed = 0;
  std::deque<std::pair<uint32_t, uint32_t>> product_groups;  // of products not waited for: the group's number, products issued by its end
  bool registers_fenced = false;                              // since a wgmma was last waited for
  uint32_t product_pc = 0;
  uint32_t cluster_arrivals = 0;
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
  bool foreign = false;  // some thread knows of other blocks, through flags or of agents
  std::map<Address, MBarrier> mbarriers;
  NamedBarrier named[16];
  std::vector<Warpgroup> warpgroups;
};

struct Finding {  // as Python reads it; {hex} in the text stands for the line of that program counter
  int32_t kind;
  uint32_t pc, other_pc;
  char text[1024];
  uint32_t plain_read;  // of a race between a plain read and an atomic: where it is read
};

struct AccessRow { uint32_t pc, shared, store, copied, bytes; uint64_t requests, transactions; };

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
  Region variables;  // between code_begin and code_end
  std::deque<Region> buffers;
  Region* last = nullptr;
  std::vector<Finding> findings;
  std::set<uint32_t> confirmed;  // plain reads that an atomic of the same thread confirms: atomicCAS does not believe what was read
  std::vector<AccessRow> rows;
  std::map<std::pair<uint32_t, uint32_t>, AccessRow> accesses;  // by program counter and space
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> reader_lists;  // of MANY: block and generation
  std::vector<std::vector<Stamp>> agent_readers{1};
  std::unordered_map<Address, Knowledge> flags;
  uint32_t mbarriers = 0, cluster = 1;
  std::map<uint32_t, Cluster> clusters;
  Cluster whole;  // the grid
  std::vector<std::unique_ptr<Block>>* resident = nullptr;  // blocks that have begun and not ended
  bool one_by_one = false;  // readers of shared memory: the kernel has barriers that are not the whole block's, which order some of them alone
  bool stop = false, progress = false;
  uint64_t turns = 0;  // of fibers; the watchdog looks whether it moves
};

extern Launch* launch;
extern Fiber* now;
extern int32_t quantum;

constexpr size_t STACK = 128 << 10, GUARD = 4096, BESIDE = 16 << 10;  // of a thread; what is known of it lies beside its stack
constexpr int32_t QUANTUM = 1 << 14;
constexpr size_t STATIC_LIMIT = 48 << 10, SHARED_LIMIT = 227 << 10, ARENA = 1 << 20, REDZONE = 512;

void yield_fiber();                          // back to the scheduler
void find(Kind kind, uint32_t pc, uint32_t other_pc, const char* format, ...) __attribute__((format(printf, 4, 5)));
[[noreturn]] void fatal(Kind kind, uint32_t pc, const char* format, ...) __attribute__((format(printf, 3, 4)));
std::string who(const Fiber& f);
inline uint32_t offset(const void* pc) { return uint32_t(Address(pc) - launch->code_begin - 1); }

void access(Address address, unsigned bytes, unsigned how, bool range, uint32_t pc, const Via* via = nullptr);
void poison(Address address, unsigned bytes);
void race(Region& region, Address address, unsigned bytes, unsigned how, uint32_t pc, const Via* via);
void flagged(Fiber& f, Address address, unsigned how);
void fence(Fiber& f);
Knowledge told(Fiber& f);                    // what a release now tells
bool deliver(Block& block);                  // every copy under way arrives; whether there was one
void leave_async(Fiber& f);                  // a thread that ends must have waited for its copies and products
void leave_async(Block& block);
bool stuck(Block& block);                    // finds who waits for what will never happen
void sync_warp(Block& block, unsigned warp, uint32_t mask);
void flush(Block& block);                    // access statistics of all threads' logs
void run_grid();

}  // namespace sim
