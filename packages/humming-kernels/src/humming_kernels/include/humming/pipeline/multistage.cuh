// A ring of stages in shared memory, filled ahead by the same warps that use it.
// Called by kernels/dense; one ring for each group of warps that shares a part of k.
// One barrier of the group per stage: it shows a landed stage to all, and frees the one read before it.
//
//   wait until stage i has landed -> barrier -> issue stage i + kStages - 1 into the slot of i - 1 -> use stage i
#pragma once

#include <humming/arch/sm75/barrier.cuh>
#include <humming/base/types.cuh>

namespace humming::pipeline {

template <int kStages, int kGroupWarps, int kGroups, class Copier>
struct Multistage {
  static_assert(kStages >= 2, "the stage in use and the one in flight");

  // Issue(index, slot) starts the copies of a stage, Use(slot) consumes it; `count` stages in all. Prepare() is what
  // must be written to the slots besides the copies; it runs under the first of them.
  template <class Issue, class Prepare, class Use>
  static __device__ __forceinline__ void run(int count, int group, Issue issue, Prepare prepare, Use use) {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      if (i < count) issue(i, i);
      Copier::commit();
    }
    prepare();
    int slot = 0;
    int free_slot = kStages - 1;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      Copier::template wait<kStages - 2>();
      synchronize(group);
      if (i + kStages - 1 < count) issue(i + kStages - 1, free_slot);
      Copier::commit();
      use(slot);
      free_slot = slot;
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
    Copier::template wait<0>();
  }

 private:
  static __device__ __forceinline__ void synchronize(int group) {
    if constexpr (kGroupWarps == 1) {
      __syncwarp();
    } else if constexpr (kGroups == 1) {
      __syncthreads();
    } else {
      arch::sm75::barrier_sync(1 + group, kGroupWarps * 32);
    }
  }
};

}  // namespace humming::pipeline
