// Whole tiles, every gridDim-th one for each block.
// Called by kernels that stay on their multiprocessor.
// Assumes blocks of one wave only, so that neighbours in the raster run at the same time.
#pragma once

#include <humming/schedule/raster.cuh>

namespace humming::schedule {

template <base::TuningConfig kTuning>
struct Persistent {
  Raster<kTuning> raster;
  int stages;
  int tile;

  __device__ __forceinline__ explicit Persistent(const base::DenseArguments& arguments)
      : raster(arguments), stages(base::ceil_div(arguments.k, kTuning.stage_k)), tile(blockIdx.x) {}

  __device__ __forceinline__ bool next(Segment& segment) {
    if (tile >= raster.tiles_n * raster.tiles_m) return false;
    raster.place(tile, segment);
    segment.first_stage = 0;
    segment.stages = stages;
    segment.whole = true;
    tile += gridDim.x;
    return true;
  }
};

}  // namespace humming::schedule
