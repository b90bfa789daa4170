// The dense GEMM on Hopper: up to four warps copy, one or two pairs of warpgroups decode and multiply by wgmma, each
// warpgroup 64 features.
// Instantiated by the unit that humming_kernels.compose writes, which also includes the header of its wgmma shape.
// Assumes what humming_kernels.rules accepted, kSharedBytes of dynamic shared memory, and a tensor map of the tokens.
//
// A warpgroup decodes batch i + 1 into one half of its operand registers while batch i runs from the other half:
//
//   decode 0 | multiply 0
//            | decode 1   | multiply 1              wait until multiply 0 is done, and with the first
//                         | decode 0'  | ...        batch of a stage free the stage before it
#pragma once

#include <humming/arch/sm75/barrier.cuh>
#include <humming/arch/sm75/memory.cuh>
#include <humming/arch/sm90/cluster.cuh>
#include <humming/arch/sm90/mbarrier.cuh>
#include <humming/arch/sm90/warpgroup.cuh>
#include <humming/base/arguments.cuh>
#include <humming/base/select.cuh>
#include <humming/base/shape.cuh>
#include <humming/copy/bulk_stage.cuh>
#include <humming/decode/operand.cuh>
#include <humming/epilogue/register_tile.cuh>
#include <humming/mma/wgmma_tile.cuh>
#include <humming/pipeline/ring.cuh>
#include <humming/schedule/cluster_split.cuh>
#include <humming/schedule/persistent.cuh>
#include <humming/schedule/stream_k.cuh>

namespace humming::kernels {

using base::ComputeConfig;
using base::LayerConfig;
using base::ScalePlace;
using base::TargetConfig;
using base::TuningConfig;
using base::u32;
using base::u64;

template <LayerConfig kLayer, ComputeConfig kCompute, TuningConfig kTuning, TargetConfig kTarget>
struct DenseWgmma {
  using Shape = base::Shape<kLayer, kTuning>;
  using StripCopy = copy::StripCopy<kLayer, kTuning>;
  using TokenCopy = copy::TokenCopy<kLayer, kTuning>;
  using LineCopy = copy::LineCopy<kLayer, kTuning>;
  using Operand = decode::Operand<kLayer, kCompute, kTuning.scale_place>;
  using Ring = pipeline::Ring<kTuning.stages, Shape::kStageBytes>;
  static constexpr bool kCluster = kTuning.cluster_k > 1;
  using WholeTiles = typename base::Select<kCluster, schedule::ClusterSplit<kTuning>, schedule::Persistent<kTuning>>::Type;
  using Schedule = typename base::Select<kTuning.split, schedule::StreamK<kTuning>, WholeTiles>::Type;
  static constexpr bool kChannelScale = kTuning.scale_place == ScalePlace::kEpilogue;
  using Epilogue = epilogue::RegisterTile<kLayer, kCompute, kTuning, kChannelScale, Operand::kOwed>;

  static constexpr int kThreads = Shape::kThreads;
  static constexpr int kSharedBytes = Shape::kSharedBytes;
  static constexpr int kWarps = Shape::kMultiplyThreads / 32;
  static constexpr int kGroups = kTuning.warps_k;  // pairs of warpgroups that take every kGroups-th stage
  static constexpr int kParts = Shape::kStrips + 1 + (LineCopy::kBytes > 0 ? 1 : 0);  // warps that copy
  static constexpr int kTiles = Shape::kTiles;
  static constexpr int kLoadSteps = base::kStepK / kLayer.weight_bits;  // steps of k in one 16-byte load of a lane
  static constexpr int kLoads = Shape::kSteps / kLoadSteps;
  static constexpr int kBrickLoads = base::kBrickK / base::kStepK / kLoadSteps;
  static constexpr int kWords = Operand::Words::kWords;
  // An even number of batches in a stage keeps the halves of the operand registers known at compile time.
  static constexpr int kMostTokens = kGroups == 1 ? 128 : 64;  // with four steps in a batch
  static constexpr int kBatchSteps = base::minimum(Shape::kSteps / 2, kTuning.block_m > kMostTokens ? 2 : 4);
  static constexpr int kBatches = Shape::kSteps / kBatchSteps;
  // One pair: 256 threads x 232 + 128 x 40 registers, within the 168 for each of 384 threads that the launch begins with.
  // Two pairs: 512 x 112 + 128 x 24, within 96 for each of 640.
  static constexpr int kMultiplyRegisters = kGroups == 1 ? 232 : 112;
  static constexpr int kCopyRegisters = kGroups == 1 ? 40 : 24;

  static_assert(kParts <= base::kWarpgroupThreads / 32, "one warpgroup copies");
  static_assert(kTuning.block_n == 128 && kTuning.warps_n == 8, "two warpgroups of 64 features");
  static_assert(kTuning.warps_m == 1, "a pair of warpgroups shares all tokens");
  static_assert(kGroups == 1 || (kGroups == 2 && kCluster), "two pairs need a ring that nobody fills at the end");
  static_assert(kBatches % 2 == 0 && kBatches * kBatchSteps == Shape::kSteps, "batches must fill a stage evenly");
  static_assert(kTuning.scale_place != ScalePlace::kAccumulator, "scales belong on the operand or in the epilogue");

  static __device__ __forceinline__ void run(const base::DenseArguments& arguments, const base::TensorMap& activation_map) {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    const u32 shared = arch::sm75::keep_in_register(arch::sm75::shared_address(dynamic_shared));
    Ring ring(shared, shared + Shape::kBarrierOffset);
    const Epilogue epilogue{arguments, reinterpret_cast<int*>(dynamic_shared + Shape::kBroadcastOffset),
                            {shared + Shape::kExchangeOffset, shared + Shape::kBroadcastOffset}};
    if (threadIdx.x == 0) {
      ring.initialise(kParts, Shape::kGroupWarps);
      if constexpr (kCluster) epilogue.exchange.initialise();
      arch::sm90::fence_barrier_init();
    }
    __syncthreads();
    // Waited for before the exchange: the other block's barrier must be there by then, and need not be now.
    if constexpr (kCluster) arch::sm90::cluster_arrive();
    if (threadIdx.x >= Shape::kMultiplyThreads) {
      arch::sm90::decrease_registers<kCopyRegisters>();
      const int part = threadIdx.x / 32 - kWarps;
      if (part < Shape::kStrips) {
        copy(arguments, ring, StripCopy(arguments, part));
      } else if (part == Shape::kStrips) {
        copy(arguments, ring, TokenCopy(&activation_map));
      } else if (part < kParts) {
        copy(arguments, ring, LineCopy(arguments));
      }
    } else {
      arch::sm90::increase_registers<kMultiplyRegisters>();
      multiply(arguments, ring, epilogue);
    }
  }

 private:
  // One part of every stage, by one thread of a copying warp.
  template <class Part>
  static __device__ __forceinline__ void copy(const base::DenseArguments& arguments, Ring ring, Part part) {
    if (threadIdx.x % 32 != 0) return;
    Schedule schedule(arguments);
    base::Segment segment;
    while (schedule.next(segment)) {
      part.start(segment.tile_n, segment.tile_m, segment.first_stage);
#pragma unroll 1
      for (int i = 0; i < segment.stages; ++i) {
        ring.wait_empty();
        part.issue(ring.stage, ring.full());
        ring.advance();
      }
    }
  }

  // Codes and group values of one stage, as a lane holds them.
  struct StageValues {
    base::Words4 words[kLoads];
    u32 scales[Shape::kStageGroups];
    u32 zeros[Shape::kStageGroups];
  };

  static __device__ __forceinline__ void multiply(const base::DenseArguments& arguments, Ring ring, const Epilogue& epilogue) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 % 4;
    const int strip = threadIdx.x / base::kWarpgroupThreads % Shape::kStrips;
    const int group = threadIdx.x / Shape::kGroupThreads;
    if (group == 1) ring.advance();
    const u32 weight_offset = arch::sm75::keep_in_register(
        Shape::kWeightOffset + strip * Shape::kStageBricks * Shape::kBrickBytes + warp * Shape::kAtomBytes + lane * 16);
    const u32 line_value =
        arch::sm75::keep_in_register(strip * Shape::kStageGroups * base::kBrickRows + lane / 4 * 8 + warp * 2);
    Schedule schedule(arguments);
    base::Segment segment;
    while (schedule.next(segment)) {
      float sums[kTiles][4];
      u32 operand[2][kBatchSteps][4];
      StageValues values;
      decode::GroupParameters parameters;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) sums[tile][0] = sums[tile][1] = sums[tile][2] = sums[tile][3] = 0.0f;
      if (group < segment.stages) {
        u32 used = 0;  // empty barrier of the stage whose last batch may still run
        ring.wait_full();
        load(values, ring.stage, weight_offset, line_value);
#pragma unroll 1
        for (int i = group; i < segment.stages; i += kGroups) {
          const u64 tokens = mma::WgmmaTokens::descriptor(ring.stage);
#pragma unroll
          for (int batch = 0; batch < kBatches; ++batch) {
#pragma unroll
            for (int j = 0; j < kBatchSteps; ++j) {
              const int step = batch * kBatchSteps + j;
              const int scale_group = step / Shape::kGroupSteps;
              if (Operand::kNeedsParameters && step % Shape::kGroupSteps == 0) {
                parameters = Operand::prepare(values.scales[scale_group], values.zeros[scale_group]);
              }
              Operand::run(values.words[step / kLoadSteps].word + step % kLoadSteps * kWords, parameters,
                           operand[batch % 2][j]);
            }
            arch::sm90::wgmma_fence();
#pragma unroll
            for (int j = 0; j < kBatchSteps; ++j) {
              const int step = batch * kBatchSteps + j;
              arch::sm90::wgmma_k16(sums, operand[batch % 2][j],
                                    tokens + step / mma::WgmmaTokens::kBoxSteps * (TokenCopy::kBoxBytes / 16) +
                                        step % mma::WgmmaTokens::kBoxSteps * mma::WgmmaTokens::kStepOffset);
            }
            arch::sm90::wgmma_commit();
            if (batch == kBatches - 1) {
              // The codes of the next stage are read while two batches are still to be multiplied.
              const u32 empty = ring.empty();
#pragma unroll
              for (int skip = 0; skip < kGroups; ++skip) ring.advance();
              if (i + kGroups < segment.stages) {
                ring.wait_full();
                load(values, ring.stage, weight_offset, line_value);
              }
              arch::sm90::wgmma_wait<1>();
              used = empty;
            } else {
              arch::sm90::wgmma_wait<1>();
              if (batch == 0 && used != 0 && lane == 0) arch::sm90::mbarrier_arrive(used);
            }
          }
        }
        arch::sm90::wgmma_wait_sums(sums);
        if (lane == 0) arch::sm90::mbarrier_arrive(used);
      }
      if constexpr (kGroups == 2) {
        if (!add_groups(sums, group, ring.first_stage)) return;
      }
      if constexpr (kCluster) arch::sm90::cluster_wait();
      epilogue.run(sums, segment, schedule);
    }
  }

  // Adds the sums of the second pair of warpgroups to those of the first, through the ring, which is empty by then. True
  // in the first pair.
  static __device__ __forceinline__ bool add_groups(float (&sums)[kTiles][4], int group, u32 ring) {
    static_assert(kTiles * Shape::kGroupThreads * 16 <= Shape::kRingBytes, "the ring must hold the sums of a pair");
    const u32 place = ring + threadIdx.x % Shape::kGroupThreads * 16;
    arch::sm75::barrier_sync(2, Shape::kMultiplyThreads);  // the last stages have been used
    if (group == 1) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        arch::sm75::store_shared_16(place + tile * Shape::kGroupThreads * 16,
                                    {{__float_as_uint(sums[tile][0]), __float_as_uint(sums[tile][1]),
                                      __float_as_uint(sums[tile][2]), __float_as_uint(sums[tile][3])}});
      }
    }
    arch::sm75::barrier_sync(2, Shape::kMultiplyThreads);
    if (group == 1) return false;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const base::Words4 other = arch::sm75::load_shared_16(place + tile * Shape::kGroupThreads * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[tile][i] += __uint_as_float(other.word[i]);
    }
    return true;
  }

  static __device__ __forceinline__ void load(StageValues& values, u32 stage, u32 weight_offset, u32 line_value) {
    const u32 weights = stage + weight_offset;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      values.words[i] =
          arch::sm75::load_shared_16(weights + i / kBrickLoads * Shape::kBrickBytes + i % kBrickLoads * 512);
    }
#pragma unroll
    for (int group = 0; group < Shape::kStageGroups; ++group) {
      constexpr int kLine = base::kBrickRows;
      values.scales[group] = values.zeros[group] = 0;
      if constexpr (Shape::kScaleInStage) {
        values.scales[group] = arch::sm75::load_shared_4(stage + Shape::kScaleOffset + (line_value + group * kLine) * 2);
      }
      if constexpr (Shape::kZeroInStage) {
        values.zeros[group] = arch::sm75::load_shared_2(stage + Shape::kZeroOffset + line_value + group * kLine);
      }
      if constexpr (Shape::kMinimumInStage) {
        values.zeros[group] = arch::sm75::load_shared_4(stage + Shape::kZeroOffset + (line_value + group * kLine) * 2);
      }
    }
  }
};

}  // namespace humming::kernels
