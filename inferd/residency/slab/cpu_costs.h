// What an expert takes the CPU, by its rows: as somebody says, or as measured at the start with the kernels
// that compute misses, by the clock of the place that runs them, and corrected by what they take while
// others use the machine's memory too.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after the start.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
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
  // Measures up to `max_rows` rows on `cpu`. Slots of each class get a table in proportion to their bytes.
  // Errors of the backend.
  absl::Status Measure(uint32_t max_rows, Backend* cpu);
  // What a byte of an expert takes the device for one row: of an expert that lies in the slab. 0 without a
  // ready one (the first fill found no room).
  absl::StatusOr<double> MeasureDevice(Backend* device) const;
  // What Seconds() had said to take `predicted` took so long.
  void Took(double seconds, double predicted);

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
  ExpertWork WorkAt(uint32_t layer, uint32_t expert, BufferRef place) const;

  const double said_;
  const LinkPace* const pace_;
  const ExpertSlots* const slots_;
  const Pack* const pack_;
  std::vector<CpuCostTable> tables_;  // by size class
  double scale_ = 1;                  // of the tables
};

}  // namespace sluice
