// ARITHMETIC.md section 4.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"
#include "kernels/scalar_math.h"
#include "pack/row_layout.h"

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

// softmax_topk, sigmoid_topk and sqrt_softplus_topk.
Routed RouteByScore(const RouterCall& call, uint32_t row, const std::vector<float>& logits) {
  std::vector<float> scores = logits;
  if (call.kind == RouterKind::kSigmoidTopK) {
    std::transform(logits.begin(), logits.end(), scores.begin(), Sigmoid);
  } else if (call.kind == RouterKind::kSqrtSoftplusTopK) {
    std::transform(logits.begin(), logits.end(), scores.begin(),
                   [](float x) { return std::sqrt(SoftplusOf(x, Exp(x))); });
  } else {
    scores = Softmax(logits);
  }
  std::vector<float> choice = call.ChoosesByLogit() ? logits : scores;
  for (uint32_t i = 0; i < call.experts && call.correction != nullptr; ++i) {
    choice[i] = choice[i] + call.correction[i];
  }
  Routed routed;
  routed.experts = BestOf(choice, InBestGroups(call, choice), call.top_k);
  for (uint32_t k = 0; k < call.top_k && call.fixed.base != nullptr; ++k) {
    routed.experts[k] = static_cast<uint32_t>(call.FixedExpert(row, k));
  }
  float chosen = 0;
  for (const uint32_t expert : routed.experts) {
    chosen = chosen + scores[expert];
  }
  if (call.HasOwnScores()) {
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
                                                                : RouteByScore(call, t, logits);
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

// ARITHMETIC.md section 3.

namespace {

// Adds sum of c[j] * down row j, j in [first, first + c.size()), to y: one block.
void AddPlainBlock(const CallWeights& down, uint32_t first, const std::vector<float>& c, float* y) {
  for (uint32_t h = 0; h < down.cols; ++h) {
    float s = 0;
    for (size_t j = 0; j < c.size(); ++j) {
      const uint8_t* row = down.Row(first + static_cast<uint32_t>(j));
      if (row != nullptr) {
        s = std::fma(c[j], PlainValue(down.encoding.encoding, row, h), s);
      }
    }
    y[h] = y[h] + (s + 0.0f);
  }
}

void AddQuantizedBlock(const CallWeights& down, uint32_t first, const std::vector<float>& c, float* y) {
  const EncodingDescriptor& e = down.encoding;
  std::vector<float> d(c.size());
  std::vector<int8_t> q(c.size());
  std::vector<int32_t> codes(e.group);
  std::vector<int32_t> s(e.group);  // of a group's columns
  for (uint32_t h0 = 0, g = 0; h0 < down.cols; h0 += e.group, ++g) {
    for (size_t j = 0; j < c.size(); ++j) {
      const uint8_t* row = down.Row(first + static_cast<uint32_t>(j));
      d[j] = row == nullptr ? 0.0f : c[j] * ScaleAt(e, row, down.cols, g);
    }
    const float sd = RoundToInt8(d.data(), d.size(), q.data());
    float z = 0;
    for (size_t j = 0; j < c.size(); ++j) {
      const uint8_t* row = down.Row(first + static_cast<uint32_t>(j));
      if (row != nullptr) {
        z = std::fma(static_cast<float>(q[j]), ZeroAt(e, row, down.cols, g), z);
      }
    }
    const uint32_t count = std::min<uint32_t>(e.group, down.cols - h0);
    std::fill(s.begin(), s.end(), 0);
    for (size_t j = 0; j < c.size(); ++j) {
      const uint8_t* row = down.Row(first + static_cast<uint32_t>(j));
      if (row != nullptr) {
        ReadCodes(e, row, down.cols, h0, count, codes.data());
        for (uint32_t h = 0; h < count; ++h) {
          s[h] += codes[h] * q[j];
        }
      }
    }
    for (uint32_t h = 0; h < count; ++h) {
      y[h0 + h] = y[h0 + h] + (sd * (static_cast<float>(s[h]) - (z + 0.0f)) + 0.0f);
    }
  }
}

// Dot product of row j with its bias.
float BiasedDot(const CallWeights& part, uint32_t j, const float* bias, const float* x) {
  const float dot = Dot(part.encoding, part.Row(j), x, part.cols);
  return bias == nullptr ? dot : dot + bias[j];
}

// The coefficient of neuron j for the expert's row i. Sets `kept` to true if the neuron counts.
float Coefficient(const ActivationSpec& activation, const ExpertCall& e, uint32_t j, size_t i, const float* x,
                  bool* kept) {
  *kept = !e.HasLists() || e.Has(j);
  if (!*kept) {
    return 0;
  }
  const float* made = e.lead_values.base == nullptr ? nullptr : e.lead_values.Row(i);
  const bool up_made = made != nullptr && e.sparsity == SparsityOrder::kUp;
  const bool gate_made = made != nullptr && !up_made;
  const float up = up_made ? made[j] : UpFactor(activation, BiasedDot(e.up, j, e.up_bias, x));
  const float gate = gate_made ? made[j] : GateFactor(activation, BiasedDot(e.gate, j, e.gate_bias, x));
  const float c = gate * up;
  const float lead = e.sparsity == SparsityOrder::kUp ? up : e.sparsity == SparsityOrder::kGate ? gate : c;
  *kept = e.sparsity == SparsityOrder::kNone || !(std::fabs(lead) < e.threshold);
  return *kept ? c : 0.0f;
}

// Down by outputs: a dot product of all coefficients for each output. Returns the number of neurons that
// counted.
uint32_t ComputeOutputs(const ActivationSpec& activation, const ExpertCall& e, uint32_t hidden, size_t row,
                        const float* x, float* y) {
  uint32_t active = 0;
  std::vector<float> c(e.up.rows);
  for (uint32_t j = 0; j < e.up.rows; ++j) {
    bool kept = false;
    c[j] = Coefficient(activation, e, j, row, x, &kept);
    active += kept ? 1 : 0;
  }
  for (uint32_t h = 0; h < hidden; ++h) {
    y[h] = BiasedDot(e.down, h, e.down_bias, c.data());
  }
  return active;
}

// Returns the number of neurons that counted.
uint32_t ComputeExpertRow(const ActivationSpec& activation, const ExpertCall& e, uint32_t hidden, size_t row,
                          const float* x, float* y) {
  if (e.neuron_begin == 0) {
    for (uint32_t h = 0; h < hidden; ++h) {
      y[h] = e.down_bias == nullptr ? 0.0f : e.down_bias[h];
    }
  }
  uint32_t active = 0;
  std::vector<float> c;
  for (uint32_t block = e.neuron_begin; block < e.neuron_end; block += kNeuronBlock) {
    c.assign(std::min(kNeuronBlock, e.neuron_end - block), 0.0f);
    for (size_t j = 0; j < c.size(); ++j) {
      bool kept = false;
      c[j] = Coefficient(activation, e, block + static_cast<uint32_t>(j), row, x, &kept);
      active += kept ? 1 : 0;
    }
    if (IsQuantized(e.down.encoding.encoding)) {
      AddQuantizedBlock(e.down, block, c, y);
    } else {
      AddPlainBlock(e.down, block, c, y);
    }
  }
  return active;
}

}  // namespace

void Run(Device&, const ExpertLeadsCall& call) {
  for (const LeadCallPart& expert : call.experts) {
    const uint32_t width = expert.lead.rows;
    if (expert.active != nullptr) {
      std::fill_n(expert.active, (width + kNeuronBlock - 1) / kNeuronBlock, uint64_t{0});
    }
    for (size_t i = 0; i < expert.rows.size(); ++i) {
      for (uint32_t j = 0; j < width; ++j) {
        const float dot = BiasedDot(expert.lead, j, expert.bias, call.x.Row(expert.rows[i]));
        const float value = call.up ? UpFactor(call.activation, dot) : GateFactor(call.activation, dot);
        expert.values.Row(i)[j] = value;
        if (expert.active != nullptr && !(std::fabs(value) < expert.threshold)) {
          expert.active[j / kNeuronBlock] |= uint64_t{1} << j % kNeuronBlock;
        }
      }
    }
  }
}

void Run(Device&, const MoeExpertsCall& call) {
  for (const ExpertCall& expert : call.experts) {
    for (size_t i = 0; i < expert.rows.size(); ++i) {
      const uint32_t slot = expert.slots[i];
      const auto compute = call.down_by_outputs ? ComputeOutputs : ComputeExpertRow;
      const uint32_t active =
          compute(call.activation, expert, call.hidden, i, call.x.Row(expert.rows[i]), call.y.Row(slot));
      if (call.active != nullptr) {
        call.active[slot] = (expert.neuron_begin == 0 ? 0 : call.active[slot]) + active;
      }
    }
  }
}

void Run(Device& device, const RoutedExpertsCall& call) { Run(device, GroupByExpert(call)); }

void Run(Device& device, const RoutedLeadsCall& call) { Run(device, AsLeads(call)); }

void Run(Device&, const CombineCall& call) {
  for (uint32_t t = 0; t < call.tokens; ++t) {
    for (uint32_t h = 0; h < call.hidden; ++h) {
      float a = 0;
      for (uint32_t k = 0; k < call.top_k; ++k) {
        const uint64_t slot = uint64_t{t} * call.top_k + k;
        const float weight = call.weights == nullptr ? 1.0f : call.weights[slot];
        if (weight != 0) {
          a = std::fma(weight, call.y.Row(slot)[h], a);
        }
      }
      float sum = call.scale * (a + 0.0f);
      if (call.residual.base != nullptr) {
        sum = call.residual.Row(t)[h] + sum;
      }
      call.out.Row(t)[h] = call.gain == nullptr ? sum : call.gain[0] * sum;
    }
  }
}

}  // namespace sluice::reference
