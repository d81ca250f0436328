// Thresholds of neuron sparsity by layer and expert, and counts of the neurons left out.
//
// FloE 3.2 (eq. 5-6): a threshold per expert from the empirical distribution of its lead value. Intra-expert
// sparsity: one threshold for the model from the pooled distribution of |silu(x.g)|; shared experts stay
// dense, so the routed ones must leave out more: (K n_ff + D_shared) / (K n_ff) x the target of the whole.
// CORM: one absolute threshold.
//
// Thread safety: Count() belongs to the engine thread; everything else may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/profile/threshold_tables.h"
#include "inferd/api/engine_api.h"
#include "inferd/policy/policies.h"
#include "kernels/backend.h"
#include "pack/pack.h"

namespace sluice::inferd {

class SparsityPolicy {
 public:
  // `profile_dir`: the output folder of `sluice calibrate`; read only to look up a target. NOT_FOUND naming
  // the command that makes a profile if there is none, FAILED_PRECONDITION if it is another model's.
  // INVALID_ARGUMENT if the routed experts of a layer would have to leave out more than everything, or so
  // much that the profile's tables cannot tell it from everything.
  static absl::StatusOr<std::unique_ptr<SparsityPolicy>> Create(const SparsityConfig& config,
                                                                const ModelConfig& model,
                                                                const std::string& profile_dir,
                                                                const std::string& model_id);

  SparsityOrder order() const { return order_; }
  bool enabled() const { return order_ != SparsityOrder::kNone; }
  // 0 if not enabled. REQUIRES: an expert of the layer.
  float threshold(uint32_t layer, uint32_t expert) const {
    return enabled() ? thresholds_[first_[layer] + expert] : 0.0f;
  }

  void Count(uint32_t layer, uint64_t neurons, uint64_t kept) {
    counts_[layer].neurons.fetch_add(neurons, std::memory_order_relaxed);
    counts_[layer].kept.fetch_add(kept, std::memory_order_relaxed);
  }
  // Counts by layer; empty if not enabled.
  std::vector<LayerSparsity> counts() const;

 private:
  struct AtomicCount {
    std::atomic<uint64_t> neurons{0};
    std::atomic<uint64_t> kept{0};
  };

  SparsityPolicy(SparsityOrder order, size_t layers) : order_(order), counts_(layers) {}

  const SparsityOrder order_;
  std::vector<uint32_t> first_;    // by layer: index of its first expert's threshold
  std::vector<float> thresholds_;  // by layer and expert
  std::vector<AtomicCount> counts_;
};

// Gives a backend the machine's measured break-even for computing masked experts densely
// (kernels/sparse_profile.h), for every kind of routed expert in a pack.
//
// Thread safety: a free function; called by the backend's owner, outside of a step.

// Reads measurements from `folder`, or makes and stores them: a few seconds for each kind of expert, once per
// machine. Returns a line for the log, empty without sparsity. Errors of LoadOrMeasureSparseSwitch; the
// backend then uses its defaults, which give the same results.
absl::StatusOr<std::string> SetUpSparseSwitches(const Pack& pack, const SparsityConfig& sparsity,
                                                const BackendLimits& limits, const std::string& folder,
                                                Backend& backend);

}  // namespace sluice::inferd
