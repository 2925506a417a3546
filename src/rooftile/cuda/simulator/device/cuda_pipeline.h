// A thread's asynchronous copies into shared memory by the names of NVIDIA's header. They arrive at the wait and not before.
#pragma once

__forceinline__ void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0) {
  if (bytes != 4 && bytes != 8 && bytes != 16) rooftile_sim_not_modelled("__pipeline_memcpy_async of other than 4, 8 or 16 bytes");
  rooftile_sim_copy_async(to, from, unsigned(bytes), unsigned(zeros));
}
__forceinline__ void __pipeline_commit() { rooftile_sim_copy_commit(); }
__forceinline__ void __pipeline_wait_prior(size_t left) { rooftile_sim_copy_wait(unsigned(left)); }
