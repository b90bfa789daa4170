// One tile for each cluster of two blocks, which halve its k.
// Called by kernels/dense_wgmma where the halves are exchanged through the cluster's shared memory.
// Assumes consecutive blocks in a cluster, and two blocks for each tile.
#pragma once

#include <humming/schedule/raster.cuh>

namespace humming::schedule {

template <base::TuningConfig kTuning>
struct ClusterSplit {
  Raster<kTuning> raster;
  int stages;
  bool done = false;

  __device__ __forceinline__ explicit ClusterSplit(const base::DenseArguments& arguments)
      : raster(arguments), stages(base::ceil_div(arguments.k, kTuning.stage_k)) {}

  __device__ __forceinline__ bool next(Segment& segment) {
    if (done) return false;
    done = true;
    raster.place(blockIdx.x / 2, segment);
    const int half = (stages + 1) / 2;
    segment.first_stage = blockIdx.x % 2 * half;
    segment.stages = blockIdx.x % 2 == 0 ? half : stages - half;
    segment.whole = false;
    return true;
  }
};

}  // namespace humming::schedule
