// ModelTable: decides which of several models are loaded: which one a waiting request loads, which idle one
// makes room, and which has been idle for too long. It starts nothing; the router (model_router.h) carries
// out its steps.
//
// A model takes memory of two kinds while it is loaded: that of its inferd, and the weights that its session
// reserves within weightd's budget. Both sums stay within their budgets. Waiting requests load their models
// in the order of their arrival, so none starves: where others must make room, the idle ones do so first, the
// least recently used one before the others; a busy one gets no new requests and is unloaded when its running
// ones have ended.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sluice::cli {

// Bytes that a loaded model takes.
struct ModelNeed {
  uint64_t memory = 0;    // of its inferd: KV cache, activations, and what lies on a device
  uint64_t reserved = 0;  // within weightd's DRAM budget: dense weights, and experts in use
};

enum class ModelState : uint8_t { kUnloaded, kLoading, kLoaded, kUnloading };
// "unloaded", "loading", "loaded" or "unloading".
const char* NameOf(ModelState state);

class ModelTable {
 public:
  // `idle`: a loaded model without requests is unloaded after this; infinite: never.
  ModelTable(ModelNeed budget, absl::Duration idle) : budget_(budget), idle_(idle) {}

  // Adds the model with number size(). RESOURCE_EXHAUSTED with the numbers if it exceeds a budget alone.
  absl::Status Add(const std::string& name, ModelNeed need);
  size_t size() const { return models_.size(); }
  ModelState state(size_t model) const { return models_[model].state; }
  size_t running(size_t model) const { return models_[model].running; }
  size_t waiting(size_t model) const { return models_[model].waiting.size(); }
  const ModelNeed& need(size_t model) const { return models_[model].need; }
  const ModelNeed& budget() const { return budget_; }
  // The sum of all models that are not unloaded.
  ModelNeed Used() const;

  // A request waits for `model`. Returns its ticket, for Leave().
  uint64_t Wait(size_t model);
  // The request waits no longer.
  void Leave(size_t model, uint64_t ticket) { models_[model].waiting.erase(ticket); }
  // True if a request may run now: the model is loaded and makes no room for another one.
  bool MayRun(size_t model) const {
    return models_[model].state == ModelState::kLoaded && !models_[model].yields;
  }
  // A request begins and ends to run.
  void Began(size_t model, absl::Time now);
  void Ended(size_t model, absl::Time now);

  // Results of a step: the model serves, it serves no more but its process runs, its process has ended.
  void Loaded(size_t model, absl::Time now);
  void Stalled(size_t model) { models_[model].state = ModelState::kLoading; }
  void Gone(size_t model);

  struct Step {
    size_t model = 0;
    bool load = false;  // else unload
  };
  // The next step, which the table takes as begun; none if there is nothing to do. Let waiting requests run
  // before.
  std::optional<Step> Next(absl::Time now);
  // When Next() may have a step although nothing happened; infinite future: never.
  absl::Time NextDue() const;

 private:
  struct Model {
    std::string name;
    ModelNeed need;
    ModelState state = ModelState::kUnloaded;
    bool yields = false;  // makes room for another model: no new requests
    size_t running = 0;
    std::set<uint64_t> waiting;  // tickets
    absl::Time used;             // last begin or end of a request
  };

  bool IsIdle(const Model& model) const { return model.running == 0 && model.waiting.empty(); }
  // The model whose request has waited longest among those that are not loaded; size() if none.
  size_t FirstWanted() const;
  // Marks the models that make room for `wanted`.
  void ChooseYielding(size_t wanted);
  Step Begin(size_t model, bool load);

  const ModelNeed budget_;
  const absl::Duration idle_;
  std::vector<Model> models_;
  uint64_t next_ticket_ = 0;
};

}  // namespace sluice::cli
