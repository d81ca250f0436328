// Source of a layer's experts for the forward pass, piece by piece as they become ready.
//
// A layer calls BeginLayer(the routed experts), then Next() until it returns nothing. Each Next() releases
// the tiles of the call before, so a session never blocks while it holds leases that others could use.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/experts/residency_view.h"
#include "kernels/backend.h"

namespace sluice::inferd {

// A neuron range of one demanded expert, ready to be computed. Tiles of an expert come in neuron order.
//
// A neuron cache may return an expert twice: first its lead alone, whose values tell which neurons are
// needed; then, with these values, the parts that hold them.
struct ReadyTile {
  uint32_t demand = 0;  // index into BeginLayer's list
  WeightView up;        // [width, hidden]
  WeightView gate;
  WeightView down;
  uint32_t neuron_begin = 0;
  uint32_t neuron_end = 0;  // 0: up to the width
  bool lead_only = false;   // compute only lead_values and lead_active (kernels/ops.h)
  Rows lead_values;         // [rows of the demand, width], or empty
  BufferRef lead_active;    // lead_only: uint64 [(width + 63) / 64]
  // True if the CPU computes it beside the device: the weights are in the CPU's memory.
  bool on_cpu = false;
};

// The leads of all experts of a layer, and the buffers of their values for a router's choice
// (RoutedLeadsArgs).
struct LayerLeads {
  absl::Span<const WeightView> leads;  // by expert
  Rows values;
  BufferRef active;
};

// A demanded expert whose bytes are damaged.
struct FailedDemand {
  uint32_t demand = 0;
  uint32_t extent = 0;  // the extent at fault
};

class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  // Begins a step. Numbers ascend; a step may begin again under the same number after an error.
  virtual void BeginStep(uint64_t step) = 0;

  // Sets the router probabilities of all experts of the next layer, the batch's mean; optional, and used only
  // by caches whose WantsScores() is true. Copied.
  virtual bool WantsScores() const { return false; }
  virtual void SetScores(absl::Span<const float> /*scores*/) {}

  // Begins `layer` after its router has run: takes resident experts, requests the others, drops older
  // prefetches. `demands`: distinct experts.
  virtual absl::Status BeginLayer(uint32_t layer, absl::Span<const ExpertDemand> demands) = 0;

  // Releases the tiles of the call before and returns those that are ready now; blocks while none is. Empty:
  // every demand was returned or failed. UNAVAILABLE: weightd is gone; RESOURCE_EXHAUSTED: weightd found no
  // room for longer than the stall limit. Lead-only tiles are never mixed with others.
  virtual absl::StatusOr<absl::Span<const ReadyTile>> Next() = 0;

  // Called once the leads returned by Next() are queued: requests the neurons they need, if nothing else must
  // be queued before.
  virtual absl::Status LeadsQueued() { return absl::OkStatus(); }

  // True if Next() would block now: demands are open, and none is ready except those already returned.
  virtual bool NextWaits() const = 0;

  // True if the CPU may get tiles of `layer`, as far as known before the layer begins.
  virtual bool MayUseCpu(uint32_t /*layer*/) const { return false; }
  // Notes that the CPU has computed all its tiles of the layer.
  virtual void CpuFinished() {}

  // The following functions are for asynchronous devices, before the router of `layer` is known to have run.
  //
  // Returns the leads of all its experts, if all are resident and experts with so few rows use leads. Valid
  // until the layer begins.
  virtual std::optional<LayerLeads> LeadsAhead(uint32_t /*layer*/, uint32_t /*rows*/) { return {}; }
  // Notes that this work has run: row rows[i] holds the values of demand i of the next layer; kNoRow: no row.
  static constexpr uint32_t kNoRow = 0xffffffffu;
  virtual void LeadsMade(absl::Span<const uint32_t> /*rows*/) {}
  // True if all its experts are resident whole and every routed one is to be computed from there: the layer
  // can be deferred (RoutedExpertsArgs).
  virtual bool CanDeferLayer(uint32_t /*layer*/) const { return false; }
  // Returns one of these experts, whole. REQUIRES: CanDeferLayer().
  virtual ReadyTile Whole(uint32_t /*layer*/, uint32_t /*expert*/) const { return {}; }
  // Notes that work queued before `used` may read any expert of that layer.
  virtual void LayerRead(uint32_t /*layer*/, Event /*used*/) {}
  // Counts the demands of a deferred layer that has run.
  virtual void CountDeferred(uint32_t /*layer*/, absl::Span<const ExpertDemand> /*demands*/) {}

  // Demands of this layer that failed so far.
  virtual absl::Span<const FailedDemand> failed() const = 0;
};

}  // namespace sluice::inferd
