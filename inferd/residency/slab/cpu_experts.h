// Experts that the CPU computes in place, in weightd's DRAM under leases.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "inferd/sim/virtual_clock.h"
#include "inferd/weights/segment_buffers.h"
#include "inferd/weights/weight_client.h"
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

}  // namespace sluice::inferd
