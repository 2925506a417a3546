// Two things no callback sees: a loop so empty that it is one jump to itself, and what the processor itself refuses (a division by zero).
// A timer of processor time looks whether threads still take turns; signals in the kernel's code become findings.
#pragma once
#include <csignal>
#include <sys/time.h>
#include <ucontext.h>

#include "state.h"

namespace sim {

static struct sigaction handled_by[NSIG];  // before us
static uint64_t turns_seen = 0;
static int ticks_without_turn = 0;

inline void on_signal(int number, siginfo_t* info, void* context) {
  auto* c = static_cast<ucontext_t*>(context);
#if defined(__x86_64__)
  Address pc = Address(c->uc_mcontext.gregs[REG_RIP]);
#else
  Address pc = Address(c->uc_mcontext.pc);
#endif
  bool locals = number == SIGSEGV && now && Address(info->si_addr) - Address(now->stack) < GUARD;
  if (locals) fatal(TRAP, now->pc, "%s keeps more than %zu bytes of locals", who(*now).c_str(), STACK - GUARD);
  bool inside = now && pc >= launch->code_begin && pc < launch->code_end;
  if (number == SIGVTALRM) {
    ticks_without_turn = turns_seen == launch->turns ? ticks_without_turn + 1 : 0;
    turns_seen = launch->turns;
    if (!inside || ticks_without_turn < 3) return;
  } else if (!inside) {
    sigaction(number, &handled_by[number], nullptr);  // not ours: it happens again, and who was there before us may say so
    return;
  }
  uint32_t at = uint32_t(pc - launch->code_begin);
  std::string me = who(*now);
  if (number == SIGVTALRM) fatal(TIMEOUT, at, "%s does not end: it runs in line {%x} and gives no other thread a turn", me.c_str(), at);
  if (number == SIGFPE) fatal(TRAP, at, "%s divides an integer by zero", me.c_str());
  if (number == SIGILL) fatal(TRAP, at, "%s reaches a trap or an assertion that does not hold", me.c_str());
  fatal(OUT_OF_BOUNDS, at, "%s uses an address that is in no buffer and no shared array", me.c_str());
}

class Watchdog {
  static constexpr int SIGNALS[] = {SIGVTALRM, SIGFPE, SIGILL, SIGSEGV, SIGBUS};
  stack_t stack_before_;
  alignas(16) char stack_[64 << 10];

 public:
  Watchdog() {
    struct sigaction mine {};
    mine.sa_sigaction = on_signal;
    mine.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART | SA_ONSTACK;  // it may not return; a thread's own stack may be full
    sigemptyset(&mine.sa_mask);
    stack_t other{stack_, 0, sizeof stack_};
    sigaltstack(&other, &stack_before_);
    for (int number : SIGNALS) sigaction(number, &mine, &handled_by[number]);
    turns_seen = 0, ticks_without_turn = 0;
    set(250000);
  }
  ~Watchdog() {
    set(0);
    std::signal(SIGVTALRM, SIG_IGN);  // forgets one that another thread was sent and has not seen yet: from here on it would kill
    for (int number : SIGNALS) sigaction(number, &handled_by[number], nullptr);
    sigaltstack(&stack_before_, nullptr);
  }

 private:
  static void set(long microseconds) {
    itimerval timer{{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_VIRTUAL, &timer, nullptr);
  }
};

}  // namespace sim
