// CPU time of an expert, by its rows: given by an option, or measured at the start with the kernels that
// compute misses and the clock of their device, and corrected at run time by their actual times while other
// work uses the machine's memory too.
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

namespace sluice::inferd {

class CpuCosts {
 public:
  // `seconds_per_byte`: time of one row; 0: a third of the link's, until it was measured. All pointers
  // outlive this object.
  CpuCosts(double seconds_per_byte, const LinkPace* pace, const ExpertSlots* slots, const Pack* pack)
      : said_(seconds_per_byte), pace_(pace), slots_(slots), pack_(pack) {}

  // Assumes the same time per byte for each row, for slots of every class.
  void Assume();
  // Measures up to `max_rows` rows on `cpu`. Slots of each class get a table in proportion to their bytes.
  // Errors of the backend.
  absl::Status Measure(uint32_t max_rows, Backend* cpu);
  // Device time per byte of an expert for one row, measured with an expert in the slab. 0 without a ready one
  // (the first fill found no room).
  absl::StatusOr<double> MeasureDevice(Backend* device) const;
  // Reports that work predicted by Seconds() as `predicted` took `seconds`.
  void ReportTime(double seconds, double predicted);

  // Time per byte for one row.
  double SecondsPerByte() const;
  // Time of an expert.
  double Seconds(uint32_t layer, uint32_t expert, uint32_t tokens) const;
  // Table of experts of this size. REQUIRES: known().
  const CpuCostTable& TableOf(uint32_t layer, uint32_t expert) const {
    return tables_[slots_->table().class_of(layer, expert)];
  }
  bool known() const { return !tables_.empty(); }
  // Tables by size class; empty: neither assumed nor measured.
  absl::Span<const CpuCostTable> tables() const { return tables_; }

 private:
  ExpertWork WorkAt(uint32_t layer, uint32_t expert, BufferRef place) const;

  const double said_;
  const LinkPace* const pace_;
  const ExpertSlots* const slots_;
  const Pack* const pack_;
  std::vector<CpuCostTable> tables_;  // by size class
  double scale_ = 1;                  // scale of the tables
};

}  // namespace sluice::inferd
