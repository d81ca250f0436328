// The contract between users and holders of experts: which experts are resident, in transfer or to be
// fetched. ResidencyView tells routing policies and predictors which experts are resident.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace sluice::inferd {

// One routed expert of the current layer.
struct ExpertDemand {
  uint32_t expert = 0;
  uint32_t tokens = 0;  // number of rows routed to it
};

// Answers are hints: an expert may leave at any time.
class ResidencyView {
 public:
  virtual ~ResidencyView() = default;
  virtual bool IsResident(uint32_t layer, uint32_t expert) const = 0;
  // True if the expert is resident or being fetched.
  virtual bool IsComing(uint32_t layer, uint32_t expert) const { return IsResident(layer, expert); }
  // Share of the expert's neurons that are resident or in transfer: 0..1.
  virtual double NeuronShare(uint32_t layer, uint32_t expert) const {
    return IsResident(layer, expert) ? 1 : 0;
  }
  // True if all experts of the layer are resident. Cheap and conservative: false may mean unknown.
  virtual bool AllResident(uint32_t layer) const = 0;
};

// Source of a layer's experts for the forward pass, piece by piece as they become ready.
//
// A layer calls BeginLayer(the routed experts), then Next() until it returns nothing. Each Next() releases
// the tiles of the call before, so a session never blocks while it holds leases that others could use.
//
// Thread safety: thread-compatible; belongs to the engine thread.

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

// Needs of one step, for all its layers.
struct StepNeeds {
  // Numbers ascend; a step may begin again under the same number after an error.
  uint64_t number = 0;
  // The step holds prompt rows, which pass through without evicting experts that decoding uses.
  bool prefill = false;
  // The step holds rows with exact results, as a prompt's: no neuron is left out, whatever the policy.
  bool exact = false;
  // False keeps experts off the CPU, for readers on the device alone.
  bool cpu = true;
};

// A layer whose router has run. The spans are borrowed during BeginLayer().
struct LayerDemands {
  uint32_t layer = 0;
  absl::Span<const ExpertDemand> demands;  // distinct experts
  // Router probabilities of all its experts, the batch's mean; empty: not known. Used only by caches whose
  // WantsScores() is true.
  absl::Span<const float> scores;
  // By demand: the row of LeadsAhead() with its values, which have been computed, or kNoRow; empty: none was.
  absl::Span<const uint32_t> lead_rows;
};

// A demanded expert whose bytes are damaged.
struct FailedDemand {
  uint32_t demand = 0;
  uint32_t extent = 0;  // the extent at fault
};

class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  virtual void BeginStep(const StepNeeds& step) = 0;

  // True if LayerDemands::scores are used.
  virtual bool WantsScores() const { return false; }

  // Begins a layer: takes resident experts, requests the others, drops older prefetches.
  virtual absl::Status BeginLayer(const LayerDemands& layer) = 0;

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
  static constexpr uint32_t kNoRow = 0xffffffffu;
  // True if all its experts are resident whole and every routed one is to be computed from there: the layer
  // can be deferred (RoutedExpertsArgs).
  virtual bool CanDeferLayer(uint32_t /*layer*/) const { return false; }
  // Returns one of these experts, whole. REQUIRES: CanDeferLayer().
  virtual ReadyTile Whole(uint32_t /*layer*/, uint32_t /*expert*/) const { return {}; }
  // A number that no other state of the layer's experts has: it changes before Whole() returns anything else
  // for one of them. 0: not known. REQUIRES: CanDeferLayer().
  virtual uint64_t WholeNumber(uint32_t /*layer*/) const { return 0; }
  // Notes that work queued before `used` may read any expert of that layer.
  virtual void LayerRead(uint32_t /*layer*/, Event /*used*/) {}
  // Counts the demands of a deferred layer that has run.
  virtual void CountDeferred(uint32_t /*layer*/, absl::Span<const ExpertDemand> /*demands*/) {}

  // Demands of this layer that failed so far.
  virtual absl::Span<const FailedDemand> failed() const = 0;
};

// Prefetch interface of predictors: requests for experts of later layers, and the state of the link.
//
// Thread safety: thread-compatible; belongs to the engine thread.

// Listener for prefetched leads.
class LeadListener {
 public:
  virtual ~LeadListener() = default;
  // Called when leads have arrived while the forward pass waits for something else, or when the listener
  // awaits the device: it may queue work that reads them, and request neurons. An error ends the step.
  virtual absl::Status OnLeads() = 0;
  // True if work that it queued is not known to be done, so that OnLeads() must be called again soon.
  virtual bool AwaitsDevice() const { return false; }
};

class ExpertPrefetch : public ResidencyView {
 public:
  // Requests an expert of a later layer if it is not resident, and keeps it if it is; does nothing if the
  // request cannot be queued now.
  virtual void Prefetch(uint32_t layer, uint32_t expert) = 0;

  // Requests neurons of an expert of a later layer, ascending and distinct: first its lead unless that is
  // resident or cached, then the missing neurons; keeps the resident ones. Does nothing in a cache of whole
  // experts, or if the request cannot be queued now.
  virtual void PrefetchNeurons(uint32_t /*layer*/, uint32_t /*expert*/,
                               absl::Span<const uint32_t> /*neurons*/) {}

  // Sets the listener; null: none. It outlives this object, or is replaced before it is destroyed.
  virtual void SetLeadListener(LeadListener* /*listener*/) {}

  // Returns the lead: all rows of the part whose product decides an expert's mask, if they are on the device
  // now. A caller that queues work on them must call LeadRead() before any other call to the cache.
  virtual std::optional<WeightView> Lead(uint32_t /*layer*/, uint32_t /*expert*/) const { return {}; }

  // Notes that work queued before `used` reads the lead of this expert.
  virtual void LeadRead(uint32_t /*layer*/, uint32_t /*expert*/, Event /*used*/) {}

  // True if no transfer runs or waits, as far as known here.
  virtual bool LinkIdle() { return false; }

  // Number of layers that will pass until an expert requested now arrives: at least 1, also while unknown.
  virtual uint32_t LayersToFetch() { return 1; }

  // True if a fetch for the next layer finds room beside the experts of the running one.
  virtual bool HasRoomAhead() const { return true; }

  // True if the running layer waits for transfers on the link, so that any new request arrives later.
  virtual bool IsBehind() const { return false; }
};

// Counters and properties of an expert cache.
//
// Thread safety: thread-compatible; belongs to the engine thread.

// Monotonic counters of one layer or of all.
struct ResidencyCounters {
  uint64_t requests = 0;  // (layer, expert) demands
  uint64_t hits = 0;      // of these: resident when the router chose them
  uint64_t late = 0;      // of these: in transfer then
  uint64_t cpu = 0;       // of these: computed by the CPU in place
  uint64_t prefetch_issued = 0;
  uint64_t prefetch_useful = 0;  // hits that a prefetch of the same step requested
  uint64_t no_room = 0;          // fills refused because weightd had no room
  uint64_t bytes_touched = 0;    // bytes of weights returned by Next()
  uint64_t bytes_dram = 0;       // of these: read in place from weightd's DRAM
  uint64_t bytes_link = 0;       // copied to the device
  uint64_t bytes_ssd = 0;        // read from SSD
};

// Counters by layer, and for all layers.
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

// Monotonic counters of one layer of a neuron cache.
struct NeuronCounters {
  uint64_t requests = 0;    // neurons active in any row of a demanded expert
  uint64_t hits = 0;        // of these: resident when that was known
  uint64_t fetched = 0;     // neurons requested then
  uint64_t left_out = 0;    // active neurons that were not computed
  uint64_t prefetched = 0;  // neurons requested by predictors
  uint64_t copied_all = 0;  // experts whose missing neurons came in one copy
  uint64_t bytes = 0;       // bytes over the link, without leads

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

// Properties of a neuron cache.
struct NeuronCacheFacts {
  uint64_t slots = 0;
  bool leads_stay = false;    // leads of all experts stay in device memory
  double copy_all_share = 0;  // share of an expert's neurons: if more are missing, all travel in one copy
};

struct ResidencyStats {
  uint64_t held = 0;  // leases or slots held now; 0 between steps on `host`
  ResidencyCounters total;
  absl::Span<const ResidencyCounters> layers;    // the same by layer
  absl::Span<const NeuronCounters> neurons;      // by layer; empty in a cache of whole experts
  std::optional<NeuronCacheFacts> neuron_cache;  // none in a cache of whole experts
};

}  // namespace sluice::inferd
