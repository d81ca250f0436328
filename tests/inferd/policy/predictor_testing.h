// Fixtures for predictors: two layers of two experts of four neurons, and a residency that records requests.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "inferd/policy/neuron_predictor.h"
#include "inferd/policy/prefetcher.h"
#include "inferd/policy/sparsity.h"
#include "kernels/reference/reference_backend.h"

namespace sluice::inferd {

// Records requests; has the leads given to it.
class AskedResidency final : public ExpertPrefetch {
 public:
  struct Asked {
    uint32_t layer = 0;
    uint32_t expert = 0;
    std::vector<uint32_t> neurons;
    bool operator==(const Asked&) const = default;
  };

  bool IsResident(uint32_t, uint32_t) const override { return false; }
  double NeuronShare(uint32_t layer, uint32_t expert) const override {
    const auto found = shares.find({layer, expert});
    return found == shares.end() ? 0 : found->second;
  }
  bool IsBehind() const override { return behind; }
  void SetLeadListener(LeadListener* told) override { listener = told; }
  bool IsComing(uint32_t, uint32_t) const override { return all_coming; }
  bool AllResident(uint32_t) const override { return all_resident; }
  void Prefetch(uint32_t layer, uint32_t expert) override { experts.emplace_back(layer, expert); }
  void PrefetchNeurons(uint32_t layer, uint32_t expert, absl::Span<const uint32_t> wanted) override {
    neurons.push_back({layer, expert, {wanted.begin(), wanted.end()}});
  }
  std::optional<WeightView> Lead(uint32_t layer, uint32_t expert) const override {
    const auto found = leads.find({layer, expert});
    return found == leads.end() ? std::nullopt : std::optional<WeightView>(found->second);
  }
  bool LinkIdle() override { return link_idle; }
  uint32_t LayersToFetch() override { return layers_to_fetch + static_cast<uint32_t>(experts.size()); }

  bool all_resident = false;
  bool behind = false;
  LeadListener* listener = nullptr;
  std::map<std::pair<uint32_t, uint32_t>, double> shares;  // of neurons
  bool all_coming = false;
  bool link_idle = true;
  uint32_t layers_to_fetch = 1;  // plus one for each requested expert
  std::map<std::pair<uint32_t, uint32_t>, WeightView> leads;
  std::vector<Asked> neurons;
  std::vector<std::pair<uint32_t, uint32_t>> experts;
};

// Two layers of two experts of four neurons over a residual of two values.
class PredictorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    BackendLimits limits;
    limits.max_tokens = 40;
    limits.max_cols = 8;
    limits.hidden = 2;
    limits.max_context = 8;
    limits.experts = 3;
    limits.top_k = 2;
    limits.expert_width = 4;
    backend_ = std::make_unique<ReferenceBackend>(limits);
    config_.hidden = 2;
    config_.layers.resize(2);
    for (LayerConfig& layer : config_.layers) {
      layer.moe.experts = 2;
      layer.moe.top_k = 1;
      layer.moe.expert_width = 4;
    }
    layers_.resize(2);
    for (LayerWeights& layer : layers_) layer.ffn_norm = {Floats({1, 1}), 0.0f};
  }

  BufferRef Floats(const std::vector<float>& values) {
    const BufferRef at = {*backend_->Allocate(values.size() * sizeof(float), BufferKind::kStaging), 0};
    EXPECT_TRUE(backend_->queue().Upload(values.data(), values.size() * sizeof(float), at).ok());
    return at;
  }
  Rows RowsOf(const std::vector<float>& values) { return {Floats(values), 2}; }

  // A lead of four neurons, in bf16: the values below are exact.
  WeightView LeadOf(const std::vector<float>& values) {
    std::vector<uint16_t> bits;
    for (const float value : values)
      bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
    const BufferRef at = {*backend_->Allocate(bits.size() * 2, BufferKind::kTables), 0};
    EXPECT_TRUE(backend_->queue().Upload(bits.data(), bits.size() * 2, at).ok());
    return {EncodingDescriptor{.encoding = Encoding::kBf16}, at, 4, 4, 2, {}};
  }

  // Routes every row to one expert (weight 1 unless given).
  RouterState MakeState(uint32_t layer, const Rows& residual, const Rows& normed, std::vector<int32_t> ids,
                        std::vector<float> weights = {}, uint32_t top_k = 1, uint64_t step = 8) {
    ids_ = std::move(ids);
    weights_ = weights.empty() ? std::vector<float>(ids_.size(), 1.0f) : std::move(weights);
    const uint32_t tokens = static_cast<uint32_t>(ids_.size()) / top_k;
    if (batch_.step() != step || batch_.tokens() != tokens) {
      batch_.Clear(step);
      batch_.Add(std::vector<int32_t>(tokens, 1), {.pages = pages_});
    }
    return {layer, residual, normed, {tokens, top_k, top_k, ids_.data(), weights_.data()}, &batch_, {}};
  }

  std::unique_ptr<NeuronPredictor> Neurons(SparsityOrder order, double threshold,
                                           NeuronPredictorOptions options = {}) {
    SparsityConfig sparsity;
    sparsity.order = order;
    sparsity.threshold = threshold;
    sparsity_ = *SparsityPolicy::Create(sparsity, config_, "", "");
    options.order = order;
    options.max_rows = 4;
    options.count_every = 1;
    // A norm that leaves its input as it is, so that products can be told by hand.
    for (LayerWeights& layer : layers_) layer.ffn_norm = {Floats({1e6f, 1e6f}), 1e12f};
    auto made =
        NeuronPredictor::Create(options, {&config_, &layers_, backend_.get(), sparsity_.get(), &residency_});
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  std::unique_ptr<Backend> backend_;
  ModelConfig config_;
  std::vector<LayerWeights> layers_;
  AskedResidency residency_;
  std::unique_ptr<SparsityPolicy> sparsity_;
  const std::vector<uint32_t> pages_ = {0};
  StepBatch batch_{40, 2};
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
};

}  // namespace sluice::inferd
