// Small compile-time arithmetic and the exact bit patterns of numbers that decoders multiply and add.
// Used by components that derive constants.
// Assumes the encoded values are exact in their type; encode_* never rounds.
#pragma once

#include <humming/base/config.cuh>
#include <humming/base/types.cuh>

namespace humming::base {

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
constexpr int minimum(int a, int b) { return a < b ? a : b; }
constexpr u32 minimum(u32 a, u32 b) { return a < b ? a : b; }
constexpr int maximum(int a, int b) { return a > b ? a : b; }

// 2^exponent as the bits of a normal f32.
constexpr float power_of_two(int exponent) { return __builtin_bit_cast(float, static_cast<u32>(127 + exponent) << 23); }

// An f32 that f16 or bf16 holds exactly as a normal number or zero, as that type's 16 bits.
constexpr u32 encode_exact(Number number, float value) {
  const u32 bits = __builtin_bit_cast(u32, value);
  if (number == Number::kBf16) return bits >> 16;
  const u32 sign = (bits >> 16) & 0x8000u;
  if ((bits & 0x7fffffffu) == 0) return sign;
  const u32 exponent = ((bits >> 23) & 0xffu) - 127 + 15;  // rebias from f32 (127) to f16 (15)
  return sign | (exponent << 10) | ((bits >> 13) & 0x3ffu);
}

// The same 16 bits in both halves of a register: one operand for two lanes of a packed instruction.
constexpr u32 encode_pair(Number number, float value) { return encode_exact(number, value) * 0x00010001u; }

}  // namespace humming::base
