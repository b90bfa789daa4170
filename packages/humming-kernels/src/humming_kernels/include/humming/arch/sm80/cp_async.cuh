// cp.async: 16 bytes from global to shared memory that land later.
// Called by copy/global_to_shared_cp_async.
// Assumes 16-byte aligned addresses; source_bytes of 0 writes zeros and reads nothing.
#pragma once

#include <humming/base/types.cuh>

namespace humming::arch::sm80 {

using base::u32;
using base::u64;

__device__ __forceinline__ void cp_async_16(u32 shared_address, const void* source, u32 source_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(source), "r"(source_bytes)
               : "memory");
}

__device__ __forceinline__ void cp_async_16_hint(u32 shared_address, const void* source, u32 source_bytes, u64 policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared_address), "l"(source),
               "r"(source_bytes), "l"(policy)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ u64 policy_evict_first() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

}  // namespace humming::arch::sm80
