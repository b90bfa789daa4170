// One warp's 16 x 8 x 16 matrix multiply with f32 accumulation: weights are A, tokens are B.
// Used by kernels/dense; a test compares coordinate() with the definition of the fragment in the PTX ISA.
// Assumes tokens in shared memory in the swizzled rows that copy/dense_stage writes.
//
//   accumulator c[i] of lane l, g = l / 4, t = l % 4:      operand register a[i] holds k and k + 1:
//        token  2t    2t+1                                      k  2t, 2t+1   2t+8, 2t+9
//   row g      c[0]   c[1]                                 row g     a[0]         a[2]
//   row g + 8  c[2]   c[3]                                 row g + 8 a[1]         a[3]
#pragma once

#include <humming/arch/sm75/matrix.cuh>
#include <humming/arch/sm80/matrix.cuh>
#include <humming/base/config.cuh>
#include <humming/base/types.cuh>

namespace humming::mma {

using base::u32;

struct Coordinate {
  int row;
  int column;
};

template <base::Number kOperand, base::TargetConfig kTarget>
struct MmaSyncTile {
  static constexpr int kShapeM = 16;
  static constexpr int kShapeN = 8;
  static constexpr int kShapeK = 16;

  // Of the accumulator with this index: row = feature, column = token.
  static constexpr __host__ __device__ Coordinate coordinate(int lane, int index) {
    return {lane / 4 + 8 * (index / 2), 2 * (lane % 4) + index % 2};
  }

  // B registers of one token tile for two steps of 16 k: {b0, b1} of the first, then of the second.
  // `rows` is the shared address of the row of token lane % 8 of the tile.
  static __device__ __forceinline__ void load_tokens(u32 (&b)[4], u32 rows, int pair_of_steps, int lane) {
    const int chunk = (pair_of_steps * 4 + lane / 8) ^ (lane % 8);
    arch::sm75::ldmatrix_x4(b, rows + chunk * 16);
  }

  static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (kOperand == base::Number::kBf16) {
      arch::sm80::mma_m16n8k16_bf16(c, a, b0, b1);
    } else if constexpr (kTarget.arch >= 80) {
      arch::sm80::mma_m16n8k16_f16(c, a, b0, b1);
    } else {
      arch::sm75::mma_m16n8k8_f16(c, a[0], a[1], b0);
      arch::sm75::mma_m16n8k8_f16(c, a[2], a[3], b1);
    }
  }
};

}  // namespace humming::mma
