// The three configs and the target, as the generated unit fills them by designated initialisers.
// Mirrors humming_kernels.config; a field that drifts is a compile error in the unit that names it.
// Assumes values that humming_kernels.rules has accepted.
#pragma once

namespace humming::base {

enum class Number : int { kU4, kU8, kE0m3, kE2m1, kF16, kBf16, kF32 };

// How a weight is made of its code: (code - zero) * scale, or code * scale + minimum.
enum class ZeroPoint : int {
  kNone,      // signed numbers: code * scale
  kConstant,  // unsigned, symmetric: zero = 2^(bits - 1)
  kInteger,   // one stored integer zero for each scale
  kMinimum,   // one stored float minimum for each scale
};

// Where the weight scale is multiplied.
enum class ScalePlace : int {
  kEpilogue,     // channel scale: once per output
  kAccumulator,  // group scale: f32, on the partial sums of each group
  kOperand,      // group scale: onto the decoded operand, rounded to its type
};

enum class Pipeline : int {
  kMultistage,       // the warps that multiply also copy; mma.sync
  kWarpSpecialized,  // up to four warps copy for pairs of warpgroups that multiply; wgmma
};

struct LayerConfig {
  Number weight;
  int weight_bits;
  Number scale;
  int group_k;  // 0: one group for all of k
  ZeroPoint zero_point;
  bool bias;
};

struct ComputeConfig {
  Number activation;
  Number output;
};

struct TuningConfig {
  Pipeline pipeline;
  int block_n;  // output features of a tile, a multiple of 16
  int block_m;  // tokens of a tile, a multiple of 8
  int stage_k;  // k of one pipeline stage, a multiple of 64
  int warps_n;
  int warps_m;
  int warps_k;  // independent groups of warps that split k inside the block
  int stages;
  ScalePlace scale_place;
  int raster_m;      // token tiles walked before the next feature tile
  int cluster_k;     // blocks of a cluster that share a tile along k and exchange their sums: 1 or 2
  bool split;        // tiles are split along k among blocks
  bool evict_first;  // weights are read once: tell L2 to drop them first
};

struct TargetConfig {
  int arch;  // 75, 80, 86 ...
};

}  // namespace humming::base
