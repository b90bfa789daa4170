// The one kernel parameter of dense kernels.
// Filled by humming_kernels.launch, field for field in this order.
// Assumes 16-byte aligned activation rows; strides count elements.
#pragma once

#include <humming/base/types.cuh>

namespace humming::base {

struct DenseArguments {
  const u16* activation;   // [m, k], row stride activation_stride
  const u8* weight;        // [strips, bricks, 512 * bits bytes]
  const u8* weight_scale;  // [strips, groups, 64] f16 / bf16 in lane order, or [strips * 64] f32 for channel scales
  const u8* zero_point;    // [strips, groups, 64] u8, or the minimum in the scale's type
  const u16* bias;         // [n] in the activation's type
  u8* output;              // [m, n], row stride output_stride
  float* workspace;        // two partial tiles for each block
  i32* counters;           // one for each tile; zero before and after
  i64 activation_stride;
  i64 output_stride;
  i32 m;
  i32 n;
  i32 k;
  i32 units_per_tile;   // pipeline stages of k of one tile, rounded up to what the schedule deals
  i32 units_per_block;  // of all tiles' units, how many one block takes
  i32 reserved;
};

// A CUtensorMap: opaque, made by the driver on the host, second parameter of kernels whose activations come by tensor copy.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

}  // namespace humming::base
