// Floats of 4 bits (e2m1) -> f16 and bf16.
// Included by units whose weight is e2m1.
// Assumes the contract of decode/code_words.
#pragma once

#include <humming/decode/code_words.cuh>
#include <humming/decode/sign_bit.cuh>

namespace humming::decode {

// e2m1: exponent and mantissa go in unrebiased, which leaves the difference of the biases owed: 15 - 1 and 127 - 1.
// The e2m1 subnormal 0.5 becomes a subnormal of the operand, with the same difference.
template <>
struct CodeWords<Number::kE2m1, Number::kF16> {
  static constexpr int kWords = 1;
  static constexpr int bias(int) { return 0; }
  static constexpr int owed(int) { return 14; }
  static __device__ __forceinline__ void run(const u32* words, u32 (&raw)[4]) { place_sign_and_magnitude<9>(words[0], raw); }
};

template <>
struct CodeWords<Number::kE2m1, Number::kBf16> {
  static constexpr int kWords = 1;
  static constexpr int bias(int) { return 0; }
  static constexpr int owed(int) { return 126; }
  static __device__ __forceinline__ void run(const u32* words, u32 (&raw)[4]) { place_sign_and_magnitude<6>(words[0], raw); }
};

}  // namespace humming::decode
