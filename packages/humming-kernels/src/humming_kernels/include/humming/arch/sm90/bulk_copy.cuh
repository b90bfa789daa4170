// Copies by the asynchronous proxy that complete on an mbarrier: flat runs of bytes and boxes of a tensor map.
// Called by copy/bulk_stage, by one thread.
// Assumes 16-byte aligned runs; boxes need a shared address aligned to the swizzle's 1024 bytes.
#pragma once

#include <humming/base/arguments.cuh>
#include <humming/base/types.cuh>

namespace humming::arch::sm90 {

using base::u32;
using base::u64;

__device__ __forceinline__ void bulk_copy(u32 shared_address, const void* source, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address),
               "l"(source), "r"(bytes), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void bulk_copy_hint(u32 shared_address, const void* source, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared_address),
      "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// The box whose corner is at (inner, outer); what lies outside the tensor reads as zero and counts as bytes.
__device__ __forceinline__ void tensor_copy_2d(u32 shared_address, const base::TensorMap* map, int inner, int outer, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address),
      "l"(map), "r"(inner), "r"(outer), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void prefetch_tensor_map(const base::TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace humming::arch::sm90
