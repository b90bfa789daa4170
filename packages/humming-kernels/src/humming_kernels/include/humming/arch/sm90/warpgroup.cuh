// What goes with wgmma: fences, groups, registers of a warpgroup. The products are in generated headers,
// arch/sm90/wgmma_m64n<tokens>k16_<number>.cuh (humming_kernels.wgmma_header), one for each shape in use.
// Called by the mma room and kernels/dense_wgmma. Assumes all four warps of an aligned warpgroup take part.
#pragma once

#include <humming/base/types.cuh>

namespace humming::arch::sm90 {

using base::u32;

// Registers written so far are visible to the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace humming::arch::sm90
