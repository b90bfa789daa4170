// The dense GEMM on Hopper: one thread copies, two warpgroups decode and multiply 64 features each by wgmma.
// Instantiated by the unit that humming_kernels.compose writes, which also includes the header of its wgmma shape.
// Assumes what humming_kernels.rules accepted, kSharedBytes of dynamic shared memory, and a tensor map of the tokens.
//
// A warpgroup decodes batch i + 1 into one half of its operand registers while batch i runs from the other half:
//
//   decode 0 | multiply 0
//            | decode 1   | multiply 1              wait until multiply 0 is done, and with the first
//                         | decode 0'  | ...        batch of a stage free the stage before it
#pragma once

#include <humming/base/arguments.cuh>
#include <humming/base/select.cuh>
#include <humming/base/shape.cuh>
#include <humming/copy/bulk_stage.cuh>
#include <humming/decode/operand.cuh>
#include <humming/epilogue/register_tile.cuh>
#include <humming/mma/wgmma_tile.cuh>
#include <humming/pipeline/ring.cuh>
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
  using Stage = copy::BulkStage<kLayer, kTuning>;
  using Operand = decode::Operand<kLayer, kCompute, kTuning.scale_place>;
  using Ring = pipeline::Ring<kTuning.stages, Shape::kStageBytes>;
  using Schedule =
      typename base::Select<kTuning.split, schedule::StreamK<kTuning>, schedule::Persistent<kTuning>>::Type;
  static constexpr bool kChannelScale = kTuning.scale_place == ScalePlace::kEpilogue;
  using Epilogue = epilogue::RegisterTile<kLayer, kCompute, kTuning, kChannelScale, Operand::kOwed>;

  static constexpr int kThreads = Shape::kThreads;
  static constexpr int kSharedBytes = Shape::kSharedBytes;
  static constexpr int kWarps = Shape::kMultiplyThreads / 32;
  static constexpr int kTiles = Shape::kTiles;
  static constexpr int kLoadSteps = base::kStepK / kLayer.weight_bits;  // steps of k in one 16-byte load of a lane
  static constexpr int kLoads = Shape::kSteps / kLoadSteps;
  static constexpr int kBrickLoads = base::kBrickK / base::kStepK / kLoadSteps;
  static constexpr int kWords = Operand::Words::kWords;
  // An even number of batches in a stage keeps the halves of the operand registers known at compile time.
  static constexpr int kBatchSteps = base::minimum(Shape::kSteps / 2, kTuning.block_m > 128 ? 2 : 4);
  static constexpr int kBatches = Shape::kSteps / kBatchSteps;
  // 65536 registers = 256 threads x 232 + 128 x 40, within the 168 per thread that the launch begins with.
  static constexpr int kMultiplyRegisters = 232;
  static constexpr int kCopyRegisters = 40;

  static_assert(kTuning.block_n == 128 && kTuning.warps_n == 8, "two warpgroups of 64 features");
  static_assert(kTuning.warps_m == 1 && kTuning.warps_k == 1, "the warpgroups share all tokens and all of k");
  static_assert(kBatches % 2 == 0 && kBatches * kBatchSteps == Shape::kSteps, "batches must fill a stage evenly");
  static_assert(kTuning.scale_place != ScalePlace::kAccumulator, "scales belong on the operand or in the epilogue");

  static __device__ __forceinline__ void run(const base::DenseArguments& arguments, const base::TensorMap& activation_map) {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    const u32 shared = arch::sm75::shared_address(dynamic_shared);
    Ring ring(shared, shared + Shape::kBarrierOffset);
    if (threadIdx.x == 0) ring.initialise(kWarps);
    __syncthreads();
    if (threadIdx.x >= Shape::kMultiplyThreads) {
      arch::sm90::decrease_registers<kCopyRegisters>();
      if (threadIdx.x == Shape::kMultiplyThreads) copy(arguments, activation_map, ring);
    } else {
      arch::sm90::increase_registers<kMultiplyRegisters>();
      multiply(arguments, ring, reinterpret_cast<int*>(dynamic_shared + Shape::kBroadcastOffset));
    }
  }

 private:
  static __device__ __forceinline__ void copy(const base::DenseArguments& arguments, const base::TensorMap& activation_map,
                                              Ring ring) {
    arch::sm90::prefetch_tensor_map(&activation_map);
    Stage stage(arguments, &activation_map);
    Schedule schedule(arguments);
    schedule::Segment segment;
    while (schedule.next(segment)) {
      stage.start_tile(segment.tile_n, segment.tile_m);
#pragma unroll 1
      for (int i = 0; i < segment.stages; ++i) {
        ring.wait_empty();
        stage.issue(segment.first_stage + i, ring.shared(), ring.full());
        ring.advance();
      }
    }
  }

  static __device__ __forceinline__ void multiply(const base::DenseArguments& arguments, Ring ring, int* flag) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 % 4;
    const int strip = threadIdx.x / base::kWarpgroupThreads;
    const u32 weight_offset =
        Shape::kWeightOffset + strip * Shape::kStageBricks * Shape::kBrickBytes + warp * Shape::kAtomBytes + lane * 16;
    const u32 line_position = strip * Shape::kStageGroups * base::kBrickRows + lane / 4 * 8 + warp * 2;
    Epilogue epilogue{arguments, flag};
    Schedule schedule(arguments);
    schedule::Segment segment;
    while (schedule.next(segment)) {
      float sums[kTiles][4];
      u32 operand[2][kBatchSteps][4];
      decode::GroupParameters parameters;
      u32 used = 0;  // empty barrier of the stage whose last batch may still run
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) sums[tile][0] = sums[tile][1] = sums[tile][2] = sums[tile][3] = 0.0f;
#pragma unroll 1
      for (int i = 0; i < segment.stages; ++i) {
        ring.wait_full();
        const u32 shared = ring.shared();
        const u64 tokens = mma::WgmmaTokens::descriptor(shared);
        base::Words4 words[kLoads];
#pragma unroll
        for (int load = 0; load < kLoads; ++load) {
          words[load] = arch::sm75::load_shared_16(shared + weight_offset + load / kBrickLoads * Shape::kBrickBytes +
                                                   load % kBrickLoads * 512);
        }
#pragma unroll
        for (int batch = 0; batch < kBatches; ++batch) {
#pragma unroll
          for (int j = 0; j < kBatchSteps; ++j) {
            const int step = batch * kBatchSteps + j;
            if (Operand::kNeedsParameters && step % Shape::kGroupSteps == 0) {
              parameters = load_group(shared, line_position + step / Shape::kGroupSteps * base::kBrickRows);
            }
            Operand::run(words[step / kLoadSteps].word + step % kLoadSteps * kWords, parameters, operand[batch % 2][j]);
          }
          arch::sm90::wgmma_fence();
#pragma unroll
          for (int j = 0; j < kBatchSteps; ++j) {
            const int step = batch * kBatchSteps + j;
            arch::sm90::wgmma_k16(sums, operand[batch % 2][j],
                                  tokens + step / mma::WgmmaTokens::kBoxSteps * (Stage::kBoxBytes / 16) +
                                      step % mma::WgmmaTokens::kBoxSteps * mma::WgmmaTokens::kStepOffset);
          }
          arch::sm90::wgmma_commit();
          arch::sm90::wgmma_wait<1>();
          if (batch == 0 && used != 0 && lane == 0) arch::sm90::mbarrier_arrive(used);
        }
        used = ring.empty();
        ring.advance();
      }
      arch::sm90::wgmma_wait<0>();
      if (used != 0 && lane == 0) arch::sm90::mbarrier_arrive(used);
      epilogue.run(sums, segment, schedule);
    }
  }

  // The scale and zero point of rows g and g + 8 of the warp, at this place in the lines of the stage.
  static __device__ __forceinline__ decode::GroupParameters load_group(u32 shared, u32 position) {
    u32 scales = 0;
    u32 zeros = 0;
    if constexpr (Shape::kScaleInStage) scales = arch::sm75::load_shared_4(shared + Shape::kScaleOffset + position * 2);
    if constexpr (Shape::kZeroInStage) zeros = arch::sm75::load_shared_2(shared + Shape::kZeroOffset + position);
    if constexpr (Shape::kMinimumInStage) zeros = arch::sm75::load_shared_4(shared + Shape::kZeroOffset + position * 2);
    return Operand::prepare(scales, zeros);
  }
};

}  // namespace humming::kernels
