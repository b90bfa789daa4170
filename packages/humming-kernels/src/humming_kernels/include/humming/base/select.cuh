// A type by a compile-time condition.
// Used by kernels to pick components.
// Assumes nothing; the standard library's headers are not available under NVRTC.
#pragma once

namespace humming::base {

template <bool kCondition, class Yes, class No>
struct Select {
  using Type = Yes;
};
template <class Yes, class No>
struct Select<false, Yes, No> {
  using Type = No;
};

}  // namespace humming::base
