// The contract between users and holders of experts: which experts are resident, in transfer or to be
// fetched. ResidencyView tells routing policies and predictors which experts are resident.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>

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

}  // namespace sluice::inferd
