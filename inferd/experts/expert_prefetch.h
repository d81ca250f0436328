// How predictors have experts of later layers brought, and what they must know about the way there.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "inferd/experts/residency_view.h"
#include "kernels/backend.h"

namespace sluice {

// Told of leads that were prefetched.
class LeadListener {
 public:
  virtual ~LeadListener() = default;
  // Some have come while the forward pass waits for something else, or the listener awaits the device: work
  // that reads them may be queued, and neurons asked for. An error ends the step.
  virtual absl::Status OnLeads() = 0;
  // Whether work that it queued is not known to be done, so that it is to be asked again soon.
  virtual bool AwaitsDevice() const { return false; }
};

class ExpertPrefetch : public ResidencyView {
 public:
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

  // All rows of the part whose product decides an expert's mask, if they lie on the device now. Who queues
  // what reads them says so before the cache is told of anything else (LeadRead).
  virtual std::optional<WeightView> Lead(uint32_t /*layer*/, uint32_t /*expert*/) const { return {}; }

  // What was queued before `used` reads the lead of this expert.
  virtual void LeadRead(uint32_t /*layer*/, uint32_t /*expert*/, Event /*used*/) {}

  // Whether nothing travels and nothing waits to, as far as is known here.
  virtual bool LinkIdle() { return false; }

  // How many layers will have passed when an expert that is asked for now has come: at least 1, which is also
  // said while nothing is known.
  virtual uint32_t LayersToFetch() { return 1; }

  // Whether what is fetched for the next layer finds room beside what the running one computes.
  virtual bool HasRoomAhead() const { return true; }

  // Whether what the running layer waits for is on the link, so that whatever else is asked for comes later.
  virtual bool IsBehind() const { return false; }
};

}  // namespace sluice
