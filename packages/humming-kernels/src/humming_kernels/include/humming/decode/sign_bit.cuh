// Places 4-bit codes with a sign bit on top: the sign to bit 15 of a half, the magnitude wherever the type wants it.
// Used by the decoders of sign-magnitude integers and small floats.
// Assumes the contract of decode/code_words.
#pragma once

#include <humming/base/types.cuh>

namespace humming::decode {

using base::u32;

// kLowest is the bit of the half that the lowest magnitude bit goes to.
template <int kLowest>
__device__ __forceinline__ void place_sign_and_magnitude(u32 word, u32 (&raw)[4]) {
  constexpr u32 kMagnitude = 0x00070007u << kLowest;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const u32 top = word << (12 - 4 * r);  // code r in the top four bits of each half
    raw[r] = (top & 0x80008000u) | ((top >> (12 - kLowest)) & kMagnitude);
  }
}

}  // namespace humming::decode
