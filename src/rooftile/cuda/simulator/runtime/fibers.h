// Switching between threads of a block: save the registers a call must keep, change the stack, restore. About 3 ns.
#pragma once
#include <sys/mman.h>

#include "state.h"

extern "C" void rooftile_switch(void** save, void* to);

#if defined(__x86_64__)
__asm__(R"(
.text
.globl rooftile_switch
.type rooftile_switch,@function
rooftile_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size rooftile_switch,.-rooftile_switch
)");
constexpr int SAVED = 6, ENTRY_SLOT = 6;  // words below the return address; the entry is returned to
#elif defined(__aarch64__)
__asm__(R"(
.text
.globl rooftile_switch
.type rooftile_switch,%function
rooftile_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size rooftile_switch,.-rooftile_switch
)");
constexpr int SAVED = 20, ENTRY_SLOT = 11;  // x30
#else
#error "the simulator runs on x86-64 and arm64"
#endif

namespace sim {

inline char* mapped(size_t bytes) {  // null where the system gives none
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}

inline bool room(size_t bytes) {
  char* p = mapped(bytes);
  return p && munmap(p, bytes) == 0;
}

inline bool prepare(Fiber& f, void (*entry)()) {
  if (!f.stack) {
    char* p = mapped(STACK);
    if (!p) return false;
    if (mprotect(p, GUARD, PROT_NONE)) return munmap(p, STACK), false;  // too many locals hit this, and not a neighbour's
    f.stack = p;
  }
  // the stack must be at a multiple of 16 when the entry's caller would have called it: 8 off inside on x86-64
  void** top = reinterpret_cast<void**>(f.stack + STACK) - 4;
#if defined(__x86_64__)
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < SAVED; ++i) *--top = nullptr;
#else
  top -= SAVED;
  for (int i = 0; i < SAVED; ++i) top[i] = nullptr;
  top[ENTRY_SLOT] = reinterpret_cast<void*>(entry);
#endif
  f.stack_pointer = top;
  return true;
}

}  // namespace sim
