// PartWork: time, bytes and multiply-adds of each part of a model's steps, shown by `sluice bench --explain`.
//
// Thread safety: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice::inferd {

enum class StepPart : uint8_t { kAttention = 0, kRouter = 1, kExperts = 2, kHead = 3, kOther = 4 };
inline constexpr size_t kStepParts = 5;

inline constexpr const char* NameOf(StepPart part) {
  constexpr const char* kNames[kStepParts] = {"attention", "router", "experts", "head", "other"};
  return kNames[static_cast<size_t>(part)];
}

// Counters since the start; they only grow.
struct PartWork {
  double seconds = 0;     // time in operations of this part
  uint64_t bytes = 0;     // bytes of weights and KV cache read, each counted once an operation
  uint64_t products = 0;  // multiply-adds
};

using PartWorks = std::array<PartWork, kStepParts>;

}  // namespace sluice::inferd
