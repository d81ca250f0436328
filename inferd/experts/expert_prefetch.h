// Prefetch interface of predictors: requests for experts of later layers, and the state of the link.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "inferd/experts/residency_view.h"
#include "kernels/backend.h"

namespace sluice::inferd {

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

}  // namespace sluice::inferd
