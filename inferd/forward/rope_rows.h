// A table of rotary positions on the device, made as far as texts have come: a start with a long context
// takes no longer than one with a short one.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "kernels/backend.h"

namespace sluice {

class RopeRows {
 public:
  // Rows that are made at a time.
  static constexpr uint32_t kStep = 512;

  RopeRows() = default;
  // Room for `positions` rows of ComputeRopeTable(), whose errors these are; none for a rope that turns
  // nothing. RESOURCE_EXHAUSTED naming the bytes.
  static absl::StatusOr<RopeRows> Create(const RopeConfig& rope, bool long_texts, uint32_t positions,
                                         Backend* backend);

  // Queues the rows of positions below `end` that are not there yet. Nothing allocates. REQUIRES: end <=
  // positions.
  absl::Status Reach(uint32_t end, Queue* queue);

  // The table; none: nothing turns.
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

}  // namespace sluice
