// Copies everything that one pipeline stage needs: activations, weights, scales, zero points or minima.
// Called by the pipeline, by all threads of one group of warps.
// Who waits: the pipeline, through Copier::wait, then a barrier of the group.
#pragma once

#include <humming/base/arguments.cuh>
#include <humming/base/shape.cuh>
#include <humming/copy/global_to_shared_cp_async.cuh>
#include <humming/copy/global_to_shared_plain.cuh>

namespace humming::copy {

using base::LayerConfig;
using base::TuningConfig;
using base::u32;

template <LayerConfig kLayer, TuningConfig kTuning, class Copier>
struct DenseStage {
  using Shape = base::Shape<kLayer, kTuning>;

  const base::DenseArguments& arguments;
  Copier copier;
  int thread;        // in the group
  int first_row;     // of the block's features; a multiple of 16
  int first_token;   // of the block's tokens
  int strips;        // of the stored weight
  int bricks;        // along k
  int scale_groups;  // along k

  __device__ __forceinline__ DenseStage(const base::DenseArguments& given, int thread_in_group)
      : arguments(given),
        thread(thread_in_group),
        first_row(0),
        first_token(0),
        strips(base::ceil_div(given.n, base::kBrickRows)),
        bricks(base::ceil_div(given.k, base::kBrickK)),
        scale_groups(kLayer.group_k == 0 ? 1 : base::ceil_div(given.k, base::maximum(1, kLayer.group_k))) {
    if constexpr (kTuning.evict_first) copier.use_evict_first();
  }

  __device__ __forceinline__ void start_tile(int tile_n, int tile_m) {
    first_row = tile_n * kTuning.block_n;
    first_token = tile_m * kTuning.block_m;
  }

  // `stage` counts stages of stage_k along k; `shared` is the start of the ring slot.
  __device__ __forceinline__ void issue(int stage, u32 shared) const {
    issue_weights(stage, shared + Shape::kWeightOffset);
    issue_activations(stage, shared);
    if constexpr (Shape::kScaleInStage) {
      issue_group_values<2>(arguments.weight_scale, stage, shared + Shape::kScaleOffset);
    }
    if constexpr (Shape::kZeroInStage) issue_group_values<1>(arguments.zero_point, stage, shared + Shape::kZeroOffset);
    if constexpr (Shape::kMinimumInStage) {
      issue_group_values<2>(arguments.zero_point, stage, shared + Shape::kZeroOffset);
    }
  }

 private:
  // Runs body(chunk) for the chunks that fall to this thread.
  template <int kChunks, class Body>
  __device__ __forceinline__ void for_each_chunk(Body body) const {
#pragma unroll
    for (int i = 0; i < base::ceil_div(kChunks, Shape::kGroupThreads); ++i) {
      const int chunk = i * Shape::kGroupThreads + thread;
      if (kChunks % Shape::kGroupThreads == 0 || chunk < kChunks) body(chunk);
    }
  }

  // Shared order is [strip][brick][atom][bytes of the atom], the stored order cut to the rows of this block.
  __device__ __forceinline__ void issue_weights(int stage, u32 shared) const {
    constexpr int kRowsOfStrip = base::minimum(kTuning.block_n, base::kBrickRows);
    constexpr int kRunChunks = kRowsOfStrip / base::kAtomRows * Shape::kAtomBytes / 16;  // contiguous in one brick
    constexpr int kStripChunks = kRunChunks * Shape::kStageBricks;
    const int first_strip = first_row / base::kBrickRows;
    const int first_byte = first_row % base::kBrickRows / base::kAtomRows * Shape::kAtomBytes;
    for_each_chunk<Shape::kWeightBytes / 16>([&](int chunk) {
      const int strip = first_strip + chunk / kStripChunks;
      const int brick = stage * Shape::kStageBricks + chunk % kStripChunks / kRunChunks;
      const bool valid = strip < strips && brick < bricks;
      const base::i64 offset = (static_cast<base::i64>(strip) * bricks + brick) * Shape::kBrickBytes + first_byte +
                               chunk % kRunChunks * 16;
      const base::u8* source = arguments.weight + (valid ? offset : 0);
      if constexpr (kTuning.evict_first) {
        copier.copy_evict_first(shared + chunk * 16, source, valid);
      } else {
        copier.copy(shared + chunk * 16, source, valid);
      }
    });
  }

  // Rows of stage_k values; 16-byte chunk c of token t lies at chunk c ^ (t % 8), so that the eight rows of an
  // ldmatrix fall on different banks.
  __device__ __forceinline__ void issue_activations(int stage, u32 shared) const {
    constexpr int kRowChunks = Shape::kActivationPitch / 16;
    for_each_chunk<Shape::kActivationBytes / 16>([&](int chunk) {
      const int row = chunk / kRowChunks;
      const int column = chunk % kRowChunks;
      const int token = first_token + row;
      const int k = stage * kTuning.stage_k + column * 8;
      const bool valid = token < arguments.m && k < arguments.k;
      const base::u16* source =
          arguments.activation + (valid ? static_cast<base::i64>(token) * arguments.activation_stride + k : 0);
      copier.copy(shared + row * Shape::kActivationPitch + (column ^ (row & 7)) * 16, source, valid);
    });
  }

  // Per strip and group 64 values in lane order, of kBytes each.
  template <int kBytes>
  __device__ __forceinline__ void issue_group_values(const base::u8* values, int stage, u32 shared) const {
    constexpr int kLineChunks = base::kBrickRows * kBytes / 16;
    const int first_strip = first_row / base::kBrickRows;
    int first_group = 0;
    if constexpr (kLayer.group_k != 0) first_group = stage * kTuning.stage_k / kLayer.group_k;
    for_each_chunk<Shape::kStrips * Shape::kStageGroups * kLineChunks>([&](int chunk) {
      const int strip = first_strip + chunk / (kLineChunks * Shape::kStageGroups);
      const int group = first_group + chunk / kLineChunks % Shape::kStageGroups;
      const bool valid = strip < strips && group < scale_groups;
      const base::i64 offset =
          (static_cast<base::i64>(strip) * scale_groups + group) * (base::kBrickRows * kBytes) + chunk % kLineChunks * 16;
      copier.copy(shared + chunk * 16, values + (valid ? offset : 0), valid);
    });
  }
};

}  // namespace humming::copy
