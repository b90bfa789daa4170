// Single values between f16 / bf16 / f32 and pairs of one value, by number.
// Used by decode/operand and the epilogue.
// Assumes bf16 only for targets that have it (sm_80 and later).
#pragma once

#include <humming/arch/sm75/half.cuh>
#include <humming/arch/sm80/bfloat16.cuh>
#include <humming/base/config.cuh>
#include <humming/base/math.cuh>

namespace humming::decode {

using base::Number;
using base::u16;
using base::u32;

template <Number kNumber>
__device__ __forceinline__ float to_f32(u32 bits) {
  if constexpr (kNumber == Number::kBf16) {
    return __uint_as_float(bits << 16);
  } else {
    return arch::sm75::f16_to_f32(static_cast<u16>(bits));
  }
}

template <Number kNumber>
__device__ __forceinline__ u16 from_f32(float value) {
  if constexpr (kNumber == Number::kBf16) {
    return arch::sm80::f32_to_bf16(value);
  } else {
    return arch::sm75::f32_to_f16(value);
  }
}

__device__ __forceinline__ u32 both_halves(u32 bits) { return (bits & 0xffffu) * 0x00010001u; }

template <Number kNumber>
__device__ __forceinline__ u32 fma_pair(u32 a, u32 b, u32 c) {
  if constexpr (kNumber == Number::kBf16) {
    return arch::sm80::fma_bf16x2(a, b, c);
  } else {
    return arch::sm75::fma_f16x2(a, b, c);
  }
}

// fma with -0 keeps the sign of zero, so it is a multiply; bf16 has no packed multiply before sm_90.
template <Number kNumber>
__device__ __forceinline__ u32 mul_pair(u32 a, u32 b) {
  return fma_pair<kNumber>(a, b, 0x80008000u);
}

}  // namespace humming::decode
