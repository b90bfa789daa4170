// Code words -> operand registers, zero points and scales on the operand included.
// Used by the dense kernels for each step of 16 k of each atom.
// What the result still owes is kOwed: operand = weight * 2^-kOwed (weight / scale where the scale goes elsewhere).
//
// Which arithmetic, for raw = (bias + value) * 2^-owed of decode/code_words:
//
//   zero point          scale elsewhere                        scale on the operand
//   none                f16: nothing, bf16: * power of two     f16: value * s, bf16: raw * s'
//   constant, integer   raw * power of two - (bias + zero)     f16, bf16 integer: (value - zero) * s
//                                                              bf16 constant: raw * s' - zero * s'   (zero = 2^i: exact)
//   minimum             (served on the operand only)           f16: value * s + min, bf16: raw * s' + min'
//   minimum in f16 for a bf16 operand: computed in f16, rounded once more to bf16.
//   minimum in bf16 for an f16 operand: computed in f32, whose range holds both, rounded once to f16.
//
// bf16 folds the huge owed power of two into s' = s * 2^(owed - kFold); kFold = 37 leaves room on both sides: s may be
// up to 2^31 before s' overflows, and down to 2^-80 before min' and zero' leave the normal range.
#pragma once

#include <humming/base/config.cuh>
#include <humming/base/math.cuh>
#include <humming/decode/code_words.cuh>
#include <humming/decode/convert.cuh>

namespace humming::decode {

using base::ComputeConfig;
using base::LayerConfig;
using base::ScalePlace;
using base::ZeroPoint;

// What the lane needs to know of one scale group of one atom: [0] is row g, [1] row g + 8.
struct GroupParameters {
  u32 multiplier[2];
  u32 addend[2];
};

template <LayerConfig kLayer, ComputeConfig kCompute, ScalePlace kPlace>
struct Operand {
  static constexpr Number kOperand = kCompute.activation;
  static constexpr bool kOnOperand = kPlace == ScalePlace::kOperand;
  static constexpr bool kUnsigned =
      kLayer.zero_point == ZeroPoint::kConstant || kLayer.zero_point == ZeroPoint::kInteger;
  static constexpr bool kMinimum = kLayer.zero_point == ZeroPoint::kMinimum;
  // A bf16 operand with f16 minima is computed in f16: rounding the minimum to bf16 would err by a share of a step.
  static constexpr bool kThroughF16 = kOperand == Number::kBf16 && kMinimum && kLayer.scale == Number::kF16;
  static constexpr bool kThroughF32 = kOperand == Number::kF16 && kMinimum && kLayer.scale == Number::kBf16;
  static constexpr Number kArithmetic = kThroughF16 ? Number::kF16 : kOperand;
  static constexpr bool kBf16 = kArithmetic == Number::kBf16;
  using Words = CodeWords<kLayer.weight, kArithmetic>;

  // bf16 without the scale keeps a small power of two, since 2^133 is no bf16; f16 signed numbers stay subnormal.
  static constexpr int kPlain = kBf16 ? 6 : kUnsigned || kMinimum || kOnOperand ? 0 : Words::owed(0);
  static constexpr int kFold = 37;
  static constexpr bool kFolded = kBf16 && kOnOperand && kLayer.zero_point != ZeroPoint::kInteger;
  static constexpr int kOwed = kFolded ? kFold : kPlain;
  static constexpr bool kNeedsParameters = kOnOperand || kLayer.zero_point == ZeroPoint::kInteger;

  static constexpr float kConstantZero = kUnsigned ? static_cast<float>(1 << (kLayer.weight_bits - 1)) : 0.0f;

  static_assert(!kMinimum || kOnOperand, "a minimum is added to the operand, so its scale belongs there too");

  // `scales` holds the bits of two scales in halves, `zeros` two integer zeros in bytes or two minima in halves.
  static __device__ __forceinline__ GroupParameters prepare(u32 scales, u32 zeros) {
    GroupParameters parameters = {{0, 0}, {0, 0}};
    prepare_row<0>(scales, zeros, parameters);
    prepare_row<1>(scales, zeros, parameters);
    return parameters;
  }

  static __device__ __forceinline__ void run(const u32* words, const GroupParameters& parameters, u32 (&operand)[4]) {
    u32 raw[4];
    Words::run(words, raw);
    apply<0>(raw[0], parameters, operand[0]);
    apply<1>(raw[1], parameters, operand[1]);
    apply<2>(raw[2], parameters, operand[2]);
    apply<3>(raw[3], parameters, operand[3]);
  }

 private:
  static constexpr __device__ u32 power(int exponent) {
    return base::encode_pair(kArithmetic, base::power_of_two(exponent));
  }

  // A stored scale or minimum as a pair of the type that the arithmetic is in.
  static __device__ __forceinline__ u32 stored_pair(u32 bits) {
    if constexpr (kLayer.scale == kArithmetic) {
      return both_halves(bits);
    } else {
      return both_halves(from_f32<kArithmetic>(to_f32<kLayer.scale>(bits & 0xffffu)));
    }
  }

  // Row g (half 0) or g + 8 (half 1).
  template <int half>
  static __device__ __forceinline__ void prepare_row(u32 scales, u32 zeros, GroupParameters& parameters) {
    if constexpr (kThroughF32) {
      parameters.multiplier[half] = __float_as_uint(to_f32<kLayer.scale>((scales >> (16 * half)) & 0xffffu));
      parameters.addend[half] = __float_as_uint(to_f32<kLayer.scale>((zeros >> (16 * half)) & 0xffffu));
      return;
    }
    if constexpr (kOnOperand) {
      const u32 scale = stored_pair(scales >> (16 * half));
      if constexpr (kFolded) {
        constexpr u32 kPower = power(Words::owed(half) - kFold);
        parameters.multiplier[half] = mul_pair<kArithmetic>(scale, kPower);
      } else {
        parameters.multiplier[half] = scale;
      }
      if constexpr (kFolded && kLayer.zero_point == ZeroPoint::kConstant) {
        constexpr float kZero = -(Words::bias(half) + kConstantZero) * base::power_of_two(-kFold);
        parameters.addend[half] = mul_pair<kArithmetic>(scale, base::encode_pair(kArithmetic, kZero));
      }
    }
    if constexpr (kLayer.zero_point == ZeroPoint::kInteger) {
      const float zero = static_cast<float>((zeros >> (8 * half)) & 0xffu);
      parameters.addend[half] =
          both_halves(from_f32<kArithmetic>(-(Words::bias(half) + zero) * base::power_of_two(-kPlain)));
    }
    if constexpr (kMinimum) {
      const u32 minimum = stored_pair(zeros >> (16 * half));
      if constexpr (kFolded) {
        parameters.addend[half] = mul_pair<kArithmetic>(minimum, power(-kFold));
      } else {
        parameters.addend[half] = minimum;
      }
    }
  }

  // raw -> (value - zero) * 2^-kPlain, exactly.
  template <int r>
  static __device__ __forceinline__ u32 plain(u32 raw, const GroupParameters& parameters) {
    constexpr int kShift = Words::owed(r) - kPlain;
    if constexpr (kLayer.zero_point == ZeroPoint::kInteger) {
      return fma_pair<kArithmetic>(raw, power(kShift), parameters.addend[r % 2]);
    } else if constexpr (kUnsigned || kMinimum) {
      constexpr float kZero = -(Words::bias(r) + kConstantZero) * base::power_of_two(-kPlain);
      return fma_pair<kArithmetic>(raw, power(kShift), base::encode_pair(kArithmetic, kZero));
    } else if constexpr (kShift == 0) {
      return raw;
    } else if constexpr (kArithmetic == Number::kF16 && kShift > 15) {
      return mul_pair<kArithmetic>(mul_pair<kArithmetic>(raw, power(15)), power(kShift - 15));  // 2^15 is f16's largest
    } else {
      return mul_pair<kArithmetic>(raw, power(kShift));
    }
  }

  template <int r>
  static __device__ __forceinline__ void apply(u32 raw, const GroupParameters& parameters, u32& operand) {
    if constexpr (kThroughF32) {
      const u32 value = plain<r>(raw, parameters);
      const float scale = __uint_as_float(parameters.multiplier[r % 2]);
      const float minimum = __uint_as_float(parameters.addend[r % 2]);
      const u16 low = from_f32<kOperand>(__fmaf_rn(to_f32<Number::kF16>(value & 0xffffu), scale, minimum));
      const u16 high = from_f32<kOperand>(__fmaf_rn(to_f32<Number::kF16>(value >> 16), scale, minimum));
      operand = low | static_cast<u32>(high) << 16;
    } else if constexpr (kFolded) {
      if constexpr (kLayer.zero_point == ZeroPoint::kNone) {
        operand = mul_pair<kArithmetic>(raw, parameters.multiplier[r % 2]);
      } else {
        operand = fma_pair<kArithmetic>(raw, parameters.multiplier[r % 2], parameters.addend[r % 2]);
      }
    } else if constexpr (kMinimum) {
      operand = fma_pair<kArithmetic>(plain<r>(raw, parameters), parameters.multiplier[r % 2], parameters.addend[r % 2]);
    } else if constexpr (kOnOperand) {
      operand = mul_pair<kArithmetic>(plain<r>(raw, parameters), parameters.multiplier[r % 2]);
    } else {
      operand = plain<r>(raw, parameters);
    }
    if constexpr (kThroughF16) {
      operand = arch::sm80::f32x2_to_bf16x2(to_f32<Number::kF16>(operand & 0xffffu), to_f32<Number::kF16>(operand >> 16));
    }
  }
};

}  // namespace humming::decode
