// Deals the work of a GEMM, tile after tile and stage after stage of k, in equal runs to the blocks.
// Called by kernels/dense. A run of whole tiles is the data-parallel schedule, any other one splits k.
// Assumes 0 < units_per_block, stages <= units_per_tile; units past the last stage of a tile hold no work (they let a
// tile be split evenly). A block's run is fixed by its index, so sums never depend on timing.
#pragma once

#include <humming/base/arguments.cuh>
#include <humming/base/math.cuh>

namespace humming::schedule {

using base::i32;
using base::i64;

struct Segment {
  int tile;
  int tile_n;
  int tile_m;
  int first_stage;
  int stages;          // may be zero or less: the block only arrives
  bool whole;          // the block has all of k: no partial sums
  int first_block;     // the first block that has a part of this tile
  int contributors;    // how many blocks have one
};

template <base::TuningConfig kTuning>
struct StreamK {
  i64 position;
  i64 end;
  int units_per_tile;
  int stages_per_tile;
  int tiles_n;
  int tiles_m;
  int units_per_block;

  __device__ __forceinline__ explicit StreamK(const base::DenseArguments& arguments)
      : units_per_tile(arguments.units_per_tile),
        stages_per_tile(base::ceil_div(arguments.k, kTuning.stage_k)),
        tiles_n(base::ceil_div(arguments.n, kTuning.block_n)),
        tiles_m(base::ceil_div(arguments.m, kTuning.block_m)),
        units_per_block(arguments.units_per_block) {
    const i64 total = static_cast<i64>(tiles_n) * tiles_m * units_per_tile;
    position = static_cast<i64>(blockIdx.x) * units_per_block;
    end = position + units_per_block < total ? position + units_per_block : total;
  }

  __device__ __forceinline__ bool next(Segment& segment) {
    if (position >= end) return false;
    const int tile = static_cast<int>(position / units_per_tile);
    const i64 tile_begin = static_cast<i64>(tile) * units_per_tile;
    const int first_unit = static_cast<int>(position - tile_begin);
    const i64 left = end - position;
    const int units = left < units_per_tile - first_unit ? static_cast<int>(left) : units_per_tile - first_unit;
    position += units;

    segment.tile = tile;
    segment.first_stage = first_unit;
    segment.stages = base::minimum(units, stages_per_tile - first_unit);
    segment.whole = units == units_per_tile;
    segment.first_block = static_cast<int>(tile_begin / units_per_block);
    const i64 last_block = (tile_begin + units_per_tile - 1) / units_per_block;
    segment.contributors = static_cast<int>(last_block) - segment.first_block + 1;

    // Bands of raster_m token tiles, inside a band token tiles first: neighbours share weights and activations in L2.
    const int band_tiles = kTuning.raster_m * tiles_n;
    const int band = tile / band_tiles;
    const int in_band = tile - band * band_tiles;
    const int height = base::minimum(kTuning.raster_m, tiles_m - band * kTuning.raster_m);
    segment.tile_n = in_band / height;
    segment.tile_m = band * kTuning.raster_m + in_band - segment.tile_n * height;
    return true;
  }

  // Each block has at most two partial tiles: one that it continues (slot 0) and one that it begins (slot 1).
  __device__ __forceinline__ i64 workspace_slot(const Segment& segment, int block) const {
    const bool continues = static_cast<i64>(block) * units_per_block > static_cast<i64>(segment.tile) * units_per_tile;
    return 2 * static_cast<i64>(block) + (continues ? 0 : 1);
  }
};

}  // namespace humming::schedule
