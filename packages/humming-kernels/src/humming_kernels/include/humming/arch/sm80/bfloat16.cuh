// Packed bf16 arithmetic and conversions of pairs, one instruction each.
// Called by decode and epilogue.
// Assumes two bf16 in one 32-bit register; subnormals are kept.
#pragma once

#include <humming/base/types.cuh>

namespace humming::arch::sm80 {

using base::u16;
using base::u32;

__device__ __forceinline__ u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ u16 f32_to_bf16(float value) {
  u16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
}

__device__ __forceinline__ u32 f32x2_to_bf16x2(float low, float high) {
  u32 result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

}  // namespace humming::arch::sm80
