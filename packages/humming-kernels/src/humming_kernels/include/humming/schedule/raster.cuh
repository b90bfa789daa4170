// The order in which tiles are walked.
// Used by the schedules.
// Assumes fewer than 2^31 tiles (humming_kernels.launch refuses more).
#pragma once

#include <humming/base/arguments.cuh>
#include <humming/base/math.cuh>
#include <humming/base/segment.cuh>

namespace humming::schedule {

using base::Segment;

// Bands of raster_m token tiles, inside a band token tiles first: neighbours share weights and activations in L2.
template <base::TuningConfig kTuning>
struct Raster {
  int tiles_n;
  int tiles_m;

  __device__ __forceinline__ explicit Raster(const base::DenseArguments& arguments)
      : tiles_n(base::ceil_div(arguments.n, kTuning.block_n)), tiles_m(base::ceil_div(arguments.m, kTuning.block_m)) {}

  __device__ __forceinline__ void place(int tile, Segment& segment) const {
    segment.tile = tile;
    if (tiles_m == 1) {
      segment.tile_n = tile;
      segment.tile_m = 0;
      return;
    }
    const base::u32 band_tiles = kTuning.raster_m * tiles_n;
    const int band = static_cast<base::u32>(tile) / band_tiles;
    const int in_band = tile - band * band_tiles;
    const base::u32 height = base::minimum(kTuning.raster_m, tiles_m - band * kTuning.raster_m);
    segment.tile_n = static_cast<base::u32>(in_band) / height;
    segment.tile_m = band * kTuning.raster_m + in_band - segment.tile_n * height;
  }
};

}  // namespace humming::schedule
