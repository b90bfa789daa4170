// Sizes that follow from a layer and a tuning: warps, atoms, bytes of a stage.
// Used by every component of a dense kernel; humming_kernels.launch derives the same bytes in Python.
// Assumes 16-bit operands: a brick is 64 rows x 64 k, an atom 16 rows of it.
#pragma once

#include <humming/base/config.cuh>
#include <humming/base/math.cuh>

namespace humming::base {

inline constexpr int kAtomRows = 16;
inline constexpr int kBrickRows = 64;
inline constexpr int kBrickK = 64;
inline constexpr int kStepK = 16;     // k of one mma
inline constexpr int kTokenTile = 8;  // tokens of one mma
inline constexpr int kWarpgroupThreads = 128;

template <LayerConfig kLayer, TuningConfig kTuning>
struct Shape {
  static constexpr int kGroupWarps = kTuning.warps_n * kTuning.warps_m;
  static constexpr int kGroupThreads = kGroupWarps * 32;
  static constexpr int kMultiplyThreads = kGroupThreads * kTuning.warps_k;
  static constexpr bool kSpecialized = kTuning.pipeline == Pipeline::kWarpSpecialized;
  static constexpr int kThreads = kMultiplyThreads + (kSpecialized ? kWarpgroupThreads : 0);

  static constexpr int kAtoms = kTuning.block_n / kAtomRows / kTuning.warps_n;  // of one warp
  static constexpr int kTiles = kTuning.block_m / kTokenTile / kTuning.warps_m;  // of one warp
  static constexpr int kSteps = kTuning.stage_k / kStepK;
  static constexpr int kStageBricks = kTuning.stage_k / kBrickK;
  static constexpr int kStrips = ceil_div(kTuning.block_n, kBrickRows);

  static constexpr bool kScaleInStage = kTuning.scale_place != ScalePlace::kEpilogue;
  static constexpr bool kZeroInStage = kLayer.zero_point == ZeroPoint::kInteger;
  static constexpr bool kMinimumInStage = kLayer.zero_point == ZeroPoint::kMinimum;
  static constexpr int kStageGroups = kLayer.group_k == 0 ? 1 : maximum(1, kTuning.stage_k / kLayer.group_k);
  static constexpr int kGroupSteps = kSteps / kStageGroups;

  static constexpr int kAtomBytes = 128 * kLayer.weight_bits;  // one atom of one brick: 16 x 64 codes
  static constexpr int kBrickBytes = 4 * kAtomBytes;
  static constexpr int kWeightBytes = kTuning.block_n / kAtomRows * kStageBricks * kAtomBytes;
  static constexpr int kActivationPitch = kTuning.stage_k * 2;
  static constexpr int kActivationBytes = kTuning.block_m * kActivationPitch;
  static constexpr int kScaleBytes = kScaleInStage ? kStrips * kStageGroups * kBrickRows * 2 : 0;
  static constexpr int kZeroBytes =
      kStrips * kStageGroups * kBrickRows * (kZeroInStage ? 1 : kMinimumInStage ? 2 : 0);

  // A stage: activations (128-byte swizzled rows, so first), weights, scales, zero points or minima.
  static constexpr int kWeightOffset = kActivationBytes;
  static constexpr int kScaleOffset = kWeightOffset + kWeightBytes;
  static constexpr int kZeroOffset = kScaleOffset + kScaleBytes;
  // Tensor copies with a swizzle of 128 bytes repeat their pattern every 1024.
  static constexpr int kStageAlignment = kSpecialized ? 1024 : 128;
  static constexpr int kStageBytes = ceil_div(kZeroOffset + kZeroBytes, kStageAlignment) * kStageAlignment;
  static constexpr int kRingBytes = kTuning.stages * kStageBytes;

  // The epilogue passes slices of the accumulators through shared memory as [group][token][feature] f32. Four floats
  // of padding put the eight rows and four token pairs of a warp's store on 32 different banks: 2 (16 j + 4) t + g.
  static constexpr int kReducePitch = kTuning.block_n + 4;
  static constexpr int reduce_bytes(int tiles) {
    return kTuning.warps_k * kTuning.warps_m * tiles * kTokenTile * kReducePitch * 4;
  }
  static constexpr int slice_tiles() {
    int tiles = kTiles;
    while (tiles > 1 && (kTiles % tiles != 0 || reduce_bytes(tiles) > kTuning.warps_k * kRingBytes)) --tiles;
    return tiles;
  }
  static constexpr int kSliceTiles = slice_tiles();
  // Warp-specialised kernels sum in registers. Behind their ring stand the sums that the other block of a cluster sends, a
  // full and an empty barrier for each stage, and sixteen bytes: what one thread tells the others, or the exchange's barrier.
  static constexpr int kExchangeOffset = kRingBytes;
  static constexpr int kExchangeBytes = kTuning.cluster_k > 1 ? kTuning.block_n * kTuning.block_m * 4 / 2 : 0;
  static constexpr int kBarrierOffset = kExchangeOffset + kExchangeBytes;
  static constexpr int kBroadcastOffset = kBarrierOffset + 16 * kTuning.stages;
  // Multistage kernels pass their sums through the rings; blocks that share tiles have a flag behind them.
  static constexpr int kFlagOffset = maximum(kTuning.warps_k * kRingBytes, reduce_bytes(kSliceTiles));
  static constexpr int kSharedBytes = kSpecialized ? kBroadcastOffset + 16 : kFlagOffset + (kTuning.split ? 16 : 0);

  static_assert(kAtoms * kAtomRows * kTuning.warps_n == kTuning.block_n, "the warps must divide the rows of a block");
  static_assert(kTiles * kTokenTile * kTuning.warps_m == kTuning.block_m, "the warps must divide the tokens of a block");
  static_assert(kGroupSteps * kStageGroups == kSteps && kGroupSteps > 0, "groups must divide a stage");
};

}  // namespace humming::base
