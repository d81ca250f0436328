// Where the forward pass gets a layer's experts from, piece by piece as they become ready.
//
// A layer goes: BeginLayer(the routed experts), then Next() until it gives nothing. Each Next() gives back
// what the one before handed out, so a session never blocks while it holds what others could use.
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

namespace sluice {

// A neuron range of one demanded expert, ready to be computed. Tiles of an expert come in neuron order.
//
// Where the cache knows single neurons, an expert may come twice: first its lead alone, whose values tell
// which neurons are needed; then, with these values, the parts that hold them.
struct ReadyTile {
  uint32_t demand = 0;  // index into BeginLayer's list
  WeightView up;        // [width, hidden]
  WeightView gate;
  WeightView down;
  uint32_t neuron_begin = 0;
  uint32_t neuron_end = 0;  // 0: the width
  bool lead_only = false;   // the lead's values are wanted, into lead_values and lead_active (kernels/ops.h)
  Rows lead_values;         // [rows of the demand, width], or none
  BufferRef lead_active;    // lead_only: uint64 [(width + 63) / 64]
  // The CPU computes it beside the device: the weights are in the CPU's memory.
  bool on_cpu = false;
};

// The leads of all experts of a layer, and where their values for a router's choice go (RoutedLeadsArgs).
struct LayerLeads {
  absl::Span<const WeightView> leads;  // by expert
  Rows values;
  BufferRef active;
};

// An expert whose bytes are damaged.
struct FailedDemand {
  uint32_t demand = 0;
  uint32_t extent = 0;  // the extent at fault
};

class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  // Steps count up; a step may begin again under the same number after an error.
  virtual void BeginStep(uint64_t step) = 0;

  // Router probabilities of all experts of the layer that begins next, the batch's mean; optional, and only
  // caches that ask for them (WantsScores) look at them. Copied.
  virtual bool WantsScores() const { return false; }
  virtual void SetScores(absl::Span<const float> /*scores*/) {}

  // The router of `layer` has run: takes what is there, asks for the rest, drops older prefetches. `demands`:
  // distinct experts.
  virtual absl::Status BeginLayer(uint32_t layer, absl::Span<const ExpertDemand> demands) = 0;

  // Gives back what the call before handed out and returns what is ready now; blocks while nothing is. Empty:
  // every demand was handed out or failed. UNAVAILABLE: weightd is gone; RESOURCE_EXHAUSTED: weightd found no
  // room for longer than the stall limit. Tiles that are leads only come apart from others.
  virtual absl::StatusOr<absl::Span<const ReadyTile>> Next() = 0;

  // The leads that Next() gave have been queued: asks for the neurons that they need, if nothing else is to
  // be queued before.
  virtual absl::Status LeadsQueued() { return absl::OkStatus(); }

  // Whether Next() would block now: demands are open, and none is ready but those that it handed out before.
  virtual bool NextWaits() const = 0;

  // Whether tiles of `layer` may be the CPU's, as far as is known before the layer begins.
  virtual bool MayUseCpu(uint32_t /*layer*/) const { return false; }
  // The CPU has computed all that it was given of the layer.
  virtual void CpuFinished() {}

  // For devices that run later, before the router of `layer` is known to have run.
  //
  // The leads of all its experts, if they are all there and experts with so few rows are looked at. Valid
  // until the layer begins.
  virtual std::optional<LayerLeads> LeadsAhead(uint32_t /*layer*/, uint32_t /*rows*/) { return {}; }
  // That work has run: the values of demand i of the layer that begins next are in row rows[i]; kNoRow: in
  // none.
  static constexpr uint32_t kNoRow = 0xffffffffu;
  virtual void LeadsMade(absl::Span<const uint32_t> /*rows*/) {}
  // Whether all its experts are there whole, and whoever the router chooses is to be computed from there: the
  // layer can be queued without the host (RoutedExpertsArgs).
  virtual bool AllThere(uint32_t /*layer*/) const { return false; }
  // Such an expert, whole. REQUIRES: AllThere().
  virtual ReadyTile Whole(uint32_t /*layer*/, uint32_t /*expert*/) const { return {}; }
  // What may read any expert of that layer was queued before `used`.
  virtual void LayerRead(uint32_t /*layer*/, Event /*used*/) {}
  // It has run, and was routed to these.
  virtual void Heard(uint32_t /*layer*/, absl::Span<const ExpertDemand> /*demands*/) {}

  // The demands of this layer that failed so far.
  virtual absl::Span<const FailedDemand> failed() const = 0;
};

}  // namespace sluice
