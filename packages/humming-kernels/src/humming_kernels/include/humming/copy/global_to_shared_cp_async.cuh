// Copies of 16 bytes from global to shared memory by cp.async.
// Used by the stage copies on sm_80 and later.
// Each thread waits for its own copies; a barrier then shows them to the others.
#pragma once

#include <humming/arch/sm80/cp_async.cuh>

namespace humming::copy {

struct CpAsync {
  base::u64 policy = 0;

  __device__ __forceinline__ void use_evict_first() { policy = arch::sm80::policy_evict_first(); }

  // Zeros are written where the source is not valid; then nothing is read.
  __device__ __forceinline__ void copy(base::u32 shared, const void* source, bool valid) const {
    arch::sm80::cp_async_16(shared, source, valid ? 16u : 0u);
  }
  __device__ __forceinline__ void copy_evict_first(base::u32 shared, const void* source, bool valid) const {
    arch::sm80::cp_async_16_hint(shared, source, valid ? 16u : 0u, policy);
  }

  static __device__ __forceinline__ void commit() { arch::sm80::cp_async_commit(); }

  template <int kPending>
  static __device__ __forceinline__ void wait() {
    arch::sm80::cp_async_wait<kPending>();
  }
};

}  // namespace humming::copy
