// Adds the accumulators of the block's groups of warps, then those of the blocks that share a tile, and stores.
// Called by kernels/dense once per segment, by all threads of the block.
// Both sums run in a fixed order in f32; the last block to arrive adds the partial tiles and resets the counter.
#pragma once

#include <humming/arch/sm75/memory.cuh>
#include <humming/base/segment.cuh>
#include <humming/base/shape.cuh>
#include <humming/epilogue/arrival.cuh>
#include <humming/epilogue/store.cuh>

namespace humming::epilogue {

using base::TuningConfig;

template <LayerConfig kLayer, TuningConfig kTuning, class Store>
struct Reduce {
  using Shape = base::Shape<kLayer, kTuning>;
  static constexpr int kQuads = kTuning.block_n / 4;  // groups of four features
  static constexpr int kSliceTokens = Shape::kSliceTiles * base::kTokenTile;  // of one warp
  static constexpr int kTileFloats = kTuning.block_n * kTuning.block_m;

  const base::DenseArguments& arguments;
  float* shared;
  int warp_n;
  int warp_m;
  int group;
  int lane;

  template <class Schedule>
  __device__ __forceinline__ void run(const float (&sums)[Shape::kAtoms][Shape::kTiles][4],
                                      const base::Segment& segment, const Schedule& schedule) const {
    float* slot = nullptr;
    if constexpr (kTuning.split) {
      slot = arguments.workspace + schedule.workspace_slot(segment.tile, blockIdx.x) * kTileFloats;
    }
#pragma unroll
    for (int slice = 0; slice < Shape::kTiles / Shape::kSliceTiles; ++slice) {
      __syncthreads();  // the ring, or the slice before, has been read
      write_slice(sums, slice);
      __syncthreads();
      constexpr int kTokens = kTuning.warps_m * kSliceTokens;
#pragma unroll 1
      for (int i = threadIdx.x; i < kTokens * kQuads; i += Shape::kThreads) {
        const int feature = i % kQuads * 4;
        const int row = i / kQuads;  // in the slice: [warp_m][token]
        const int token = row / kSliceTokens * (Shape::kTiles * base::kTokenTile) + slice * kSliceTokens + row % kSliceTokens;
        Floats4 sum = *reinterpret_cast<const Floats4*>(shared + row * Shape::kReducePitch + feature);
#pragma unroll
        for (int g = 1; g < kTuning.warps_k; ++g) {
          add(sum, *reinterpret_cast<const Floats4*>(shared + (g * kTokens + row) * Shape::kReducePitch + feature));
        }
        if (!kTuning.split || segment.whole) {
          store(segment, token, feature, sum);
        } else {
          *reinterpret_cast<Floats4*>(slot + token * kTuning.block_n + feature) = sum;
        }
      }
    }
    if constexpr (kTuning.split) {
      int* flag = reinterpret_cast<int*>(shared) + Shape::kFlagOffset / 4;
      if (!segment.whole && arrive_is_last(arguments.counters + segment.tile, schedule.contributors(segment.tile), flag,
                                           threadIdx.x == 0, [] { __syncthreads(); })) {
        add_partial_tiles(segment, schedule);
      }
      __syncthreads();  // shared memory may be filled again
    }
  }

 private:
  static __device__ __forceinline__ void add(Floats4& sum, const Floats4& other) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.value[i] += other.value[i];
  }

  __device__ __forceinline__ void store(const base::Segment& segment, int token, int feature, const Floats4& sum) const {
    const int global_token = segment.tile_m * kTuning.block_m + token;
    const int global_feature = segment.tile_n * kTuning.block_n + feature;
    if (global_token < arguments.m && global_feature < arguments.n) Store::run(arguments, global_token, global_feature, sum);
  }

  __device__ __forceinline__ void write_slice(const float (&sums)[Shape::kAtoms][Shape::kTiles][4], int slice) const {
    const int first_row = (group * kTuning.warps_m + warp_m) * kSliceTokens + 2 * (lane % 4);
    const int first_feature = warp_n * Shape::kAtoms * base::kAtomRows + lane / 4;
#pragma unroll
    for (int atom = 0; atom < Shape::kAtoms; ++atom) {
#pragma unroll
      for (int tile = 0; tile < Shape::kSliceTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          shared[(first_row + tile * base::kTokenTile + i % 2) * Shape::kReducePitch + first_feature +
                 atom * base::kAtomRows + 8 * (i / 2)] = sums[atom][slice * Shape::kSliceTiles + tile][i];
        }
      }
    }
  }

  template <class Schedule>
  __device__ __forceinline__ void add_partial_tiles(const base::Segment& segment, const Schedule& schedule) const {
    const int tokens = base::minimum(kTuning.block_m, arguments.m - segment.tile_m * kTuning.block_m);
    const int first_block = schedule.first_block(segment.tile);
    const int end_block = first_block + schedule.contributors(segment.tile);
#pragma unroll 1
    for (int i = threadIdx.x; i < tokens * kQuads; i += Shape::kThreads) {
      const int feature = i % kQuads * 4;
      const int token = i / kQuads;
      const float* part = arguments.workspace + token * kTuning.block_n + feature;
      Floats4 sum = {{0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll 4
      for (int block = first_block; block < end_block; ++block) {
        const i64 slot = schedule.workspace_slot(segment.tile, block);
        add(sum, arch::sm75::load_global_floats4_l2(part + slot * kTileFloats));
      }
      store(segment, token, feature, sum);
    }
  }
};

}  // namespace humming::epilogue
