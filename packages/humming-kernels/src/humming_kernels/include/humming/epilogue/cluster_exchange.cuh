// Two blocks of a cluster have summed half of k each; each sends the other one the sums of half of the tokens.
// Called by epilogue/register_tile, by the threads that multiply.
// Assumes an exchange buffer of its own (the other block may still be multiplying) and a barrier that expects its bytes.
#pragma once

#include <humming/arch/sm75/memory.cuh>
#include <humming/arch/sm90/cluster.cuh>
#include <humming/arch/sm90/mbarrier.cuh>
#include <humming/base/shape.cuh>

namespace humming::epilogue {

using base::u32;

template <int kTiles, int kThreads>
struct ClusterExchange {
  static constexpr int kHalf = base::maximum(1, kTiles / 2);
  static constexpr u32 kBytes = kHalf * kThreads * 16;

  u32 buffer;   // shared addresses of this block; the other one has the same
  u32 barrier;

  // By one thread of the block, before the barrier of the cluster.
  __device__ __forceinline__ void initialise() const {
    arch::sm90::mbarrier_init(barrier, 1);
    arch::sm90::mbarrier_arrive_expect(barrier, kBytes);
  }

  // half[i] = the whole sum of register tile rank * kHalf + i. Two addends have one order: the bits are fixed.
  __device__ __forceinline__ void run(const float (&sums)[kTiles][4], float (&half)[kHalf][4], u32 rank) const {
    const u32 peer_buffer = arch::sm90::map_to_rank(buffer + threadIdx.x * 16, rank ^ 1);
    const u32 peer_barrier = arch::sm90::map_to_rank(barrier, rank ^ 1);
#pragma unroll
    for (int tile = 0; tile < kHalf; ++tile) {
      float sent[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sent[i] = rank == 0 ? sums[kHalf + tile][i] : sums[tile][i];
        half[tile][i] = rank == 0 ? sums[tile][i] : sums[kHalf + tile][i];
      }
      arch::sm90::store_async_16(peer_buffer + tile * kThreads * 16, sent, peer_barrier);
    }
    while (!arch::sm90::mbarrier_try_wait(barrier, 0)) {
    }
#pragma unroll
    for (int tile = 0; tile < kHalf; ++tile) {
      const base::Words4 received = arch::sm75::load_shared_16(buffer + (tile * kThreads + threadIdx.x) * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) half[tile][i] += __uint_as_float(received.word[i]);
    }
  }
};

}  // namespace humming::epilogue
