// Unsigned integers of 4 and 8 bits -> f16 and bf16.
// Included by units whose weight is u4 or u8.
// Assumes the contract of decode/code_words.
#pragma once

#include <humming/decode/code_words.cuh>

namespace humming::decode {

// f16 1024 has an ulp of 1, so a code in the low mantissa bits adds its value; in bits 4-7 it adds 16 times that.
template <>
struct CodeWords<Number::kU4, Number::kF16> {
  static constexpr int kWords = 1;
  static constexpr int bias(int r) { return r % 2 == 0 ? 1024 : 64; }
  static constexpr int owed(int r) { return r % 2 == 0 ? 0 : -4; }
  static __device__ __forceinline__ void run(const u32* words, u32 (&raw)[4]) {
    const u32 high = words[0] >> 8;
    raw[0] = (words[0] & 0x000f000fu) | 0x64006400u;
    raw[1] = (words[0] & 0x00f000f0u) | 0x64006400u;
    raw[2] = (high & 0x000f000fu) | 0x64006400u;
    raw[3] = (high & 0x00f000f0u) | 0x64006400u;
  }
};

// bf16 is linear over its exponents 0 and 1: the pattern p < 256 is p * 2^-133. No magic number is needed.
template <>
struct CodeWords<Number::kU4, Number::kBf16> {
  static constexpr int kWords = 1;
  static constexpr int bias(int) { return 0; }
  static constexpr int owed(int r) { return r % 2 == 0 ? 133 : 129; }
  static __device__ __forceinline__ void run(const u32* words, u32 (&raw)[4]) {
    const u32 high = words[0] >> 8;
    raw[0] = words[0] & 0x000f000fu;
    raw[1] = words[0] & 0x00f000f0u;
    raw[2] = high & 0x000f000fu;
    raw[3] = high & 0x00f000f0u;
  }
};

// Register r lies in word r / 2, byte r % 2 of each half.
template <>
struct CodeWords<Number::kU8, Number::kF16> {
  static constexpr int kWords = 2;
  static constexpr int bias(int) { return 1024; }
  static constexpr int owed(int) { return 0; }
  static __device__ __forceinline__ void run(const u32* words, u32 (&raw)[4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      // bytes {code, 0x64, code, 0x64}
      raw[r] = __byte_perm(words[r / 2], 0x64646464u, r % 2 == 0 ? 0x4240u : 0x4341u);
    }
  }
};

template <>
struct CodeWords<Number::kU8, Number::kBf16> {
  static constexpr int kWords = 2;
  static constexpr int bias(int) { return 0; }
  static constexpr int owed(int) { return 133; }
  static __device__ __forceinline__ void run(const u32* words, u32 (&raw)[4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) raw[r] = (words[r / 2] >> (8 * (r % 2))) & 0x00ff00ffu;
  }
};

}  // namespace humming::decode
