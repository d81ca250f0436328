#include "inferd/calibrate/cache_stage.h"

#include <algorithm>
#include <numeric>

#include "common/base/status.h"
#include "inferd/calibrate/calibration_stage.h"
#include "inferd/policy/cache_allocation.h"

namespace sluice::inferd {
namespace {

// Writes the indices of the `count` largest values, best first, ties to the lower index as in routers.
void Largest(const float* values, uint32_t size, uint32_t count, uint16_t* places) {
  std::vector<uint16_t> order(size);
  std::iota(order.begin(), order.end(), uint16_t{0});
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](uint16_t a, uint16_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  });
  std::copy_n(order.begin(), count, places);
}

}  // namespace

CacheStage::CacheStage(const ModelConfig& config, const ProfileKeys& keys,
                       const std::vector<CalibrationWindow>& windows, uint64_t count, WindowHost* host)
    : config_(config),
      keys_(keys),
      windows_(windows),
      count_(count),
      host_(host),
      place_of_(config.layers.size()),
      layers_(config.layers.size()),
      named_(config.layers.size()) {
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    place_of_[layer] = static_cast<uint32_t>(routed_.size());
    if (config.layers[layer].moe.experts > 0) routed_.push_back(layer);
  }
}

absl::Status CacheStage::RunUnit(uint64_t unit) {
  if (unit == 0) {
    // The previous stage may have set a sparsity.
    RETURN_IF_ERROR(host_->UseSparsity({}, ""));
  }
  for (auto& layer : named_) {
    for (std::vector<uint16_t>& depth : layer) depth.clear();
  }
  return host_->Run(windows_[unit], {.observer = this, .loss = false}).status();
}

absl::Status CacheStage::AfterRouter(const RouterState& state) {
  const Routing& routing = state.routing;
  Layer& layer = layers_[state.layer];
  Compare(state);
  for (uint32_t token = 0; token < routing.tokens; ++token) {
    const int32_t* ids = routing.ids + uint64_t{token} * routing.ranks;
    const float* weights = routing.weights + uint64_t{token} * routing.ranks;
    for (uint32_t rank = 0; rank < routing.top_k; ++rank) {
      layer.chosen.push_back(static_cast<uint16_t>(ids[rank]));
    }
    const double sum = std::accumulate(weights, weights + routing.top_k, 0.0);
    const double rest = sum > 0 ? std::clamp(1 - double{weights[0]} / sum, 0.0, 1.0) : 0;
    layer.squares.push_back(static_cast<float>(rest * rest));
  }
  const uint32_t place = place_of_[state.layer];
  for (uint32_t depth = 1; depth <= kCacheDepths && place + depth < routed_.size(); ++depth) {
    RETURN_IF_ERROR(Predict(state, routed_[place + depth], depth));
  }
  return absl::OkStatus();
}

void CacheStage::Compare(const RouterState& state) {
  const Routing& routing = state.routing;
  Layer& layer = layers_[state.layer];
  for (uint32_t depth = 0; depth < kCacheDepths; ++depth) {
    const std::vector<uint16_t>& named = named_[state.layer][depth];
    if (named.size() != uint64_t{routing.tokens} * routing.top_k) continue;
    for (uint64_t i = 0; i < named.size(); ++i) {
      const auto begin = named.begin() + static_cast<std::ptrdiff_t>(i / routing.top_k * routing.top_k);
      const int32_t chosen = routing.ids[i / routing.top_k * routing.ranks + i % routing.top_k];
      layer.right[depth] += std::find(begin, begin + routing.top_k, chosen) != begin + routing.top_k;
    }
    layer.wanted[depth] += named.size();
  }
}

// Predicts by the logits alone. The correction that some models add for the choice is ignored, as in the
// serving predictor.
absl::Status CacheStage::Predict(const RouterState& state, uint32_t target, uint32_t depth) {
  const WindowRunner& runner = host_->runner();
  const ModelParts& parts = runner.parts();
  const LayerWeights& weights = parts.weights->layer(target);
  const MoeConfig& moe = config_.layers[target].moe;
  const MatMulPart router[] = {{weights.router, runner.scratch(0), weights.router_bias}};
  MatMulArgs args;
  args.x = state.residual;
  args.tokens = state.routing.tokens;
  args.cols = config_.hidden;
  args.norm = weights.RouterNorm();
  args.parts = router;
  RETURN_IF_ERROR(parts.backend->queue().MatMul(args));
  logits_.resize(uint64_t{args.tokens} * moe.experts);
  RETURN_IF_ERROR(runner.Read(runner.scratch(0), args.tokens, moe.experts, logits_.data()));
  std::vector<uint16_t>& named = named_[target][depth - 1];
  named.resize(uint64_t{args.tokens} * moe.top_k);
  for (uint64_t row = 0; row < args.tokens; ++row) {
    Largest(logits_.data() + row * moe.experts, moe.experts, moe.top_k, named.data() + row * moe.top_k);
  }
  return absl::OkStatus();
}

void CacheStage::Save(std::string* out) const {
  for (const Layer& layer : layers_) {
    AppendValue(uint64_t{layer.chosen.size()}, out);
    AppendValues(layer.chosen, out);
    AppendValue(uint64_t{layer.squares.size()}, out);
    AppendValues(layer.squares, out);
    AppendValue(layer.right, out);
    AppendValue(layer.wanted, out);
  }
}

absl::Status CacheStage::Load(ByteReader* reader) {
  for (Layer& layer : layers_) {
    uint64_t count = 0;
    RETURN_IF_ERROR(reader->Take(&count));
    RETURN_IF_ERROR(reader->TakeMany(count, &layer.chosen));
    RETURN_IF_ERROR(reader->Take(&count));
    RETURN_IF_ERROR(reader->TakeMany(count, &layer.squares));
    RETURN_IF_ERROR(reader->Take(&layer.right));
    RETURN_IF_ERROR(reader->Take(&layer.wanted));
  }
  return absl::OkStatus();
}

LayerCacheProfile CacheStage::ProfileOf(uint32_t layer) const {
  const MoeConfig& moe = config_.layers[layer].moe;
  LayerCacheProfile profile;
  if (moe.experts == 0) return profile;
  StackDistances distances(moe.experts);
  std::vector<uint32_t> used;  // better experts count as used later
  for (uint64_t i = 0; i < layers_[layer].chosen.size(); i += moe.top_k) {
    const auto begin = layers_[layer].chosen.begin() + static_cast<std::ptrdiff_t>(i);
    used.assign(std::make_reverse_iterator(begin + moe.top_k), std::make_reverse_iterator(begin));
    distances.Add(used);
  }
  profile.accesses = distances.accesses();
  for (uint32_t slots = 1; slots <= moe.experts; ++slots) {
    profile.distances.push_back(distances.Hits(slots) - distances.Hits(slots - 1));
  }
  std::vector<float> squares = layers_[layer].squares;
  std::sort(squares.begin(), squares.end());
  profile.squares = Percentiles(squares, LayerCacheProfile::kPoints);
  for (uint32_t depth = 0; depth < kCacheDepths; ++depth) {
    const uint64_t wanted = layers_[layer].wanted[depth];
    profile.accuracy[depth] =
        wanted == 0 ? 0 : static_cast<double>(layers_[layer].right[depth]) / static_cast<double>(wanted);
  }
  return profile;
}

absl::StatusOr<std::map<std::string, std::string>> CacheStage::Finish() {
  CacheProfile profile{keys_.source_digest, PositionsOf(windows_, count_), {}};
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) profile.layers.push_back(ProfileOf(layer));
  return std::map<std::string, std::string>{{kCacheName, SerializeCacheProfile(profile)}};
}

}  // namespace sluice::inferd
