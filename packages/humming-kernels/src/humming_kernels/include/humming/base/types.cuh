// Integer names of fixed width and the 16-byte vector.
// Used by every header.
// Assumes the CUDA data model: int is 32 bits, long long is 64.
#pragma once

namespace humming::base {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

struct alignas(16) Words4 {
  u32 word[4];
};

struct alignas(16) Floats4 {
  float value[4];
};

}  // namespace humming::base
