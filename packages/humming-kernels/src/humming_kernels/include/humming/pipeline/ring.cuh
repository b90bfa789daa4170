// A ring of stages between the threads that fill them and the warps that use them, with a full and an empty mbarrier for each.
// Called by kernels/dense_wgmma.
// Assumes both sides walk the same stages in the same order; each warp that uses a stage releases it once.
#pragma once

#include <humming/arch/sm90/mbarrier.cuh>

namespace humming::pipeline {

using base::u32;

template <int kStages, int kStageBytes>
struct Ring {
  u32 first_stage;    // shared address of stage 0
  u32 first_barrier;  // of kStages full barriers, then kStages empty ones
  u32 stage;          // of the current stage
  u32 barrier;        // of its full barrier
  u32 parity = 0;

  __device__ __forceinline__ Ring(u32 stages, u32 barriers)
      : first_stage(stages), first_barrier(barriers), stage(stages), barrier(barriers) {}

  // By one thread, before fence_barrier_init and a block barrier. `parts` threads announce bytes for a stage, `users` warps release it.
  __device__ __forceinline__ void initialise(u32 parts, u32 users) const {
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) {
      arch::sm90::mbarrier_init(first_barrier + 8 * i, parts);
      arch::sm90::mbarrier_init(first_barrier + 8 * (kStages + i), users);
    }
  }

  __device__ __forceinline__ u32 full() const { return barrier; }
  __device__ __forceinline__ u32 empty() const { return barrier + 8 * kStages; }

  __device__ __forceinline__ void wait_full() const { wait(full(), parity); }
  // The first round finds every stage empty: a wait for the parity before the first phase returns at once.
  __device__ __forceinline__ void wait_empty() const { wait(empty(), parity ^ 1); }

  __device__ __forceinline__ void advance() {
    stage += kStageBytes;
    barrier += 8;
    if (barrier == first_barrier + 8 * kStages) {
      stage = first_stage;
      barrier = first_barrier;
      parity ^= 1;
    }
  }

 private:
  static __device__ __forceinline__ void wait(u32 address, u32 of_parity) {
    while (!arch::sm90::mbarrier_try_wait(address, of_parity)) {
    }
  }
};

}  // namespace humming::pipeline
