// The blocks that share a tile count their arrivals; the last one has all partial sums before it.
// Called by the reductions of the epilogue, by all threads that took part in writing the partial sums.
// Assumes a counter at zero; the last block leaves it at zero.
#pragma once

#include <humming/arch/sm75/memory.cuh>

namespace humming::epilogue {

// Synchronize() is a barrier of the calling threads, `leader` is true in one of them, `flag` shared memory.
template <class Synchronize>
__device__ __forceinline__ bool arrive_is_last(base::i32* counter, int contributors, volatile int* flag, bool leader,
                                               Synchronize synchronize) {
  __threadfence();
  synchronize();
  if (leader) {
    const int arrived = arch::sm75::add_acquire_release(counter, 1);
    if (arrived == contributors - 1) *counter = 0;
    *flag = arrived;
  }
  synchronize();
  const bool last = *flag == contributors - 1;
  if (last) __threadfence();
  return last;
}

}  // namespace humming::epilogue
