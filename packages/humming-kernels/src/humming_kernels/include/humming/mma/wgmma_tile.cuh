// One warpgroup's 64 x tokens x 16 product with f32 sums: weights are A, from registers; tokens are B, from shared memory.
// Used by kernels/dense_wgmma. Warp w of the warpgroup has rows 16 w to 16 w + 15, and of them the same lanes and registers
// as mma/mma_sync_tile, so one packed layout serves both.
// Assumes tokens in boxes of 64 k, rows of 128 bytes with the 128-byte swizzle, 1024-byte aligned.
#pragma once

#include <humming/base/types.cuh>

namespace humming::mma {

using base::u32;
using base::u64;

struct WgmmaTokens {
  // Shared memory descriptor of a K-major operand: address / 16 in bits 0-13, the distance of groups of eight rows
  // (1024 bytes) / 16 in bits 32-45, swizzle of 128 bytes (1) in bits 62-63. The leading offset in bits 16-29 does not
  // count with a swizzle; it is 1 by convention.
  static __device__ __forceinline__ u64 descriptor(u32 shared_address) {
    constexpr u64 kFixed = (1ull << 62) | (static_cast<u64>(1024 / 16) << 32) | (1ull << 16);
    return kFixed | ((shared_address & 0x3ffff) >> 4);
  }

  // Steps of 16 k lie 32 bytes apart in the row of a box.
  static constexpr int kStepOffset = 32 / 16;
  static constexpr int kBoxSteps = 4;
};

}  // namespace humming::mma
