#include "inferd/policy/miss_routing.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "inferd/model/model_shapes.h"

namespace sluice::inferd {

bool ProceedWith(absl::Span<const int32_t> predicted, const float* scores, absl::Span<int32_t> ids,
                 absl::Span<float> weights, absl::FunctionRef<bool(uint32_t)> there) {
  bool missing = false;
  for (size_t rank = 0; rank < ids.size(); ++rank) {
    missing = missing || (weights[rank] != 0.0f && !there(static_cast<uint32_t>(ids[rank])));
  }
  double sum = 0;
  size_t count = 0;
  for (const int32_t expert : predicted) {
    if (expert < 0 || count == ids.size()) continue;
    sum += scores[expert];
    ++count;
  }
  if (!missing || !(sum > 0)) return false;
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  size_t rank = 0;
  for (const int32_t expert : predicted) {
    if (expert >= 0 && rank < count) ids[rank++] = expert;
  }
  std::sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count),
            [&](int32_t a, int32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = i < count ? static_cast<float>(scores[ids[i]] / sum * all) : 0.0f;
  }
  return true;
}

absl::StatusOr<std::unique_ptr<MissRouting>> MissRouting::Create(Setup setup) {
  const ModelConfig& config = *setup.config;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const MoeConfig& moe = config.layers[layer].moe;
    if (moe.zero_experts > 0) {
      return absl::UnimplementedError(absl::StrCat("--policy expert_miss=proceed: layer ", layer, " has ",
                                                   moe.zero_experts, " experts that return their input"));
    }
    if (moe.experts > 0 && (ScalesInputs(moe) || !WeighsBySoftmax(moe.router))) {
      return absl::UnimplementedError(
          absl::StrCat("--policy expert_miss=proceed: the router of layer ", layer,
                       ScalesInputs(moe) ? " scales the experts' inputs" : " does not weigh by a softmax"));
    }
  }
  return std::unique_ptr<MissRouting>(new MissRouting(std::move(setup)));
}

MissRouting::MissRouting(Setup setup)
    : setup_(std::move(setup)),
      scores_(setup_.max_tokens, MaxExperts(*setup_.config)),
      wanted_ids_(uint64_t{setup_.max_tokens} * MaxRanks(*setup_.config)),
      wanted_weights_(wanted_ids_.size()),
      left_out_(MaxExperts(*setup_.config)),
      skipped_(setup_.config->layers.size()) {
  rows_.reserve(setup_.max_tokens);
}

absl::Status MissRouting::Choose(const RoutingInput& input, Queue* queue) {
  const RouterArgs& args = input.model;
  RETURN_IF_ERROR(setup_.inner->Choose(input, queue));
  rows_.clear();
  for (uint32_t row = 0; row < args.tokens; ++row) {
    if (input.batch->decodes(row) && !input.batch->lost(row)) rows_.push_back(row);
  }
  if (rows_.empty()) return absl::OkStatus();
  return scores_.Ask(args.logits, args.experts, rows_, queue);
}

absl::Status MissRouting::Decide(const RoutingInput& input, Queue* queue) {
  changed_ = false;
  const RouterArgs& args = input.model;
  RETURN_IF_ERROR(setup_.inner->Decide(input, queue));
  if (rows_.empty() || input.residency->AllResident(input.layer)) return absl::OkStatus();
  scores_.Take();
  const uint64_t ranks = args.top_k + (args.shared ? 1 : 0);
  const uint64_t bytes = args.tokens * ranks * sizeof(float);
  int32_t* ids = reinterpret_cast<int32_t*>(setup_.backend->HostWrite(args.ids, bytes));
  float* weights = reinterpret_cast<float*>(setup_.backend->HostWrite(args.weights, bytes));
  if (ids == nullptr || weights == nullptr) {
    return absl::InternalError("the router's staging memory cannot be written");
  }
  std::memcpy(wanted_ids_.data(), ids, bytes);
  std::memcpy(wanted_weights_.data(), weights, bytes);
  for (uint32_t i = 0; i < rows_.size(); ++i) {
    const uint64_t at = rows_[i] * ranks;
    changed_ |= ChooseRow(input, rows_[i], scores_.row(i), ids + at, weights + at);
  }
  if (changed_) CountSkipped(input, ids, weights);
  return absl::OkStatus();
}

bool MissRouting::ChooseRow(const RoutingInput& input, uint32_t row, const float* scores, int32_t* ids,
                            float* weights) {
  const uint32_t top_k = input.model.top_k;
  const auto there = [&](uint32_t expert) { return input.residency->IsComing(input.layer, expert); };
  if (setup_.predictions == nullptr) return false;
  return ProceedWith(setup_.predictions->Predicted(input.layer, row, input.batch->step()), scores,
                     absl::MakeSpan(ids, top_k), absl::MakeSpan(weights, top_k), there);
}

// Counts experts that rows chose and that none uses now.
void MissRouting::CountSkipped(const RoutingInput& input, const int32_t* ids, const float* weights) {
  const uint32_t top_k = input.model.top_k;
  const uint64_t ranks = top_k + (input.model.shared ? 1 : 0);
  std::fill(left_out_.begin(), left_out_.end(), 0);
  const auto mark = [&](const int32_t* of_ids, const float* of_weights, uint8_t value) {
    for (uint32_t row = 0; row < input.model.tokens; ++row) {
      for (uint64_t i = row * ranks; i < row * ranks + top_k; ++i) {
        if (of_weights[i] != 0.0f) left_out_[static_cast<uint32_t>(of_ids[i])] = value;
      }
    }
  };
  mark(wanted_ids_.data(), wanted_weights_.data(), 1);
  mark(ids, weights, 0);
  skipped_[input.layer] += static_cast<uint64_t>(std::count(left_out_.begin(), left_out_.end(), 1));
}

Routing MissRouting::Wanted(const Routing& computed) const {
  if (!changed_) return setup_.inner->Wanted(computed);
  Routing wanted = computed;
  wanted.ids = wanted_ids_.data();
  wanted.weights = wanted_weights_.data();
  return wanted;
}

}  // namespace sluice::inferd
