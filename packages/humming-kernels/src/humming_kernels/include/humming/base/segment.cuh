// What a block does of one tile.
// Filled by the schedules, read by kernels and epilogues.
// Assumes stages of the tuning's stage_k along k.
#pragma once

namespace humming::base {

struct Segment {
  int tile;
  int tile_n;
  int tile_m;
  int first_stage;
  int stages;  // may be zero or less: the block only arrives
  bool whole;  // the block has all of k: no partial sums
};

}  // namespace humming::base
