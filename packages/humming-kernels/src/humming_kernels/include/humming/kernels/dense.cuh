// The dense GEMM: output[m, n] = activation[m, k] . weight[n, k]^T, computed as weight . activation^T.
// Instantiated by the unit that humming_kernels.compose writes; launched by humming_torch.
// Assumes what humming_kernels.rules accepted, and kSharedBytes of dynamic shared memory.
//
// The block's warps form warps_k groups. Each group has its own ring of stages and every warps_k-th stage of k; inside
// a group, warps_n x warps_m warps share the tile. A group of one warp needs no barrier at all until the final sum.
#pragma once

#include <humming/base/arguments.cuh>
#include <humming/base/select.cuh>
#include <humming/base/shape.cuh>
#include <humming/copy/dense_stage.cuh>
#include <humming/decode/operand.cuh>
#include <humming/epilogue/reduce.cuh>
#include <humming/epilogue/store.cuh>
#include <humming/mma/mma_sync_tile.cuh>
#include <humming/pipeline/multistage.cuh>
#include <humming/schedule/data_parallel.cuh>
#include <humming/schedule/stream_k.cuh>

namespace humming::kernels {

using base::ComputeConfig;
using base::LayerConfig;
using base::ScalePlace;
using base::TargetConfig;
using base::TuningConfig;
using base::u32;

template <LayerConfig kLayer, ComputeConfig kCompute, TuningConfig kTuning, TargetConfig kTarget>
struct Dense {
  using Shape = base::Shape<kLayer, kTuning>;
  using Copier = typename base::Select<(kTarget.arch >= 80), copy::CpAsync, copy::PlainCopy>::Type;
  using Stage = copy::DenseStage<kLayer, kTuning, Copier>;
  using Operand = decode::Operand<kLayer, kCompute, kTuning.scale_place>;
  using Tile = mma::MmaSyncTile<kCompute.activation, kTarget>;
  using Pipeline = pipeline::Multistage<kTuning.stages, Shape::kGroupWarps, kTuning.warps_k, Copier>;
  using Schedule =
      typename base::Select<kTuning.split, schedule::StreamK<kTuning>, schedule::DataParallel<kTuning>>::Type;
  static constexpr bool kOnAccumulator = kTuning.scale_place == ScalePlace::kAccumulator;
  static constexpr bool kChannelScale = kTuning.scale_place == ScalePlace::kEpilogue;
  using Store = epilogue::Store<kLayer, kCompute, kChannelScale, kOnAccumulator ? 0 : Operand::kOwed>;
  using Reduce = epilogue::Reduce<kLayer, kTuning, Store>;

  static constexpr int kThreads = Shape::kThreads;
  static constexpr int kSharedBytes = Shape::kSharedBytes;
  static constexpr int kLoadSteps = base::kStepK / kLayer.weight_bits;  // steps of k in one 16-byte load of a lane
  static constexpr int kWords = Operand::Words::kWords;
  static_assert(kWords * kLoadSteps == 4, "a 16-byte load must hold whole steps");

  float sums[Shape::kAtoms][Shape::kTiles][4];
  decode::GroupParameters parameters[Shape::kAtoms];
  float group_scale[Shape::kAtoms][2];
  int lane;
  int warp_n;
  int warp_m;
  int first_atom;  // of this warp, in the block
  int strip_atom;  // the same atom in the strips whose scale lines a stage holds

  static __device__ __forceinline__ void run(const base::DenseArguments& arguments) {
    extern __shared__ uint4 dynamic_shared[];
    const int warp = threadIdx.x / 32;
    const int group = warp / Shape::kGroupWarps;
    const int warp_in_group = warp % Shape::kGroupWarps;
    Dense self;
    self.lane = threadIdx.x % 32;
    self.warp_n = warp_in_group % kTuning.warps_n;
    self.warp_m = warp_in_group / kTuning.warps_n;

    const u32 ring = arch::sm75::shared_address(dynamic_shared) + group * Shape::kRingBytes;
    Stage stage(arguments, threadIdx.x % Shape::kGroupThreads);
    Reduce reduce{arguments, reinterpret_cast<float*>(dynamic_shared), self.warp_n, self.warp_m, group, self.lane};
    Schedule schedule(arguments);
    base::Segment segment;
    while (schedule.next(segment)) {
      fill_zero(self.sums);
      self.start_tile(segment.tile_n);
      stage.start_tile(segment.tile_n, segment.tile_m);
      const int count = (segment.stages - group + kTuning.warps_k - 1) / kTuning.warps_k;  // every warps_k-th, from group on
      Pipeline::run(
          count, group,
          [&](int index, int slot) {
            stage.issue(segment.first_stage + group + index * kTuning.warps_k, ring + slot * Shape::kStageBytes);
          },
          [&] { stage.zero_missing_tokens(ring); }, [&](int slot) { self.use(ring + slot * Shape::kStageBytes); });
      reduce.run(self.sums, segment, schedule);
    }
  }

 private:
  // Starts a tile: where this warp's atoms lie in the strip whose scale lines a stage holds.
  __device__ __forceinline__ void start_tile(int tile_n) {
    first_atom = warp_n * Shape::kAtoms;
    strip_atom = first_atom;
    if constexpr (kTuning.block_n < base::kBrickRows) {
      strip_atom += tile_n * kTuning.block_n % base::kBrickRows / base::kAtomRows;
    }
  }

  // The two values (rows g and g + 8) of an atom from a table of values of kBytes each, in lane order.
  template <int kBytes>
  __device__ __forceinline__ u32 load_pair(u32 table, int atom, int group) const {
    const int index = strip_atom + atom;
    const int line = index / 4 * Shape::kStageGroups + group;
    const u32 address = table + (line * base::kBrickRows + lane / 4 * 8 + index % 4 * 2) * kBytes;
    if constexpr (kBytes == 2) {
      return arch::sm75::load_shared_4(address);
    } else {
      return arch::sm75::load_shared_2(address);
    }
  }

  __device__ __forceinline__ void load_group(u32 shared, int group) {
#pragma unroll
    for (int atom = 0; atom < Shape::kAtoms; ++atom) {
      u32 scales = 0;
      u32 zeros = 0;
      if constexpr (Shape::kScaleInStage) scales = load_pair<2>(shared + Shape::kScaleOffset, atom, group);
      if constexpr (Shape::kZeroInStage) zeros = load_pair<1>(shared + Shape::kZeroOffset, atom, group);
      if constexpr (Shape::kMinimumInStage) zeros = load_pair<2>(shared + Shape::kZeroOffset, atom, group);
      if constexpr (Operand::kNeedsParameters) parameters[atom] = Operand::prepare(scales, zeros);
      if constexpr (kOnAccumulator) {
        group_scale[atom][0] = decode::to_f32<kLayer.scale>(scales & 0xffffu) * base::power_of_two(Operand::kOwed);
        group_scale[atom][1] = decode::to_f32<kLayer.scale>(scales >> 16) * base::power_of_two(Operand::kOwed);
      }
    }
  }

  __device__ __forceinline__ u32 weight_address(u32 shared, int atom, int load) const {
    constexpr int kRunAtoms = base::minimum(kTuning.block_n, base::kBrickRows) / base::kAtomRows;
    constexpr int kBrickLoads = base::kBrickK / base::kStepK / kLoadSteps;
    const int index = first_atom + atom;
    const int run = (index / kRunAtoms * Shape::kStageBricks + load / kBrickLoads) * kRunAtoms + index % kRunAtoms;
    return shared + Shape::kWeightOffset + run * Shape::kAtomBytes + load % kBrickLoads * 512 + lane * 16;
  }

  // One stage: kSteps steps of 16 k, decoded into operand registers and multiplied.
  __device__ __forceinline__ void use(u32 shared) {
    const u32 rows = shared + (warp_m * Shape::kTiles * base::kTokenTile + lane % 8) * Shape::kActivationPitch;
    base::Words4 words[Shape::kAtoms];
    float partial[Shape::kAtoms][Shape::kTiles][4];
#pragma unroll
    for (int pair = 0; pair < Shape::kSteps / 2; ++pair) {
      u32 tokens[Shape::kTiles][4];
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
        Tile::load_tokens(tokens[tile], rows + tile * base::kTokenTile * Shape::kActivationPitch, pair, lane);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int step = pair * 2 + half;
        if (step % Shape::kGroupSteps == 0) {
          load_group(shared, step / Shape::kGroupSteps);
          if constexpr (kOnAccumulator) fill_zero(partial);
        }
#pragma unroll
        for (int atom = 0; atom < Shape::kAtoms; ++atom) {
          if (step % kLoadSteps == 0) {
            words[atom] = arch::sm75::load_shared_16(weight_address(shared, atom, step / kLoadSteps));
          }
          u32 operand[4];
          Operand::run(words[atom].word + step % kLoadSteps * kWords, parameters[atom], operand);
#pragma unroll
          for (int tile = 0; tile < Shape::kTiles; ++tile) {
            Tile::multiply(kOnAccumulator ? partial[atom][tile] : sums[atom][tile], operand, tokens[tile][2 * half],
                           tokens[tile][2 * half + 1]);
          }
        }
        if (kOnAccumulator && (step + 1) % Shape::kGroupSteps == 0) promote(partial);
      }
    }
  }

  // sums += scale of the group * partial sums of the group, in f32.
  __device__ __forceinline__ void promote(const float (&partial)[Shape::kAtoms][Shape::kTiles][4]) {
#pragma unroll
    for (int atom = 0; atom < Shape::kAtoms; ++atom) {
#pragma unroll
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[atom][tile][i] += group_scale[atom][i / 2] * partial[atom][tile][i];
      }
    }
  }

  static __device__ __forceinline__ void fill_zero(float (&values)[Shape::kAtoms][Shape::kTiles][4]) {
#pragma unroll
    for (int i = 0; i < Shape::kAtoms * Shape::kTiles * 4; ++i) (&values[0][0][0])[i] = 0.0f;
  }
};

}  // namespace humming::kernels
