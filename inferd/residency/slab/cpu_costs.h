// What an expert takes the CPU, by its rows: as somebody says, or as measured at the start on an expert that
// lies in the slab, with the kernels that compute misses.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after the start.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "inferd/policy/routing/miss_balance.h"
#include "inferd/residency/slab/expert_slots.h"
#include "inferd/residency/slots/link_pace.h"
#include "kernels/backend.h"
#include "pack/pack.h"

namespace sluice {

class CpuCosts {
 public:
  // `seconds_per_byte`: of one row; 0: a third of the link's, until it was measured. All outlive this object.
  CpuCosts(double seconds_per_byte, const LinkPace* pace, const ExpertSlots* slots, const Pack* pack)
      : said_(seconds_per_byte), pace_(pace), slots_(slots), pack_(pack) {}

  // Each row takes what a byte takes, for slots of every class.
  void Assume();
  // Measures up to `max_rows` rows by `clock`; without a ready expert (the first fill found no room) nothing.
  // Slots of each class get the table of the one measured, in proportion to their bytes. Errors of the
  // backend.
  absl::Status Measure(uint32_t max_rows, const Clock& clock, Backend* backend);

  // Of a byte, for one row.
  double SecondsPerByte() const;
  // Of an expert.
  double Seconds(uint32_t layer, uint32_t expert, uint32_t tokens) const;
  // Of experts like this one. REQUIRES: known().
  const CpuCostTable& TableOf(uint32_t layer, uint32_t expert) const {
    return tables_[slots_->table().class_of(layer, expert)];
  }
  bool known() const { return !tables_.empty(); }
  // By size class; empty: neither assumed nor measured.
  absl::Span<const CpuCostTable> tables() const { return tables_; }

 private:
  absl::StatusOr<std::vector<CpuCostTable::Point>> MeasureRows(uint32_t slot, uint32_t most,
                                                               const Clock& clock, Backend* backend) const;
  absl::StatusOr<std::vector<CpuCostTable::Point>> TimeRows(const ExpertWork& expert, uint32_t layer,
                                                            uint32_t most, BufferId x, BufferId y,
                                                            const Clock& clock, Backend* backend) const;

  const double said_;
  const LinkPace* const pace_;
  const ExpertSlots* const slots_;
  const Pack* const pack_;
  std::vector<CpuCostTable> tables_;  // by size class
};

}  // namespace sluice
