// ARITHMETIC.md section 4.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/expert_cut.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"

namespace sluice::reference {
namespace {

// The best `k` of the values with takes_part, best first, ties to the lower index.
std::vector<uint32_t> BestOf(const std::vector<float>& values, std::vector<bool> takes_part, uint32_t k) {
  std::vector<uint32_t> best;
  while (best.size() < k) {
    size_t choice = values.size();
    for (size_t i = 0; i < values.size(); ++i) {
      if (takes_part[i] && (choice == values.size() || values[i] > values[choice])) {
        choice = i;
      }
    }
    takes_part[choice] = false;
    best.push_back(static_cast<uint32_t>(choice));
  }
  return best;
}

std::vector<uint32_t> BestOf(const std::vector<float>& values, uint32_t k) {
  return BestOf(values, std::vector<bool>(values.size(), true), k);
}

std::vector<float> Softmax(const std::vector<float>& logits) {
  const float m = *std::max_element(logits.begin(), logits.end());
  std::vector<float> p;
  LaneSum sum;
  for (size_t i = 0; i < logits.size(); ++i) {
    p.push_back(Exp(logits[i] - m));
    sum.Add(i, p[i]);
  }
  for (float& value : p) {
    value = value / sum.Total();
  }
  return p;
}

// True for the experts that are in the best groups.
std::vector<bool> InBestGroups(const RouterCall& call, const std::vector<float>& values) {
  if (call.groups == 0) {
    return std::vector<bool>(call.experts, true);
  }
  const uint32_t size = call.experts / call.groups;
  std::vector<float> scores;
  for (uint32_t g = 0; g < call.groups; ++g) {
    const std::vector<float> group(values.begin() + g * size, values.begin() + (g + 1) * size);
    if (call.group_score == GroupScore::kMax) {
      scores.push_back(group[BestOf(group, 1)[0]]);
    } else {
      const std::vector<uint32_t> two = BestOf(group, 2);
      scores.push_back(group[two[0]] + group[two[1]]);
    }
  }
  std::vector<bool> in(call.experts, false);
  for (const uint32_t g : BestOf(scores, call.top_groups)) {
    std::fill_n(in.begin() + g * size, size, true);
  }
  return in;
}

struct Routed {
  std::vector<uint32_t> experts;
  std::vector<float> weights;
};

// softmax_topk and sigmoid_topk.
Routed RouteByScore(const RouterCall& call, const std::vector<float>& logits) {
  const bool sigmoid = call.kind == RouterKind::kSigmoidTopK;
  std::vector<float> scores = logits;
  if (sigmoid) {
    std::transform(logits.begin(), logits.end(), scores.begin(), Sigmoid);
  } else {
    scores = Softmax(logits);
  }
  std::vector<float> choice = call.ChoosesByLogit() ? logits : scores;
  for (uint32_t i = 0; i < call.experts && call.correction != nullptr; ++i) {
    choice[i] = choice[i] + call.correction[i];
  }
  Routed routed;
  routed.experts = BestOf(choice, InBestGroups(call, choice), call.top_k);
  float chosen = 0;
  for (const uint32_t expert : routed.experts) {
    chosen = chosen + scores[expert];
  }
  if (sigmoid) {
    chosen = chosen + call.norm_epsilon;
  }
  for (const uint32_t expert : routed.experts) {
    routed.weights.push_back(call.norm_topk_prob ? scores[expert] / chosen : scores[expert]);
  }
  return routed;
}

// topk_softmax and sigmoid_input.
Routed RouteByLogit(const RouterCall& call, const std::vector<float>& logits) {
  Routed routed;
  routed.experts = BestOf(logits, call.top_k);
  for (const uint32_t expert : routed.experts) {
    routed.weights.push_back(logits[expert]);
  }
  if (call.kind == RouterKind::kTopKSoftmax) {
    routed.weights = Softmax(routed.weights);
  } else {
    std::transform(routed.weights.begin(), routed.weights.end(), routed.weights.begin(), Sigmoid);
  }
  return routed;
}

Routed SparseMixer(const RouterCall& call, const std::vector<float>& logits) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  Routed routed;
  std::vector<float> left = logits;
  for (int rank = 0; rank < 2; ++rank) {
    const uint32_t expert = BestOf(left, 1)[0];
    const float m = left[expert];
    std::vector<float> unmasked = left;
    for (uint32_t i = 0; i < call.experts; ++i) {
      if ((m - logits[i]) / std::max(std::fabs(logits[i]), m) > 2 * call.jitter) {
        unmasked[i] = kMasked;
      }
    }
    routed.experts.push_back(expert);
    routed.weights.push_back(Softmax(unmasked)[expert]);
    left[expert] = kMasked;
  }
  return routed;
}

}  // namespace

void Run(Device&, const RouterCall& call) {
  for (uint32_t t = 0; t < call.tokens; ++t) {
    const std::vector<float> logits(call.logits.Row(t), call.logits.Row(t) + call.experts);
    const bool by_logit = call.kind == RouterKind::kTopKSoftmax || call.kind == RouterKind::kSigmoidInput;
    const Routed routed = call.kind == RouterKind::kSparseMixer ? SparseMixer(call, logits)
                          : by_logit                            ? RouteByLogit(call, logits)
                                                                : RouteByScore(call, logits);
    int32_t* ids = call.ids + uint64_t{t} * call.Ranks();
    float* weights = call.weights + uint64_t{t} * call.Ranks();
    for (uint32_t k = 0; k < call.top_k; ++k) {
      ids[k] = static_cast<int32_t>(routed.experts[k]);
      weights[k] = routed.weights[k] * call.routed_scale;
      if (call.expert_scale != nullptr) {
        weights[k] = weights[k] * call.expert_scale[ids[k]];
      }
    }
    if (call.cut) {
      const absl::Span<float> of_row(weights, call.top_k);
      KeepExperts(of_row, ExpertsKept(of_row, call.cut_sensitivity, call.cut_limit));
    }
    if (call.shared) {
      ids[call.top_k] = static_cast<int32_t>(call.experts);
      weights[call.top_k] = call.shared_logits.base == nullptr ? 1.0f : Sigmoid(call.shared_logits.Row(t)[0]);
    }
  }
}

}  // namespace sluice::reference
