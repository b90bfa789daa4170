// Four neighbouring outputs of one token: channel scale, owed power of two, bias, rounding, store.
// Called by epilogue/reduce.
// Assumes f32 sums; writes nothing past n.
#pragma once

#include <humming/base/arguments.cuh>
#include <humming/base/config.cuh>
#include <humming/base/math.cuh>
#include <humming/decode/convert.cuh>

namespace humming::epilogue {

using base::ComputeConfig;
using base::Floats4;
using base::i64;
using base::LayerConfig;
using base::Number;
using base::u16;
using base::u32;

template <LayerConfig kLayer, ComputeConfig kCompute, bool kChannelScale, int kOwed>
struct Store {
  static __device__ __forceinline__ void run(const base::DenseArguments& arguments, int token, int feature, Floats4 sum) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kOwed != 0) sum.value[i] *= base::power_of_two(kOwed);
      if (feature + i < arguments.n) {
        if constexpr (kChannelScale) {
          sum.value[i] *= reinterpret_cast<const float*>(arguments.weight_scale)[feature + i];
        }
        if constexpr (kLayer.bias) sum.value[i] += decode::to_f32<kCompute.activation>(arguments.bias[feature + i]);
      }
    }
    const i64 offset = static_cast<i64>(token) * arguments.output_stride + feature;
    if constexpr (kCompute.output == Number::kF32) {
      float* output = reinterpret_cast<float*>(arguments.output) + offset;
      if (feature + 4 <= arguments.n && is_aligned(output, 16)) {
        *reinterpret_cast<Floats4*>(output) = sum;
      } else {
        for (int i = 0; i < 4 && feature + i < arguments.n; ++i) output[i] = sum.value[i];
      }
    } else {
      u16* output = reinterpret_cast<u16*>(arguments.output) + offset;
      u16 rounded[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) rounded[i] = decode::from_f32<kCompute.output>(sum.value[i]);
      if (feature + 4 <= arguments.n && is_aligned(output, 8)) {
        *reinterpret_cast<uint2*>(output) =
            make_uint2(rounded[0] | static_cast<u32>(rounded[1]) << 16, rounded[2] | static_cast<u32>(rounded[3]) << 16);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (feature + i < arguments.n) output[i] = rounded[i];
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ bool is_aligned(const void* pointer, int bytes) {
    return reinterpret_cast<base::u64>(pointer) % bytes == 0;
  }
};

}  // namespace humming::epilogue
