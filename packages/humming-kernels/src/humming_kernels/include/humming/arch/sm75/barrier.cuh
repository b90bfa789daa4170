// Barriers among a stated number of threads of a block.
// Called by pipeline, epilogue and kernels.
// Assumes an identifier from 1 to 15 (0 is __syncthreads) and a multiple of 32 threads.
#pragma once

namespace humming::arch::sm75 {

__device__ __forceinline__ void barrier_sync(int identifier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(identifier), "r"(threads) : "memory");
}

}  // namespace humming::arch::sm75
