// Copies everything that one pipeline stage needs: activations, weights, scales, zero points or minima.
// Called by the pipeline, by all threads of one group of warps.
// Who waits: the pipeline, through Copier::wait, then a barrier of the group.
#pragma once

#include <humming/base/arguments.cuh>
#include <humming/base/shape.cuh>
#include <humming/copy/global_to_shared_cp_async.cuh>
#include <humming/copy/global_to_shared_plain.cuh>

namespace humming::copy {

using base::i64;
using base::LayerConfig;
using base::TuningConfig;
using base::u16;
using base::u32;
using base::u8;

template <LayerConfig kLayer, TuningConfig kTuning, class Copier>
struct DenseStage {
  using Shape = base::Shape<kLayer, kTuning>;
  static constexpr int kThreads = Shape::kGroupThreads;

  // Weights: shared order is [strip][brick][atom][bytes of the atom], the stored order cut to the rows of the block.
  static constexpr int kRunRows = base::minimum(kTuning.block_n, base::kBrickRows);
  static constexpr int kRunChunks = kRunRows / base::kAtomRows * Shape::kAtomBytes / 16;  // contiguous in one brick
  static constexpr int kStripChunks = kRunChunks * Shape::kStageBricks;

  // Activations: rows of stage_k values. Chunk c of token t lies at chunk c ^ (t % 8), so that the eight rows of an
  // ldmatrix fall on different banks. Each thread keeps to one row of every kRowStep where the row length allows.
  static constexpr int kRowChunks = Shape::kActivationPitch / 16;
  static constexpr bool kFixedColumn = kThreads % kRowChunks == 0;
  static constexpr int kRowStep = kFixedColumn ? kThreads / kRowChunks : 1;

  const base::DenseArguments& arguments;
  Copier copier;
  int thread;        // in the group
  int strips_left;   // strips of the stored weight from this tile on
  int tokens;        // of this tile; fewer than block_m in the last one
  int bricks;        // along k
  int scale_groups;  // along k
  const u8* weight;  // of this tile
  const u8* scale;
  const u8* zero;
  const u16* activation;  // of this tile, and of this thread where its column is fixed

  __device__ __forceinline__ DenseStage(const base::DenseArguments& given, int thread_in_group)
      : arguments(given),
        thread(thread_in_group),
        bricks(base::ceil_div(given.k, base::kBrickK)),
        scale_groups(kLayer.group_k == 0 ? 1 : base::ceil_div(given.k, base::maximum(1, kLayer.group_k))) {
    if constexpr (kTuning.evict_first) copier.use_evict_first();
  }

  __device__ __forceinline__ void start_tile(int tile_n, int tile_m) {
    const int first_row = tile_n * kTuning.block_n;
    const int first_strip = first_row / base::kBrickRows;
    const int first_token = tile_m * kTuning.block_m;
    strips_left = base::ceil_div(arguments.n, base::kBrickRows) - first_strip;
    tokens = base::minimum(kTuning.block_m, arguments.m - first_token);
    weight = arguments.weight + static_cast<i64>(first_strip) * strip_bytes() +
             first_row % base::kBrickRows / base::kAtomRows * Shape::kAtomBytes;
    const i64 line = static_cast<i64>(first_strip) * scale_groups * base::kBrickRows;
    scale = arguments.weight_scale + line * 2;
    zero = arguments.zero_point + line * (Shape::kMinimumInStage ? 2 : 1);
    activation = arguments.activation + first_token * arguments.activation_stride;
    if constexpr (kFixedColumn) {
      activation += thread / kRowChunks * arguments.activation_stride + thread % kRowChunks * 8;
    }
  }

  // Tokens past the last one are never copied; their rows of every slot are zeroed once for a tile.
  __device__ __forceinline__ void zero_missing_tokens(u32 ring) const {
    if (tokens == kTuning.block_m) return;
    for (int chunk = tokens * kRowChunks + thread; chunk < kTuning.block_m * kRowChunks; chunk += kThreads) {
#pragma unroll
      for (int slot = 0; slot < kTuning.stages; ++slot) {
        arch::sm75::store_shared_16(ring + slot * Shape::kStageBytes + chunk * 16, {{0, 0, 0, 0}});
      }
    }
  }

  // `stage` counts stages of stage_k along k; `shared` is the start of the ring slot.
  __device__ __forceinline__ void issue(int stage, u32 shared) const {
    issue_weights(stage, shared + Shape::kWeightOffset);
    issue_activations(stage, shared);
    if constexpr (Shape::kScaleInStage) issue_group_values<2>(scale, stage, shared + Shape::kScaleOffset);
    if constexpr (Shape::kZeroInStage) issue_group_values<1>(zero, stage, shared + Shape::kZeroOffset);
    if constexpr (Shape::kMinimumInStage) issue_group_values<2>(zero, stage, shared + Shape::kZeroOffset);
  }

 private:
  __device__ __forceinline__ int strip_bytes() const { return bricks * Shape::kBrickBytes; }

  // Chunk number i of this thread, divided by kDivisor; known at compile time where the threads divide it.
  template <int kDivisor>
  __device__ __forceinline__ int quotient(int i) const {
    if constexpr (kDivisor % kThreads == 0) {
      return i * kThreads / kDivisor;
    } else {
      return (i * kThreads + thread) / kDivisor;
    }
  }

  __device__ __forceinline__ void issue_weights(int stage, u32 shared) const {
    constexpr int kChunks = Shape::kWeightBytes / 16;
    const u8* stage_weight = weight + stage * (Shape::kStageBricks * Shape::kBrickBytes);
    const int bricks_left = bricks - stage * Shape::kStageBricks;
#pragma unroll
    for (int i = 0; i < base::ceil_div(kChunks, kThreads); ++i) {
      const int chunk = i * kThreads + thread;
      if (kChunks % kThreads != 0 && chunk >= kChunks) break;
      const int strip = quotient<kStripChunks>(i);
      const int run = quotient<kRunChunks>(i);  // [strip][brick]
      const int brick = run - strip * Shape::kStageBricks;
      const bool valid = strip < strips_left && brick < bricks_left;
      const u8* source = stage_weight + strip * strip_bytes() + brick * Shape::kBrickBytes + (chunk - run * kRunChunks) * 16;
      if (!valid) source = weight;
      if constexpr (kTuning.evict_first) {
        copier.copy_evict_first(shared + chunk * 16, source, valid);
      } else {
        copier.copy(shared + chunk * 16, source, valid);
      }
    }
  }

  __device__ __forceinline__ void issue_activations(int stage, u32 shared) const {
    constexpr int kChunks = Shape::kActivationBytes / 16;
    const int first_k = stage * kTuning.stage_k;
    const u16* source = activation + first_k;
#pragma unroll
    for (int i = 0; i < base::ceil_div(kChunks, kThreads); ++i) {
      int row = i * kRowStep + thread / kRowChunks;
      int column = thread % kRowChunks;
      if constexpr (!kFixedColumn) {
        row = (i * kThreads + thread) / kRowChunks;
        column = (i * kThreads + thread) % kRowChunks;
        source = activation + row * arguments.activation_stride + first_k + column * 8;
      }
      if (row < tokens) {
        const bool valid = first_k + column * 8 < arguments.k;
        copier.copy(shared + row * Shape::kActivationPitch + (column ^ (row % 8)) * 16,
                    valid ? source : arguments.activation, valid);
      }
      if constexpr (kFixedColumn) source += kRowStep * arguments.activation_stride;
    }
  }

  // Per strip and group 64 values in lane order, of kBytes each.
  template <int kBytes>
  __device__ __forceinline__ void issue_group_values(const u8* values, int stage, u32 shared) const {
    constexpr int kLineBytes = base::kBrickRows * kBytes;
    constexpr int kLineChunks = kLineBytes / 16;
    constexpr int kChunks = Shape::kStrips * Shape::kStageGroups * kLineChunks;
    int first_group = 0;
    if constexpr (kLayer.group_k != 0) first_group = stage * kTuning.stage_k / kLayer.group_k;
#pragma unroll
    for (int i = 0; i < base::ceil_div(kChunks, kThreads); ++i) {
      const int chunk = i * kThreads + thread;
      if (kChunks % kThreads != 0 && chunk >= kChunks) break;
      const int strip = chunk / (kLineChunks * Shape::kStageGroups);
      const int group = first_group + chunk / kLineChunks % Shape::kStageGroups;
      const bool valid = strip < strips_left && group < scale_groups;
      const u8* source = values + (strip * scale_groups + group) * kLineBytes + chunk % kLineChunks * 16;
      copier.copy(shared + chunk * 16, valid ? source : values, valid);
    }
  }
};

}  // namespace humming::copy
