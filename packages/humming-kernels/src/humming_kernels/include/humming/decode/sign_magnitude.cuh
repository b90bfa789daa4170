// Sign and magnitude of 4 bits (e0m3) -> f16 and bf16.
// Included by units whose weight is e0m3.
// Assumes the contract of decode/code_words.
#pragma once

#include <humming/decode/code_words.cuh>
#include <humming/decode/sign_bit.cuh>

namespace humming::decode {

// Sign and magnitude: a subnormal, no arithmetic.
template <>
struct CodeWords<Number::kE0m3, Number::kF16> {
  static constexpr int kWords = 1;
  static constexpr int bias(int) { return 0; }
  static constexpr int owed(int) { return 24; }
  static __device__ __forceinline__ void run(const u32* words, u32 (&raw)[4]) { place_sign_and_magnitude<0>(words[0], raw); }
};

template <>
struct CodeWords<Number::kE0m3, Number::kBf16> {
  static constexpr int kWords = 1;
  static constexpr int bias(int) { return 0; }
  static constexpr int owed(int) { return 133; }
  static __device__ __forceinline__ void run(const u32* words, u32 (&raw)[4]) { place_sign_and_magnitude<0>(words[0], raw); }
};

}  // namespace humming::decode
