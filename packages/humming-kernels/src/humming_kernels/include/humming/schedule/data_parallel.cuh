// One whole tile for each block.
// Called by kernels/dense where no tile is split along k.
// Assumes one block for each tile.
#pragma once

#include <humming/schedule/raster.cuh>

namespace humming::schedule {

template <base::TuningConfig kTuning>
struct DataParallel {
  Raster<kTuning> raster;
  int stages;
  bool done = false;

  __device__ __forceinline__ explicit DataParallel(const base::DenseArguments& arguments)
      : raster(arguments), stages(base::ceil_div(arguments.k, kTuning.stage_k)) {}

  __device__ __forceinline__ bool next(Segment& segment) {
    if (done) return false;
    done = true;
    raster.place(blockIdx.x, segment);
    segment.first_stage = 0;
    segment.stages = stages;
    segment.whole = true;
    return true;
  }
};

}  // namespace humming::schedule
