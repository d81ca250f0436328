// Which experts are there: what routing policies and predictors may ask of whoever holds the experts.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>

namespace sluice {

// One routed expert of the current layer.
struct ExpertDemand {
  uint32_t expert = 0;
  uint32_t tokens = 0;  // rows routed to it
};

// Answers are hints: an expert may leave at any time.
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

}  // namespace sluice
