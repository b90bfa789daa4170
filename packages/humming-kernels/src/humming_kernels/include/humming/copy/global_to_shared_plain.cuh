// Copies of 16 bytes from global to shared memory through a register.
// Used by the stage copies on sm_75, which has no cp.async.
// A copy is done when it returns; a barrier then shows it to the others.
#pragma once

#include <humming/arch/sm75/memory.cuh>

namespace humming::copy {

struct PlainCopy {
  __device__ __forceinline__ void use_evict_first() {}

  __device__ __forceinline__ void copy(base::u32 shared, const void* source, bool valid) const {
    base::Words4 words = {{0, 0, 0, 0}};
    if (valid) words = arch::sm75::load_global_16(source);
    arch::sm75::store_shared_16(shared, words);
  }
  __device__ __forceinline__ void copy_evict_first(base::u32 shared, const void* source, bool valid) const {
    copy(shared, source, valid);
  }

  static __device__ __forceinline__ void commit() {}

  template <int kPending>
  static __device__ __forceinline__ void wait() {}
};

}  // namespace humming::copy
