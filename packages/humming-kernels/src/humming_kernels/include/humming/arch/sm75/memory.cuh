// Loads and stores with stated widths and cache behaviour, and the arrival counter of split tiles.
// Called by copy, epilogue and kernels.
// Assumes natural alignment of every address.
#pragma once

#include <humming/base/types.cuh>

namespace humming::arch::sm75 {

using base::Floats4;
using base::i32;
using base::u16;
using base::u32;
using base::Words4;

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// The same value, which the compiler then keeps in a register instead of deriving it again.
__device__ __forceinline__ u32 keep_in_register(u32 value) {
  asm volatile("mov.u32 %0, %0;" : "+r"(value));
  return value;
}

__device__ __forceinline__ Words4 load_global_16(const void* pointer) {
  Words4 d;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(d.word[0]), "=r"(d.word[1]), "=r"(d.word[2]), "=r"(d.word[3])
               : "l"(pointer)
               : "memory");
  return d;
}

// Past L1: what other blocks have written to L2 is seen.
__device__ __forceinline__ Floats4 load_global_floats4_l2(const float* pointer) {
  Floats4 d;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(d.value[0]), "=f"(d.value[1]), "=f"(d.value[2]), "=f"(d.value[3])
               : "l"(pointer)
               : "memory");
  return d;
}

__device__ __forceinline__ Words4 load_shared_16(u32 address) {
  Words4 d;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(d.word[0]), "=r"(d.word[1]), "=r"(d.word[2]), "=r"(d.word[3])
               : "r"(address)
               : "memory");
  return d;
}

__device__ __forceinline__ u32 load_shared_4(u32 address) {
  u32 d;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(d) : "r"(address) : "memory");
  return d;
}

__device__ __forceinline__ u16 load_shared_2(u32 address) {
  u16 d;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(d) : "r"(address) : "memory");
  return d;
}

__device__ __forceinline__ void store_shared_16(u32 address, Words4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.word[0]), "r"(value.word[1]),
               "r"(value.word[2]), "r"(value.word[3])
               : "memory");
}

// Adds `value` for the whole GPU; earlier writes of this thread are visible to whoever sees the sum.
__device__ __forceinline__ i32 add_acquire_release(i32* counter, i32 value) {
  i32 old;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;" : "=r"(old) : "l"(counter), "r"(value) : "memory");
  return old;
}

}  // namespace humming::arch::sm75
