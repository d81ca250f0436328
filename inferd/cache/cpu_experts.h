// Experts that the CPU computes in place, in weightd's DRAM under leases.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/cache/expert_slots.h"
#include "inferd/cache/transfer_pacing.h"
#include "inferd/model/weight_buffers.h"
#include "inferd/model/weight_client.h"
#include "inferd/policy/miss_balance.h"
#include "inferd/sim/virtual_clock.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "pack/pack.h"

namespace sluice::inferd {

class CpuExperts {
 public:
  // `clock`: virtual clock with a time of its own for the CPU; null: real time, in which queued work is
  // handed out at once. All pointers outlive this object. `most`: maximum experts of a layer.
  CpuExperts(WeightClient* client, const SegmentBuffers* segments, VirtualClock* clock, uint32_t most)
      : pack_(client->pack()), client_(client), segments_(segments), clock_(clock), experts_(most) {}

  // Leases the expert of a demand; false: weightd does not have all of it in DRAM.
  bool Lease(uint32_t demand, uint32_t layer, uint32_t expert, uint64_t step);
  // Releases the lease if there is one.
  void Release(uint32_t demand, uint64_t step);

  // Queues `seconds` of CPU work for a demand, behind earlier work.
  void Queue(uint32_t demand, double seconds);
  bool IsComputed(uint32_t demand) const {
    return clock_ == nullptr || clock_->NowNanos() >= experts_[demand].ends;
  }
  int64_t ends(uint32_t demand) const { return experts_[demand].ends; }

  // Part of the demand's expert. REQUIRES: leased.
  WeightView PartOf(uint32_t demand, Part part) const;
  uint64_t held() const { return held_; }  // extents
  // True if the CPU has a virtual time.
  bool is_virtual() const { return clock_ != nullptr; }

 private:
  struct Expert {
    uint32_t layer = 0;
    uint32_t expert = 0;
    bool leased = false;
    int64_t ends = 0;                            // end of the CPU's work in virtual time
    std::array<ExtentLease, kPartCount> leases;  // by stream of the expert
  };

  const Pack& pack_;
  WeightClient* const client_;
  const SegmentBuffers* const segments_;
  VirtualClock* const clock_;
  std::vector<Expert> experts_;  // by demand
  uint64_t held_ = 0;
};

// CPU time of an expert, by its rows: given by an option, or measured at the start with the kernels that
// compute misses and the clock of their device, and corrected at run time by their actual times while other
// work uses the machine's memory too.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after the start.

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
