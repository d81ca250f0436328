#include "inferd/forward/rope_rows.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/rope_table.h"

namespace sluice::inferd {

absl::StatusOr<RopeRows> RopeRows::Create(const RopeConfig& rope, bool long_texts, uint32_t positions,
                                          Backend* backend) {
  RopeRows rows;
  ASSIGN_OR_RETURN(rows.frequencies_, RopeFrequencies(rope, long_texts));
  if (rows.frequencies_.empty()) {
    return rows;
  }
  ASSIGN_OR_RETURN(rows.factor_, RopeFactor(rope, long_texts));
  rows.positions_ = positions;
  const uint64_t floats = 2 * rows.frequencies_.size();
  ASSIGN_OR_RETURN(const BufferId buffer,
                   backend->Allocate(positions * floats * sizeof(float), BufferKind::kTables));
  rows.table_ = {buffer, 0};
  rows.rows_.resize(kStep * floats);
  return rows;
}

absl::Status RopeRows::Reach(uint32_t end, Queue* queue) {
  const uint64_t floats = 2 * frequencies_.size();
  while (floats > 0 && made_ < end) {
    const uint32_t count = std::min(kStep, positions_ - made_);
    FillRopeRows(frequencies_, factor_, made_, absl::MakeSpan(rows_).first(count * floats));
    RETURN_IF_ERROR(
        queue->Upload(rows_.data(), count * floats * sizeof(float), table_ + made_ * floats * sizeof(float)));
    made_ += count;
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
