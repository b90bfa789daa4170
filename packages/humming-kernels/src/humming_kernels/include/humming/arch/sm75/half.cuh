// Packed f16 arithmetic and conversions, one instruction each.
// Called by decode and epilogue.
// Assumes two f16 in one 32-bit register; subnormals are kept.
#pragma once

#include <humming/base/types.cuh>

namespace humming::arch::sm75 {

using base::u16;
using base::u32;

__device__ __forceinline__ u32 fma_f16x2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ float f16_to_f32(u16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value));
  return result;
}

__device__ __forceinline__ u16 f32_to_f16(float value) {
  u16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
}

}  // namespace humming::arch::sm75
