// Deals the work of a GEMM, tile after tile and stage after stage of k, in equal runs to the blocks.
// Called by the dense kernels where tiles are split along k.
// Assumes fewer than 2^31 units, stages <= units_per_tile; units past the last stage of a tile hold no work (they let a
// tile be split evenly). A block's run is fixed by its index, so sums never depend on timing.
#pragma once

#include <humming/schedule/raster.cuh>

namespace humming::schedule {

using base::i64;
using base::u32;

template <base::TuningConfig kTuning>
struct StreamK {
  Raster<kTuning> raster;
  u32 position;
  u32 end;
  u32 units_per_tile;
  u32 units_per_block;
  int stages_per_tile;

  __device__ __forceinline__ explicit StreamK(const base::DenseArguments& arguments)
      : raster(arguments),
        units_per_tile(arguments.units_per_tile),
        units_per_block(arguments.units_per_block),
        stages_per_tile(base::ceil_div(arguments.k, kTuning.stage_k)) {
    const u32 total = static_cast<u32>(raster.tiles_n * raster.tiles_m) * units_per_tile;
    position = blockIdx.x * units_per_block;
    end = base::minimum(position + units_per_block, total);
  }

  __device__ __forceinline__ bool next(Segment& segment) {
    if (position >= end) return false;
    const u32 tile = position / units_per_tile;
    const u32 first_unit = position - tile * units_per_tile;
    const u32 units = base::minimum(end - position, units_per_tile - first_unit);
    position += units;
    raster.place(tile, segment);
    segment.first_stage = first_unit;
    segment.stages = base::minimum(static_cast<int>(units), stages_per_tile - static_cast<int>(first_unit));
    segment.whole = units == units_per_tile;
    return true;
  }

  // The blocks that have a part of a tile are first_block, ..., first_block + contributors - 1.
  __device__ __forceinline__ int first_block(int tile) const { return tile * units_per_tile / units_per_block; }
  __device__ __forceinline__ int contributors(int tile) const {
    return ((tile + 1) * units_per_tile - 1) / units_per_block - first_block(tile) + 1;
  }

  // Each block has at most two partial tiles: one that it continues (slot 0) and one that it begins (slot 1).
  __device__ __forceinline__ i64 workspace_slot(int tile, int block) const {
    const bool continues = block * units_per_block > tile * units_per_tile;
    return 2 * static_cast<i64>(block) + (continues ? 0 : 1);
  }
};

}  // namespace humming::schedule
