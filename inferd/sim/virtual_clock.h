// Virtual time of a modelled device and of the CPU beside it: it advances when work of known cost is done or
// waited for, never by itself, so that the same decisions take the same time on any machine (--clock
// virtual).
//
// Thread safety: one thread (the engine's) advances the clock; any thread may read the time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/encoding.h"
#include "common/model/model_config.h"

namespace sluice::inferd {

// The CPU of the modelled machine, which computes experts in place, one after another.
class VirtualCpu {
 public:
  // Schedules work at the first free time, not before `now`; returns its end time.
  int64_t Run(int64_t now, int64_t nanos) { return free_at_ = std::max(free_at_, now) + nanos; }
  // Sets the time of the CPU's next result: a wait for the link advances the clock no further than that.
  void SetNextResult(int64_t nanos) { next_result_ = nanos; }
  int64_t next_result() const { return next_result_; }

 private:
  int64_t free_at_ = 0;
  int64_t next_result_ = INT64_MAX;
};

class VirtualClock final : public Clock {
 public:
  int64_t NowNanos() const override { return now_.load(std::memory_order_relaxed); }
  void Advance(int64_t nanos) { now_.store(NowNanos() + nanos, std::memory_order_relaxed); }
  void AdvanceTo(int64_t nanos) {
    if (nanos > NowNanos()) {
      now_.store(nanos, std::memory_order_relaxed);
    }
  }
  VirtualCpu& cpu() { return cpu_; }

 private:
  std::atomic<int64_t> now_{0};
  VirtualCpu cpu_;
};

// Costs of a modelled device (--clock virtual), as times of one expert stored as bf16: other encodings and
// skipped neurons scale with the bytes read, unless row costs are given, as measured by --measure-costs
// (measured_device.h).
//
// Thread safety: plain values and pure functions.

inline constexpr size_t kEncodingValues = kEncodingNumbers;  // every Encoding value is below

// Nanoseconds of one row of a part, `hidden` values long, times a token's row; 0: scaled by its bytes.
struct RowCost {
  double all_ns = 0;   // if a part is computed from its first neuron to its last
  double kept_ns = 0;  // per active neuron among inactive ones; 0: as all_ns
};

struct VirtualCosts {
  double compute_ms = 5;      // a bf16 expert on the device, for any number of rows
  double attention_ms = 0.3;  // one layer's attention
  double head_ms = 0;         // logits
  double link_ms = 0;         // a bf16 expert on the link; 0: by --link-gbps
  double cpu_ms = 0;          // a bf16 expert and one row on the CPU; 0: a third of link_ms
  std::array<RowCost, kEncodingValues> rows = {};  // by Encoding value
};

// Parses the name of a regime: "3x" (FloE 3.1: the link takes three times the compute), "30x" (its Table 1).
// Or "compute_ms=5,attention_ms=0.3,head_ms=0,link_ms=15,cpu_ms=5,q4_all_ns=300,q4_kept_ns=350", any of them,
// or both as "3x,cpu_ms=2"; others keep their defaults. "@FILE" reads a file with one assignment per line;
// the last assignment counts. INVALID_ARGUMENT naming the key; errors of the file.
absl::StatusOr<VirtualCosts> ParseVirtualCosts(const std::string& text);
std::string ShowVirtualCosts(const VirtualCosts& costs);

// Seconds for `rows` rows of an encoding and one token's row. `kept`: only active rows are computed, else all
// of them. `expert_bytes`: size of an expert in bf16.
double VirtualRowSeconds(const VirtualCosts& costs, const EncodingDescriptor& encoding, uint64_t cols,
                         double rows, bool kept, uint64_t expert_bytes);

// Bytes of the model's widest routed expert in bf16.
uint64_t Bf16ExpertBytes(const ModelConfig& config);

// The link's rate in 1e9 bytes per second; `link_gbps` if the costs have none.
double VirtualLinkGbps(const VirtualCosts& costs, double link_gbps, const ModelConfig& config);

// The CPU's seconds for `bytes` of an expert and one row.
double VirtualCpuSeconds(const VirtualCosts& costs, double link_gbps, const ModelConfig& config,
                         uint64_t bytes);

}  // namespace sluice::inferd
