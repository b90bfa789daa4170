// Copies everything that one stage of a warp-specialised kernel needs, by one thread: tokens as boxes of a tensor map,
// weights, scales and zero points as flat runs. All of it completes on the full barrier of the stage.
// Called by the producer of kernels/dense_wgmma; assumes the order of bytes of base/shape.
//
// Rows of weights past the last strip, bricks and scale groups past the last are taken from the last one instead: they
// are finite, and meet tokens that the tensor copy has filled with zeros, or features that are never stored.
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

template <LayerConfig kLayer, TuningConfig kTuning>
struct BulkStage {
  using Shape = base::Shape<kLayer, kTuning>;
  static constexpr int kBoxK = 64;  // 128 bytes of 16-bit tokens, the width of the swizzle
  static constexpr int kBoxes = kTuning.stage_k / kBoxK;
  static constexpr int kBoxBytes = kTuning.block_m * kBoxK * 2;
  static constexpr int kBytes = Shape::kActivationBytes + Shape::kWeightBytes + Shape::kScaleBytes + Shape::kZeroBytes;

  const base::DenseArguments& arguments;
  const base::TensorMap* activation_map;
  base::u64 policy;
  int strips;
  int bricks;
  int scale_groups;
  int first_strip;
  int first_token;

  __device__ __forceinline__ BulkStage(const base::DenseArguments& given, const base::TensorMap* map)
      : arguments(given),
        activation_map(map),
        policy(kTuning.evict_first ? arch::sm80::policy_evict_first() : 0),
        strips(base::ceil_div(given.n, base::kBrickRows)),
        bricks(base::ceil_div(given.k, base::kBrickK)),
        scale_groups(kLayer.group_k == 0 ? 1 : base::ceil_div(given.k, base::maximum(1, kLayer.group_k))) {}

  __device__ __forceinline__ void start_tile(int tile_n, int tile_m) {
    first_strip = tile_n * Shape::kStrips;
    first_token = tile_m * kTuning.block_m;
  }

  __device__ __forceinline__ void issue(int stage, u32 shared, u32 barrier) const {
    arch::sm90::mbarrier_arrive_expect(barrier, kBytes);
#pragma unroll
    for (int strip = 0; strip < Shape::kStrips; ++strip) issue_strip(stage, strip, shared, barrier);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      arch::sm90::tensor_copy_2d(shared + box * kBoxBytes, activation_map, stage * kTuning.stage_k + box * kBoxK,
                                 first_token, barrier);
    }
  }

 private:
  __device__ __forceinline__ void issue_strip(int stage, int strip_of_block, u32 shared, u32 barrier) const {
    const i64 strip = base::minimum(first_strip + strip_of_block, strips - 1);
    const u8* weight = arguments.weight + strip * bricks * Shape::kBrickBytes;
    const int first_brick = stage * Shape::kStageBricks;
    const u32 weight_shared = shared + Shape::kWeightOffset + strip_of_block * Shape::kStageBricks * Shape::kBrickBytes;
    copy_runs<Shape::kStageBricks, Shape::kBrickBytes, true>(weight, first_brick, bricks, weight_shared, barrier);

    int first_group = 0;
    if constexpr (kLayer.group_k != 0) first_group = stage * kTuning.stage_k / kLayer.group_k;
    const i64 line = strip * scale_groups * base::kBrickRows;
    const u32 lines_shared = shared + strip_of_block * Shape::kStageGroups * base::kBrickRows * 2;
    if constexpr (Shape::kScaleInStage) {
      copy_runs<Shape::kStageGroups, base::kBrickRows * 2, false>(arguments.weight_scale + line * 2, first_group,
                                                                  scale_groups, lines_shared + Shape::kScaleOffset, barrier);
    }
    if constexpr (Shape::kMinimumInStage) {
      copy_runs<Shape::kStageGroups, base::kBrickRows * 2, false>(arguments.zero_point + line * 2, first_group,
                                                                  scale_groups, lines_shared + Shape::kZeroOffset, barrier);
    }
    if constexpr (Shape::kZeroInStage) {
      const u32 zeros_shared = shared + Shape::kZeroOffset + strip_of_block * Shape::kStageGroups * base::kBrickRows;
      copy_runs<Shape::kStageGroups, base::kBrickRows, false>(arguments.zero_point + line, first_group, scale_groups,
                                                              zeros_shared, barrier);
    }
  }

  // kCount pieces of kPiece bytes from number `first` on, in one copy where all of them exist.
  template <int kCount, int kPiece, bool kWeight>
  __device__ __forceinline__ void copy_runs(const u8* source, int first, int count, u32 shared, u32 barrier) const {
    if (first + kCount <= count) {
      copy_run<kWeight>(source + static_cast<i64>(first) * kPiece, kCount * kPiece, shared, barrier);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {
      const int piece = base::minimum(first + i, count - 1);
      copy_run<kWeight>(source + static_cast<i64>(piece) * kPiece, kPiece, shared + i * kPiece, barrier);
    }
  }

  template <bool kWeight>
  __device__ __forceinline__ void copy_run(const u8* source, u32 bytes, u32 shared, u32 barrier) const {
    if constexpr (kWeight && kTuning.evict_first) {
      arch::sm90::bulk_copy_hint(shared, source, bytes, barrier, policy);
    } else {
      arch::sm90::bulk_copy(shared, source, bytes, barrier);
    }
  }
};

}  // namespace humming::copy
