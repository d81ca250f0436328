// Router: the tokens of a call are tiles of one region.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/top_k.h"
#include "kernels/scalar_math.h"

namespace sluice::cpu {
namespace {

// Scratch of one token: two rows of values for the experts, two for the groups (at most as many).
struct RouterScratch {
  float* scores;
  float* choice;
  float* group_values;
  int32_t* group_ids;
  RouterScratch(float* memory, uint32_t experts)
      : scores(memory),
        choice(memory + experts),
        group_values(memory + 2 * uint64_t{experts}),
        group_ids(reinterpret_cast<int32_t*>(memory + 3 * uint64_t{experts})) {}
};

// exp of one value: the lane sum of a single term is the term.
float Exp(const KernelTable& kernels, float x) { return kernels.exp_sum(&x, 0.0f, 1, nullptr); }

// softmax_topk without corrections and groups, which needs only the chosen values and the sum.
void SoftmaxTopK(const KernelTable& kernels, const RouterCall& call, const float* logits, int32_t* ids,
                 float* weights) {
  TopK best(call.top_k, ids, weights);
  for (uint32_t e = 0; e < call.experts; ++e) {
    best.Offer(static_cast<int32_t>(e), logits[e]);
  }
  const float largest = weights[0];
  const float total = kernels.exp_sum(logits, largest, call.experts, nullptr);
  for (uint32_t k = 0; k < call.top_k; ++k) {
    weights[k] = Exp(kernels, weights[k] - largest) / total;
  }
}

float GroupScoreOf(const RouterCall& call, const float* values, uint32_t size) {
  int32_t ids[2];
  float two[2];
  const bool sum = call.group_score == GroupScore::kTopTwoSum;
  TopK best(sum ? 2 : 1, ids, two);
  for (uint32_t i = 0; i < size; ++i) {
    best.Offer(static_cast<int32_t>(i), values[i]);
  }
  return sum ? two[0] + two[1] : two[0];
}

// Fills ids with the best experts by `choice`, of the best groups if there are groups.
void Choose(const RouterCall& call, const float* choice, const RouterScratch& scratch, int32_t* ids,
            float* values) {
  const uint32_t groups = std::max(call.groups, 1u);
  const uint32_t size = call.experts / groups;
  const uint32_t top_groups = call.groups == 0 ? 1 : call.top_groups;
  TopK best_groups(top_groups, scratch.group_ids, scratch.group_values);
  for (uint32_t g = 0; g < groups; ++g) {
    best_groups.Offer(static_cast<int32_t>(g),
                      call.groups == 0 ? 0.0f : GroupScoreOf(call, choice + uint64_t{g} * size, size));
  }
  std::sort(scratch.group_ids, scratch.group_ids + top_groups);
  TopK best(call.top_k, ids, values);
  for (uint32_t i = 0; i < top_groups; ++i) {
    const uint32_t first = static_cast<uint32_t>(scratch.group_ids[i]) * size;
    for (uint32_t e = first; e < first + size; ++e) {
      best.Offer(static_cast<int32_t>(e), choice[e]);
    }
  }
}

// softmax_topk, sigmoid_topk and sqrt_softplus_topk with all options; writes the scores of the chosen to
// `weights`.
void ByScore(const KernelTable& kernels, const RouterCall& call, uint32_t row, const float* logits,
             const RouterScratch& scratch, int32_t* ids, float* weights) {
  if (call.kind == RouterKind::kSigmoidTopK) {
    kernels.sigmoid(logits, call.experts, scratch.scores);
  } else if (call.kind == RouterKind::kSqrtSoftplusTopK) {
    kernels.exp_sum(logits, 0.0f, call.experts, scratch.scores);
    for (uint32_t e = 0; e < call.experts; ++e) {
      scratch.scores[e] = std::sqrt(SoftplusOf(logits[e], scratch.scores[e]));
    }
  } else {
    const float largest = kernels.largest(logits, call.experts);
    const float total = kernels.exp_sum(logits, largest, call.experts, scratch.scores);
    kernels.divide(scratch.scores, total, call.experts, scratch.scores);
  }
  const float* choice = call.ChoosesByLogit() ? logits : scratch.scores;
  if (call.correction != nullptr) {
    kernels.add(choice, call.correction, 1.0f, nullptr, call.experts, scratch.choice);
    choice = scratch.choice;
  }
  if (call.fixed.base == nullptr) {
    Choose(call, choice, scratch, ids, weights);
  }
  for (uint32_t k = 0; k < call.top_k && call.fixed.base != nullptr; ++k) {
    ids[k] = call.FixedExpert(row, k);
  }
  for (uint32_t k = 0; k < call.top_k; ++k) {
    weights[k] = scratch.scores[ids[k]];
  }
}

void Normalize(const RouterCall& call, float* weights) {
  float chosen = 0;
  for (uint32_t k = 0; k < call.top_k; ++k) {
    chosen = chosen + weights[k];
  }
  if (call.HasOwnScores()) {
    chosen = chosen + call.norm_epsilon;
  }
  for (uint32_t k = 0; k < call.top_k; ++k) {
    weights[k] = weights[k] / chosen;
  }
}

// topk_softmax and sigmoid_input.
void ByLogit(const KernelTable& kernels, const RouterCall& call, const float* logits, int32_t* ids,
             float* weights) {
  TopK best(call.top_k, ids, weights);
  for (uint32_t e = 0; e < call.experts; ++e) {
    best.Offer(static_cast<int32_t>(e), logits[e]);
  }
  if (call.kind == RouterKind::kSigmoidInput) {
    return kernels.sigmoid(weights, call.top_k, weights);
  }
  const float total = kernels.exp_sum(weights, weights[0], call.top_k, weights);
  kernels.divide(weights, total, call.top_k, weights);
}

void SparseMixer(const KernelTable& kernels, const RouterCall& call, const float* logits,
                 const RouterScratch& scratch, int32_t* ids, float* weights) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  TopK best(2, ids, weights);
  for (uint32_t e = 0; e < call.experts; ++e) {
    best.Offer(static_cast<int32_t>(e), logits[e]);
  }
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const float m = weights[rank];
    for (uint32_t e = 0; e < call.experts; ++e) {
      const bool taken = rank == 1 && static_cast<int32_t>(e) == ids[0];
      const bool masked = (m - logits[e]) / std::max(std::fabs(logits[e]), m) > 2 * call.jitter;
      scratch.scores[e] = taken || masked ? kMasked : logits[e];
    }
    weights[rank] = 1.0f / kernels.exp_sum(scratch.scores, m, call.experts, nullptr);
  }
}

void RouteToken(const KernelTable& kernels, const RouterCall& call, uint32_t row, const float* logits,
                const RouterScratch& scratch, int32_t* ids, float* weights) {
  const bool chosen_by_logit = call.ChoosesByLogit() && call.groups == 0;
  switch (call.kind) {
    case RouterKind::kSoftmaxTopK:
    case RouterKind::kSigmoidTopK:
    case RouterKind::kSqrtSoftplusTopK:
      if (chosen_by_logit) {
        SoftmaxTopK(kernels, call, logits, ids, weights);
      } else {
        ByScore(kernels, call, row, logits, scratch, ids, weights);
      }
      if (call.norm_topk_prob) {
        Normalize(call, weights);
      }
      break;
    case RouterKind::kTopKSoftmax:
    case RouterKind::kSigmoidInput:
      ByLogit(kernels, call, logits, ids, weights);
      break;
    case RouterKind::kSparseMixer:
      SparseMixer(kernels, call, logits, scratch, ids, weights);
      break;
  }
}

}  // namespace

void Run(Device& d, const RouterCall& call) {
  const uint64_t work = uint64_t{call.tokens} * call.experts * (call.top_k + 8);
  d.tiles.Run(call.tokens, work, [&](uint32_t t, uint32_t worker) {
    int32_t* ids = call.ids + uint64_t{t} * call.Ranks();
    float* weights = call.weights + uint64_t{t} * call.Ranks();
    RouteToken(d.kernels, call, t, call.logits.Row(t),
               RouterScratch(d.space.workers[worker].any, call.experts), ids, weights);
    for (uint32_t k = 0; k < call.top_k; ++k) {
      weights[k] = weights[k] * call.routed_scale;
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
      weights[call.top_k] = 1.0f;
      if (call.shared_logits.base != nullptr) {
        d.kernels.sigmoid(call.shared_logits.Row(t), 1, weights + call.top_k);
      }
    }
  });
}

// MoeExperts, also for experts that ids name, with the part Experts; and ExpertLeads: the lead part alone, in
// tiles of one block of 64 neurons, for all rows of an expert. Lead values have the same bits as in
// MoeExperts, because dot products do not depend on the rows computed with them.

namespace {

void LeadTile(Device& d, const ExpertLeadsCall& call, const LeadCallPart& expert, uint32_t block,
              uint32_t worker) {
  const uint32_t first = block * kNeuronBlock;
  const uint32_t neurons = std::min(kNeuronBlock, expert.lead.rows - first);
  const auto rows = static_cast<uint32_t>(expert.rows.size());
  const uint8_t* w[kNeuronBlock];
  for (uint32_t j = 0; j < neurons; ++j) {
    w[j] = expert.lead.Row(first + j);
  }
  // Written to the tile first, since a kernel may write whole vectors.
  float* const* y = d.space.workers[worker].rows[0];
  d.lists.Dot({expert.lead.encoding, expert.lead.cols, w, neurons, 0}, expert.rows, worker, y);
  FactorCall factor;
  factor.activation = call.activation;
  factor.bias = expert.bias == nullptr ? nullptr : expert.bias + first;
  factor.n = neurons;
  uint64_t active = 0;
  for (uint32_t i = 0; i < rows; ++i) {
    factor.x = factor.y = y[i];
    call.up ? d.kernels.up_factor(factor) : d.kernels.gate_factor(factor);
    active |= d.kernels.keep_mask(y[i], neurons, expert.threshold);
    std::memcpy(expert.values.Row(i) + first, y[i], neurons * sizeof(float));
  }
  if (expert.active != nullptr) {
    expert.active[block] = active;
  }
}

}  // namespace

void Run(Device& d, const ExpertLeadsCall& call) {
  uint32_t tiles = 0;
  uint64_t work = 0;
  for (const LeadCallPart& expert : call.experts) {
    d.rounded.RequestForm(expert.lead.encoding);
    tiles += (expert.lead.rows + kNeuronBlock - 1) / kNeuronBlock;
    work += uint64_t{expert.lead.rows} * call.hidden * expert.rows.size();
  }
  for (uint32_t t = 0; t < call.tokens; ++t) {
    d.space.x_rows[t] = call.x.Row(t);
  }
  d.rounded.Make(d.space.x_rows, call.tokens, call.hidden);
  d.tiles.Run(tiles, work, [&](uint32_t tile, uint32_t worker) {
    size_t e = 0;
    for (uint32_t blocks = 0;; tile -= blocks, ++e) {
      blocks = (call.experts[e].lead.rows + kNeuronBlock - 1) / kNeuronBlock;
      if (tile < blocks) {
        break;
      }
    }
    LeadTile(d, call, call.experts[e], tile, worker);
  });
}

void Run(Device& d, const MoeExpertsCall& call) { d.experts.Run(call); }

void Run(Device& d, const RoutedExpertsCall& call) { Run(d, GroupByExpert(call)); }

void Run(Device& d, const RoutedLeadsCall& call) { Run(d, AsLeads(call)); }

}  // namespace sluice::cpu
