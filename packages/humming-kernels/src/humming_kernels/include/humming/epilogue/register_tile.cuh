// Sums in the registers of a pair of warpgroups: partial tiles through the workspace, then scale, bias and store.
// Called by kernels/dense_wgmma once per segment, by a pair of warpgroups; no shared memory but one flag.
// Assumes 16 features per warp in the register order of mma/mma_sync_tile; a split tile is added in a fixed order.
#pragma once

#include <humming/arch/sm75/barrier.cuh>
#include <humming/arch/sm75/matrix.cuh>
#include <humming/arch/sm75/memory.cuh>
#include <humming/arch/sm80/bfloat16.cuh>
#include <humming/arch/sm80/half.cuh>
#include <humming/base/segment.cuh>
#include <humming/base/shape.cuh>
#include <humming/decode/convert.cuh>
#include <humming/epilogue/arrival.cuh>
#include <humming/epilogue/cluster_exchange.cuh>

namespace humming::epilogue {

using base::ComputeConfig;
using base::Floats4;
using base::i64;
using base::LayerConfig;
using base::Number;
using base::TuningConfig;
using base::u16;
using base::u32;

template <LayerConfig kLayer, ComputeConfig kCompute, TuningConfig kTuning, bool kChannelScale, int kOwed>
struct RegisterTile {
  using Shape = base::Shape<kLayer, kTuning>;
  static constexpr int kTiles = Shape::kTiles;
  static constexpr int kThreads = Shape::kGroupThreads;
  static constexpr i64 kTileFloats = kTuning.block_n * kTuning.block_m;

  using Exchange = ClusterExchange<kTiles, kThreads>;
  static constexpr bool kCluster = kTuning.cluster_k > 1;

  const base::DenseArguments& arguments;
  volatile int* flag;
  Exchange exchange;

  template <class Schedule>
  __device__ __forceinline__ void run(float (&sums)[kTiles][4], const base::Segment& segment, const Schedule& schedule) const {
    if constexpr (kTuning.split) {
      if (!segment.whole) {
        write_partial(sums, schedule.workspace_slot(segment.tile, blockIdx.x));
        const bool last = arrive_is_last(arguments.counters + segment.tile, schedule.contributors(segment.tile), flag,
                                         threadIdx.x == 0, [] { arch::sm75::barrier_sync(1, kThreads); });
        if (!last) return;
        add_partials(sums, segment.tile, schedule);
      }
    }
    if constexpr (kCluster) {
      const u32 rank = arch::sm90::cluster_rank();
      float half[Exchange::kHalf][4];
      exchange.run(sums, half, rank);
      store(half, segment, rank * Exchange::kHalf * base::kTokenTile);
    } else {
      store(sums, segment, 0);
    }
  }

 private:
  // [register tile][thread] of four floats: every access is 16 bytes and coalesced.
  __device__ __forceinline__ float* place(i64 slot, int tile) const {
    return arguments.workspace + slot * kTileFloats + (tile * kThreads + threadIdx.x) * 4;
  }

  __device__ __forceinline__ void write_partial(const float (&sums)[kTiles][4], i64 slot) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      *reinterpret_cast<Floats4*>(place(slot, tile)) = {{sums[tile][0], sums[tile][1], sums[tile][2], sums[tile][3]}};
    }
  }

  template <class Schedule>
  __device__ __forceinline__ void add_partials(float (&sums)[kTiles][4], int tile_index, const Schedule& schedule) const {
    const int first = schedule.first_block(tile_index);
    const int end = first + schedule.contributors(tile_index);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) sums[tile][0] = sums[tile][1] = sums[tile][2] = sums[tile][3] = 0.0f;
    // The reads of several blocks at once, added in their order.
    constexpr int kAtOnce = kTiles <= 8 ? 4 : kTiles <= 16 ? 2 : 1;
#pragma unroll 1
    for (int block = first; block < end; block += kAtOnce) {
      Floats4 parts[kAtOnce][kTiles];
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) {
        const i64 slot = schedule.workspace_slot(tile_index, base::minimum(block + b, end - 1));
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) parts[b][tile] = arch::sm75::load_global_floats4_l2(place(slot, tile));
      }
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) {
        if (block + b < end) {
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[tile][i] += parts[b][tile].value[i];
          }
        }
      }
    }
  }

  template <int kCount>
  __device__ __forceinline__ void store(const float (&sums)[kCount][4], const base::Segment& segment,
                                        int token_offset) const {
    const int lane = threadIdx.x % 32;
    const int first_feature = segment.tile_n * kTuning.block_n + threadIdx.x / 32 * base::kAtomRows;
    const int first_token = segment.tile_m * kTuning.block_m + token_offset;
    float factor[2];
    float bias[2] = {0.0f, 0.0f};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int feature = first_feature + lane / 4 + 8 * half;
      factor[half] = base::power_of_two(kOwed);
      if (feature < arguments.n) {
        if constexpr (kChannelScale) factor[half] *= reinterpret_cast<const float*>(arguments.weight_scale)[feature];
        if constexpr (kLayer.bias) bias[half] = decode::to_f32<kCompute.activation>(arguments.bias[feature]);
      }
    }
    // After the transposition a lane has one token, and features 2 t, 2 t + 1 of each half: how many of the two exist, and
    // whether a store of both is aligned, is the same for all tiles.
    const int feature = first_feature + 2 * (lane % 4);
    u16* row = reinterpret_cast<u16*>(arguments.output) + (first_token + lane / 4) * arguments.output_stride + feature;
    const bool aligned = reinterpret_cast<base::u64>(arguments.output) % 4 == 0 && arguments.output_stride % 2 == 0;
    const int tokens_left = arguments.m - first_token - lane / 4;
#pragma unroll
    for (int tile = 0; tile < kCount; ++tile) {
      float value[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) value[i] = sums[tile][i] * factor[i / 2] + bias[i / 2];
      if constexpr (kCompute.output == Number::kF32) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          store_one(first_token + tile * base::kTokenTile + 2 * (lane % 4) + i % 2, first_feature + lane / 4 + 8 * (i / 2),
                    value[i]);
        }
      } else {
        // Two tokens of a feature become two features of a token.
        const u32 low = arch::sm75::transpose_8x8(round_pair(value[0], value[1]));
        const u32 high = arch::sm75::transpose_8x8(round_pair(value[2], value[3]));
        const int features = tile * base::kTokenTile < tokens_left ? arguments.n - feature : 0;
        store_pair(row, low, features, aligned);
        store_pair(row + 8, high, features - 8, aligned);
        row += base::kTokenTile * arguments.output_stride;
      }
    }
  }

  static __device__ __forceinline__ u32 round_pair(float low, float high) {
    if constexpr (kCompute.output == Number::kBf16) {
      return arch::sm80::f32x2_to_bf16x2(low, high);
    } else {
      return arch::sm80::f32x2_to_f16x2(low, high);
    }
  }

  // The first `features` of two neighbouring outputs; predicated stores, no branches.
  static __device__ __forceinline__ void store_pair(u16* output, u32 pair, int features, bool aligned) {
    if (features > 1 && aligned) *reinterpret_cast<u32*>(output) = pair;
    if (features > 0 && !(features > 1 && aligned)) output[0] = static_cast<u16>(pair);
    if (features > 1 && !aligned) output[1] = static_cast<u16>(pair >> 16);
  }

  __device__ __forceinline__ void store_one(int token, int feature, float value) const {
    if (token >= arguments.m || feature >= arguments.n) return;
    reinterpret_cast<float*>(arguments.output)[token * arguments.output_stride + feature] = value;
  }
};

}  // namespace humming::epilogue
