// What the copying warps of a warp-specialised kernel put into a stage: each warp has one part, and one thread of it
// issues it. All parts complete on the full barrier of the stage.
// Called by kernels/dense_wgmma; assumes the order of bytes of base/shape. A part is started with a tile and its first
// stage, then issued stage after stage; one thread feeds a whole block, so a part keeps what it would derive again.
//
// Strips past the last one, bricks and scale groups past the last are taken from the last one instead: they are finite,
// and meet tokens that the tensor copy has filled with zeros, or features that are never stored.
#pragma once

#include <humming/arch/sm80/cp_async.cuh>
#include <humming/arch/sm90/bulk_copy.cuh>
#include <humming/arch/sm90/mbarrier.cuh>
#include <humming/base/shape.cuh>

namespace humming::copy {

using base::i64;
using base::LayerConfig;
using base::TuningConfig;
using base::u32;
using base::u8;

// Flat copies of the bricks of one strip.
template <LayerConfig kLayer, TuningConfig kTuning>
struct StripCopy {
  using Shape = base::Shape<kLayer, kTuning>;
  static constexpr int kBytes = Shape::kStageBricks * Shape::kBrickBytes;

  const base::DenseArguments& arguments;
  int strip_of_block;
  int strips;
  int bricks;
  int bricks_left;
  base::u64 policy;
  const u8* weight;

  __device__ __forceinline__ StripCopy(const base::DenseArguments& given, int strip)
      : arguments(given),
        strip_of_block(strip),
        strips(base::ceil_div(given.n, base::kBrickRows)),
        bricks(base::ceil_div(given.k, base::kBrickK)),
        policy(kTuning.evict_first ? arch::sm80::policy_evict_first() : 0) {}

  __device__ __forceinline__ void start(int tile_n, int, int first_stage) {
    const i64 strip = base::minimum(tile_n * Shape::kStrips + strip_of_block, strips - 1);
    weight = arguments.weight + (strip * bricks + first_stage * Shape::kStageBricks) * Shape::kBrickBytes;
    bricks_left = bricks - first_stage * Shape::kStageBricks;
  }

  __device__ __forceinline__ void issue(u32 stage, u32 barrier) {
    arch::sm90::mbarrier_arrive_expect(barrier, kBytes);
    const u32 shared = stage + Shape::kWeightOffset + strip_of_block * kBytes;
    if (bricks_left >= Shape::kStageBricks) {
      copy(shared, weight, kBytes, barrier);
    } else {
#pragma unroll 1
      for (int i = 0; i < Shape::kStageBricks; ++i) {
        copy(shared + i * Shape::kBrickBytes, weight + base::minimum(i, bricks_left - 1) * Shape::kBrickBytes,
             Shape::kBrickBytes, barrier);
      }
    }
    weight += kBytes;
    bricks_left -= Shape::kStageBricks;
  }

 private:
  __device__ __forceinline__ void copy(u32 shared, const u8* source, u32 bytes, u32 barrier) const {
    if constexpr (kTuning.evict_first) {
      arch::sm90::bulk_copy_hint(shared, source, bytes, barrier, policy);
    } else {
      arch::sm90::bulk_copy(shared, source, bytes, barrier);
    }
  }
};

// Boxes of 64 k x block_m tokens by a tensor map, in rows of 128 bytes with the 128-byte swizzle.
template <LayerConfig kLayer, TuningConfig kTuning>
struct TokenCopy {
  using Shape = base::Shape<kLayer, kTuning>;
  static constexpr int kBoxK = 64;  // 128 bytes of 16-bit tokens, the width of the swizzle
  static constexpr int kBoxes = kTuning.stage_k / kBoxK;
  static constexpr int kBoxBytes = kTuning.block_m * kBoxK * 2;

  const base::TensorMap* map;
  int k = 0;
  int first_token = 0;

  __device__ __forceinline__ explicit TokenCopy(const base::TensorMap* activation_map) : map(activation_map) {
    arch::sm90::prefetch_tensor_map(map);
  }

  __device__ __forceinline__ void start(int, int tile_m, int first_stage) {
    k = first_stage * kTuning.stage_k;
    first_token = tile_m * kTuning.block_m;
  }

  __device__ __forceinline__ void issue(u32 stage, u32 barrier) {
    arch::sm90::mbarrier_arrive_expect(barrier, Shape::kActivationBytes);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      arch::sm90::tensor_copy_2d(stage + box * kBoxBytes, map, k + box * kBoxK, first_token, barrier);
    }
    k += kTuning.stage_k;
  }
};

// Lines of 64 scales, and of zero points or minima, of every group that the stage touches.
template <LayerConfig kLayer, TuningConfig kTuning>
struct LineCopy {
  using Shape = base::Shape<kLayer, kTuning>;
  static constexpr int kBytes = Shape::kScaleBytes + Shape::kZeroBytes;
  // Stages that one scale group lasts, 1 where a stage holds whole groups, 0 where one group lasts for all of k.
  static constexpr int kStagesPerGroup =
      kLayer.group_k == 0 ? 0 : base::maximum(1, kLayer.group_k / base::maximum(1, kTuning.stage_k));

  const base::DenseArguments& arguments;
  int strips;
  int groups;
  int stage_index = 0;
  i64 first_line[Shape::kStrips];

  __device__ __forceinline__ explicit LineCopy(const base::DenseArguments& given)
      : arguments(given),
        strips(base::ceil_div(given.n, base::kBrickRows)),
        groups(kLayer.group_k == 0 ? 1 : base::ceil_div(given.k, base::maximum(1, kLayer.group_k))) {}

  __device__ __forceinline__ void start(int tile_n, int, int first_stage) {
    stage_index = first_stage;
#pragma unroll
    for (int i = 0; i < Shape::kStrips; ++i) {
      first_line[i] = static_cast<i64>(base::minimum(tile_n * Shape::kStrips + i, strips - 1)) * groups;
    }
  }

  __device__ __forceinline__ void issue(u32 stage, u32 barrier) {
    arch::sm90::mbarrier_arrive_expect(barrier, kBytes);
    int group = 0;
    if constexpr (kStagesPerGroup != 0) group = stage_index / kStagesPerGroup * Shape::kStageGroups;
#pragma unroll
    for (int i = 0; i < Shape::kStrips; ++i) {
      const i64 line = first_line[i] + group;
      if constexpr (Shape::kScaleInStage) {
        copy<2>(arguments.weight_scale, line, groups - group, stage + Shape::kScaleOffset, i, barrier);
      }
      if constexpr (Shape::kMinimumInStage) {
        copy<2>(arguments.zero_point, line, groups - group, stage + Shape::kZeroOffset, i, barrier);
      }
      if constexpr (Shape::kZeroInStage) {
        copy<1>(arguments.zero_point, line, groups - group, stage + Shape::kZeroOffset, i, barrier);
      }
    }
    ++stage_index;
  }

 private:
  template <int kValueBytes>
  static __device__ __forceinline__ void copy(const u8* values, i64 line, int left, u32 shared, int strip, u32 barrier) {
    constexpr int kLine = base::kBrickRows * kValueBytes;
    const u8* source = values + line * kLine;
    shared += strip * (Shape::kStageGroups * kLine);
    if constexpr (Shape::kStageGroups == 1) {
      arch::sm90::bulk_copy(shared, source, kLine, barrier);
    } else if (left >= Shape::kStageGroups) {
      arch::sm90::bulk_copy(shared, source, Shape::kStageGroups * kLine, barrier);
    } else {
#pragma unroll 1
      for (int i = 0; i < Shape::kStageGroups; ++i) {
        arch::sm90::bulk_copy(shared + i * kLine, source + base::minimum(i, left - 1) * kLine, kLine, barrier);
      }
    }
  }
};

}  // namespace humming::copy
