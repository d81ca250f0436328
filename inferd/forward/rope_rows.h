// A table of rotary positions on the device, filled as far as the sequences have come, so that a long context
// does not slow the start.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "kernels/backend.h"

namespace sluice::inferd {

class RopeRows {
 public:
  // Number of rows computed at a time.
  static constexpr uint32_t kStep = 512;

  RopeRows() = default;
  // Allocates `positions` rows; no table for a rope that rotates nothing. Errors of ComputeRopeTable();
  // RESOURCE_EXHAUSTED naming the bytes.
  static absl::StatusOr<RopeRows> Create(const RopeConfig& rope, bool long_texts, uint32_t positions,
                                         Backend* backend);

  // Queues the missing rows of positions below `end`. Does not allocate. REQUIRES: end <= positions.
  absl::Status Reach(uint32_t end, Queue* queue);

  // The table; empty: no rotation.
  BufferRef table() const { return table_; }
  uint32_t made() const { return made_; }

 private:
  std::vector<double> frequencies_;
  double factor_ = 1;
  uint32_t positions_ = 0;
  uint32_t made_ = 0;
  BufferRef table_;
  std::vector<float> rows_;  // [kStep][2][pairs]
};

}  // namespace sluice::inferd
