// Blocks of a cluster: their rank, each other's shared memory, and the barrier of all their threads.
// Called by epilogue/cluster_exchange and kernels/dense_wgmma.
// Assumes a kernel with compile-time cluster dimensions; a block may leave once nobody writes to it any more.
#pragma once

#include <humming/base/types.cuh>

namespace humming::arch::sm90 {

using base::u32;

__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The same shared address in the block of this rank, in the window of the cluster.
__device__ __forceinline__ u32 map_to_rank(u32 shared_address, u32 rank) {
  u32 mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(shared_address), "r"(rank));
  return mapped;
}

// Sixteen bytes into another block's shared memory; they count on an mbarrier of that block when they have landed.
__device__ __forceinline__ void store_async_16(u32 cluster_address, const float (&value)[4], u32 cluster_barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(cluster_address),
      "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3]), "r"(cluster_barrier)
      : "memory");
}

// Orders nothing but what fence_barrier_init has shown: a releasing arrival would be a fence of the whole GPU.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

}  // namespace humming::arch::sm90
