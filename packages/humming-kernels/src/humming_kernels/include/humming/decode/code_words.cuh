// The contract of a decoder: code words -> raw operand registers, bits of each code placed where the operand type
// reads them. Specialised in one file per family of numbers (humming_kernels.components says which), used by
// decode/operand, which takes bias and power of two away again. Assumes the packed layout: register r of a step has its
// codes at bits bits * r (k even) and 16 above (k odd), and belongs to row g + 8 (r % 2).
#pragma once

#include <humming/base/config.cuh>
#include <humming/base/types.cuh>

namespace humming::decode {

using base::Number;
using base::u32;

// kWords: words of 32 bits that hold one step of 16 k of a lane.
// A raw register r holds (bias(r) + value of the code) * 2^-owed(r), exactly.
template <Number kWeight, Number kOperand>
struct CodeWords;

}  // namespace humming::decode
