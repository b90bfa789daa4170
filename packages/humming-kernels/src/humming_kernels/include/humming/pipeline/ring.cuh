// A ring of stages between one producer thread and the warps that use them, with a full and an empty mbarrier for each.
// Called by kernels/dense_wgmma.
// Assumes both sides walk the same stages in the same order; each warp that uses a stage releases it once.
#pragma once

#include <humming/arch/sm90/mbarrier.cuh>

namespace humming::pipeline {

using base::u32;

template <int kStages, int kStageBytes>
struct Ring {
  u32 stages;    // shared address of stage 0
  u32 barriers;  // kStages full ones, then kStages empty ones
  int slot = 0;
  u32 parity = 0;

  __device__ __forceinline__ Ring(u32 stages_address, u32 barriers_address)
      : stages(stages_address), barriers(barriers_address) {}

  // By one thread, before a block barrier. `users` is the number of warps that release a stage.
  __device__ __forceinline__ void initialise(u32 users) const {
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) {
      arch::sm90::mbarrier_init(barriers + 8 * i, 1);
      arch::sm90::mbarrier_init(barriers + 8 * (kStages + i), users);
    }
    arch::sm90::fence_barrier_init();
  }

  __device__ __forceinline__ u32 shared() const { return stages + slot * kStageBytes; }
  __device__ __forceinline__ u32 full() const { return barriers + 8 * slot; }
  __device__ __forceinline__ u32 empty() const { return barriers + 8 * (kStages + slot); }

  __device__ __forceinline__ void wait_full() const { wait(full(), parity); }
  // The first round finds every stage empty: a wait for the parity before the first phase returns at once.
  __device__ __forceinline__ void wait_empty() const { wait(empty(), parity ^ 1); }

  __device__ __forceinline__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
  }

 private:
  static __device__ __forceinline__ void wait(u32 barrier, u32 of_parity) {
    while (!arch::sm90::mbarrier_try_wait(barrier, of_parity)) {
    }
  }
};

}  // namespace humming::pipeline
