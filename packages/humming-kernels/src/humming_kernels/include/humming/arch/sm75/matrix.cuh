// ldmatrix, movmatrix and the m16n8k8 f16 matrix multiply.
// Called by mma and epilogue.
// Assumes shared addresses in the shared window; all 32 lanes of the warp take part.
#pragma once

#include <humming/base/types.cuh>

namespace humming::arch::sm75 {

using base::u32;

// Four 8 x 8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix_x4(u32 (&d)[4], u32 shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared_address)
               : "memory");
}

__device__ __forceinline__ void mma_m16n8k8_f16(float (&c)[4], u32 a0, u32 a1, u32 b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// Transposes an 8 x 8 matrix of 16-bit values held as two neighbours of a row per lane.
__device__ __forceinline__ u32 transpose_8x8(u32 value) {
  u32 result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(value));
  return result;
}

}  // namespace humming::arch::sm75
