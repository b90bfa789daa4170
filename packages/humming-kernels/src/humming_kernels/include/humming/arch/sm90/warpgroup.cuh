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

// Transposes an 8 x 8 matrix of 16-bit values held as two neighbours of a row per lane.
__device__ __forceinline__ u32 transpose_8x8(u32 value) {
  u32 result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(value));
  return result;
}

}  // namespace humming::arch::sm90
