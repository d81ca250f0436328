// Where the experts of a layer are, and how they come to be computed: the interface between the forward pass,
// the policies and a device's cache. On `host` experts are leased in weightd's DRAM (host_residency.h); on
// devices with memory of their own they lie in slots of a slab.
//
// A layer goes: BeginLayer(the routed experts), then Next() until it gives nothing. Each Next() gives back
// what the one before handed out, so a session never blocks while it holds what others could use.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#ifndef SLUICE_INFERD_RESIDENCY_RESIDENCY_H_
#define SLUICE_INFERD_RESIDENCY_RESIDENCY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/buffer.h"

namespace sluice {

// What routing policies and predictors may ask. Answers are hints: an expert may leave at any time.
class ResidencyView {
 public:
  virtual ~ResidencyView() = default;
  virtual bool IsResident(uint32_t layer, uint32_t expert) const = 0;
  // Being fetched, or resident.
  virtual bool IsComing(uint32_t layer, uint32_t expert) const { return IsResident(layer, expert); }
  // Of the expert's neurons, those that are there or on their way: 0..1.
  virtual double NeuronShare(uint32_t layer, uint32_t expert) const {
    return IsResident(layer, expert) ? 1 : 0;
  }
  // Cheap and on the safe side: false may only mean not known to be.
  virtual bool AllResident(uint32_t layer) const = 0;
};

// One routed expert of the current layer.
struct ExpertDemand {
  uint32_t expert = 0;
  uint32_t tokens = 0;  // rows routed to it
};

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
};

// An expert whose bytes are damaged.
struct FailedDemand {
  uint32_t demand = 0;
  uint32_t extent = 0;  // the extent at fault
};

// Monotonic counters, of a layer or of all.
struct ResidencyCounters {
  uint64_t requests = 0;  // (layer, expert) demands
  uint64_t hits = 0;      // of these: resident when the router named them
  uint64_t late = 0;      // of these: on their way then
  uint64_t cpu = 0;       // of these: computed by the CPU, where they lay
  uint64_t prefetch_issued = 0;
  uint64_t prefetch_useful = 0;  // hits that a prefetch of the same step had asked for
  uint64_t no_room = 0;          // fills that weightd had no room for
  uint64_t bytes_touched = 0;    // weights handed out
  uint64_t bytes_dram = 0;       // of these: where they lie in weightd's DRAM
  uint64_t bytes_link = 0;       // copied to the device
  uint64_t bytes_ssd = 0;        // read from SSD
};

// Counters by layer, and of all layers.
class LayerCounters {
 public:
  explicit LayerCounters(size_t layers) : layers_(layers) {}

  void Add(uint32_t layer, uint64_t ResidencyCounters::*field, uint64_t more = 1) {
    total_.*field += more;
    layers_[layer].*field += more;
  }
  const ResidencyCounters& total() const { return total_; }
  absl::Span<const ResidencyCounters> layers() const { return layers_; }

 private:
  ResidencyCounters total_;
  std::vector<ResidencyCounters> layers_;
};

// Of one layer, where the cache knows single neurons. Monotonic.
struct NeuronCounters {
  uint64_t requests = 0;    // neurons that counted for any row of a demanded expert
  uint64_t hits = 0;        // of these: there when that was known
  uint64_t fetched = 0;     // neurons asked for then
  uint64_t left_out = 0;    // neurons that counted and were not computed
  uint64_t prefetched = 0;  // neurons that predictors asked for
  uint64_t copied_all = 0;  // experts whose missing neurons came in one copy
  uint64_t bytes = 0;       // over the link, leads not counted

  void Add(const NeuronCounters& other) {
    requests += other.requests;
    hits += other.hits;
    fetched += other.fetched;
    left_out += other.left_out;
    prefetched += other.prefetched;
    copied_all += other.copied_all;
    bytes += other.bytes;
  }
};

// What a cache of single neurons is like.
struct NeuronCacheFacts {
  uint64_t slots = 0;
  bool leads_stay = false;         // of all experts, in device memory
  double copy_all_share = 0;       // of an expert's neurons: if more are missing, all travel in one copy
  bool copy_all_measured = false;  // at the start
};

// Told of leads that were prefetched.
class LeadListener {
 public:
  virtual ~LeadListener() = default;
  // Some have come while Next() waits for something else: work that reads them may be queued, and neurons
  // asked for. An error ends the step.
  virtual absl::Status OnLeads() = 0;
};

class Residency : public ResidencyView {
 public:
  // The client has a session, at the start or after a Reconnect(): offers it what it must know, and fills
  // what can be filled ahead. UNAVAILABLE: weightd is gone again.
  virtual absl::Status Attach() { return absl::OkStatus(); }

  // Router probabilities of all experts of the layer that begins next, the batch's mean; optional, and only
  // policies that ask for them (WantsScores) look at them. Copied.
  virtual bool WantsScores() const { return false; }
  virtual void SetScores(absl::Span<const float> /*scores*/) {}

  // Whether the steps that follow hold rows of prompts: these pass through without pushing out what decoding
  // uses.
  virtual void SetPrefill(bool /*prefill*/) {}

  // Whether the steps that follow hold rows whose results must be whole, as a prompt's are: no neuron is left
  // out then, whatever the policy.
  virtual void SetLossless(bool /*lossless*/) {}

  // Steps count up; a step may begin again under the same number after an error.
  virtual void BeginStep(uint64_t step) = 0;

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

  // The demands of this layer that failed so far.
  virtual absl::Span<const FailedDemand> failed() const = 0;

  // Asks for an expert of a later layer if it is not resident, and keeps it if it is; does nothing if that
  // cannot be queued now.
  virtual void Prefetch(uint32_t layer, uint32_t expert) = 0;

  // Asks for neurons of an expert of a later layer, ascending and distinct: for its lead unless that is
  // resident or cached, then for those of the neurons that are missing; keeps what is there. A cache of whole
  // experts does nothing; nor does one that cannot queue it now.
  virtual void PrefetchNeurons(uint32_t /*layer*/, uint32_t /*expert*/,
                               absl::Span<const uint32_t> /*neurons*/) {}

  // Who is told of leads; null: nobody. It outlives this, or is replaced before it goes.
  virtual void SetLeadListener(LeadListener* /*listener*/) {}

  // All rows of the part whose product decides an expert's mask, if they lie on the device now. They may be
  // read until the residency is next told of anything (queue work that reads them has run by then).
  virtual std::optional<WeightView> Lead(uint32_t /*layer*/, uint32_t /*expert*/) const { return {}; }

  // Whether nothing travels and nothing waits to, as far as is known here.
  virtual bool LinkIdle() { return false; }

  // How many layers will have passed when an expert that is asked for now has come: at least 1, which is also
  // said while nothing is known.
  virtual uint32_t LayersToFetch() { return 1; }

  // Takes completions that came meanwhile. Called between steps.
  virtual void Poll() = 0;

  // Gives everything back, after an error in a step. The next step begins anew.
  virtual void Abandon() = 0;

  // Leases or slots held now; 0 between steps on `host`.
  virtual uint64_t held() const = 0;
  virtual ResidencyCounters counters() const = 0;
  // The same by layer; empty: not counted.
  virtual absl::Span<const ResidencyCounters> counters_by_layer() const { return {}; }
  // By layer; empty where the cache knows whole experts only.
  virtual absl::Span<const NeuronCounters> neuron_counters() const { return {}; }
  // Whether what is fetched for the next layer finds room beside what the running one computes.
  virtual bool HasRoomAhead() const { return true; }
  // None where whole experts are cached.
  virtual std::optional<NeuronCacheFacts> neuron_cache() const { return {}; }
  // For the line at the start; empty: nothing to say.
  virtual std::string Describe() const { return {}; }

  // Whether what the running layer waits for is on the link, so that whatever else is asked for comes later.
  virtual bool IsBehind() const { return false; }
};

}  // namespace sluice

#endif  // SLUICE_INFERD_RESIDENCY_RESIDENCY_H_
