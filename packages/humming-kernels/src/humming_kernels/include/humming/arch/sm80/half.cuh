// The packed f16 conversion that sm_75 lacks.
// Called by epilogue.
// Assumes two f16 in one 32-bit register.
#pragma once

#include <humming/base/types.cuh>

namespace humming::arch::sm80 {

using base::u32;

__device__ __forceinline__ u32 f32x2_to_f16x2(float low, float high) {
  u32 result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

}  // namespace humming::arch::sm80
