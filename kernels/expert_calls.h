// The operations of experts, checked and resolved: ExpertLeads, MoeExperts, Combine.
//
// Thread safety: free functions; a call may be read, and disjoint rows of its outputs written, by several
// threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "kernels/ops.h"
#include "kernels/resolver.h"

namespace sluice {

inline constexpr uint32_t kNeuronBlock = 64;  // ARITHMETIC.md 3

struct LeadCallPart {
  CallWeights lead;
  absl::Span<const uint32_t> rows;
  const float* bias = nullptr;  // nullptr: none
  float threshold = 0;
  OutRows values;
  uint64_t* active = nullptr;  // nullptr: not wanted
};

struct ExpertLeadsCall {
  InRows x;
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  ActivationSpec activation;
  bool up = false;  // the lead is up, else gate
  absl::Span<const LeadCallPart> experts;
};

struct ExpertCall {
  CallWeights up;
  CallWeights gate;
  CallWeights down;
  absl::Span<const uint32_t> rows;
  absl::Span<const uint32_t> slots;
  uint32_t neuron_begin = 0;
  uint32_t neuron_end = 0;
  const float* up_bias = nullptr;  // nullptr: none
  const float* gate_bias = nullptr;
  const float* down_bias = nullptr;
  SparsityOrder sparsity = SparsityOrder::kNone;
  float threshold = 0;
  InRows lead_values;  // base nullptr: to be computed
  // True if a part has an index list, so that neurons may be absent.
  bool HasLists() const {
    return up.positions != nullptr || gate.positions != nullptr || down.positions != nullptr;
  }
  // True if all rows of neuron j are present.
  bool Has(uint32_t j) const {
    return up.Row(j) != nullptr && gate.Row(j) != nullptr && down.Row(j) != nullptr;
  }
};

struct MoeExpertsCall {
  InRows x;
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  ActivationSpec activation;
  absl::Span<const ExpertCall> experts;
  OutRows y;
  uint32_t slots = 0;
  uint32_t* active = nullptr;    // [slots], nullptr: not wanted
  bool down_by_outputs = false;  // down is [hidden, width]
};

// Memory for the lists of resolved ExpertLeads and MoeExperts calls, made once so that no call allocates.
struct CallScratch {
  explicit CallScratch(const BackendLimits& limits) {
    // Every routed expert of a layer, and a few shared or dense ones.
    experts.reserve(uint64_t{limits.experts} + 8);
    leads.reserve(experts.capacity());
    const uint64_t pairs = uint64_t{limits.max_tokens} * (uint64_t{limits.top_k} + 1);
    slot_taken.reserve(pairs);
    grouped.reserve(experts.capacity());
    rows.reserve(pairs);
    slots.reserve(pairs);
    begin.reserve(experts.capacity() + 1);
    routed_leads.reserve(pairs);
  }
  std::vector<ExpertCall> experts;
  std::vector<LeadCallPart> leads;
  std::vector<uint8_t> slot_taken;  // marks slots of y that a MoeExperts call writes
  // Calls of RoutedExperts and RoutedLeads, grouped by the ids at the time of computation.
  std::vector<ExpertCall> grouped;
  std::vector<uint32_t> rows;   // by expert
  std::vector<uint32_t> slots;  // the same
  std::vector<uint32_t> begin;  // by expert
  std::vector<LeadCallPart> routed_leads;
  // Numbered lists of RoutedExperts (ops.h), resolved; kept where `keeps_numbered` is set, by devices that
  // clear them when a buffer is freed.
  absl::flat_hash_map<uint64_t, std::vector<ExpertCall>> numbered;
  bool keeps_numbered = false;
};

namespace internal {

inline absl::Status CheckActivation(const Resolver& r, const ActivationSpec& spec) {
  switch (spec.kind) {
    case Activation::kSilu:
    case Activation::kGeluTanh:
    case Activation::kGelu:
    case Activation::kRelu2:
      return absl::OkStatus();
    case Activation::kClampedSwiglu:
      if (!std::isfinite(spec.alpha) || !(spec.limit > 0)) {
        return r.Invalid(absl::StrCat("clamped_swiglu with alpha ", spec.alpha, " and limit ", spec.limit));
      }
      return absl::OkStatus();
    case Activation::kClampedSilu:
    case Activation::kLimitedSilu:
      return spec.limit > 0 ? absl::OkStatus()
                            : r.Invalid(absl::StrCat("a clamped silu with limit ", spec.limit));
  }
  return r.Unimplemented(absl::StrCat("activation ", static_cast<int>(spec.kind)));
}

// The down part: rows that are summed, or rows of outputs.
inline absl::Status ResolveDown(const Resolver& r, const ExpertWork& work, bool by_outputs, ExpertCall* out) {
  return by_outputs ? r.Weights(work.down, false, "down", &out->down)
                    : r.SummedWeights(work.down, true, "down", &out->down);
}

inline absl::Status ResolveParts(const Resolver& r, const ExpertWork& work, uint32_t hidden, bool by_outputs,
                                 uint32_t max_width, ExpertCall* out) {
  RETURN_IF_ERROR(r.Weights(work.up, !by_outputs, "up", &out->up));
  RETURN_IF_ERROR(r.Weights(work.gate.base ? work.gate : work.up, !by_outputs, "gate", &out->gate));
  RETURN_IF_ERROR(ResolveDown(r, work, by_outputs, out));
  const uint32_t width = work.up.rows;
  RETURN_IF_ERROR(r.Within(width, max_width, "expert width"));
  const uint32_t down_rows = by_outputs ? hidden : width;
  const uint32_t down_cols = by_outputs ? width : hidden;
  if (out->gate.rows != width || work.down.rows != down_rows || work.up.cols != hidden ||
      out->gate.cols != hidden || work.down.cols != down_cols) {
    return r.Invalid(absl::StrCat("an expert's parts are up [", width, ", ", work.up.cols, "], gate [",
                                  out->gate.rows, ", ", out->gate.cols, "], down [", work.down.rows, ", ",
                                  work.down.cols, by_outputs ? "] by outputs" : "]", " with hidden ",
                                  hidden));
  }
  if (work.up_bias) {
    RETURN_IF_ERROR(r.InFloats(work.up_bias, width, "up bias", &out->up_bias));
  }
  if (work.gate_bias && !work.gate.base) {
    return r.Invalid("a gate bias without a gate");
  }
  if (!work.gate.base) {
    out->gate_bias = out->up_bias;
  }
  if (work.gate_bias) {
    RETURN_IF_ERROR(r.InFloats(work.gate_bias, width, "gate bias", &out->gate_bias));
  }
  if (work.down_bias) {
    RETURN_IF_ERROR(r.InFloats(work.down_bias, hidden, "down bias", &out->down_bias));
  }
  return absl::OkStatus();
}

inline absl::Status ResolveSparsity(const Resolver& r, const ExpertWork& work, ExpertCall* out) {
  if (work.sparsity > SparsityOrder::kProduct) {
    return r.Unimplemented(absl::StrCat("sparsity order ", static_cast<int>(work.sparsity)));
  }
  if (work.sparsity != SparsityOrder::kNone && !(work.threshold >= 0)) {
    return r.Invalid(absl::StrCat("a sparsity threshold of ", work.threshold));
  }
  out->sparsity = work.sparsity;
  out->threshold = work.threshold;
  if (work.lead_values.base) {
    if (work.sparsity != SparsityOrder::kUp && work.sparsity != SparsityOrder::kGate) {
      return r.Invalid(absl::StrCat("lead values with sparsity order ", static_cast<int>(work.sparsity),
                                    ": it has no lead"));
    }
    return r.In(work.lead_values, work.rows.size(), out->up.rows, "lead values", &out->lead_values);
  }
  return absl::OkStatus();
}

inline absl::Status ResolveExpert(const Resolver& r, const ExpertWork& work, const MoeExpertsArgs& args,
                                  uint32_t max_width, std::vector<uint8_t>& slot_taken, ExpertCall* out) {
  if (work.rows.empty() || work.rows.size() != work.slots.size()) {
    return r.Invalid(absl::StrCat(work.rows.size(), " rows for ", work.slots.size(), " slots of an expert"));
  }
  RETURN_IF_ERROR(ResolveParts(r, work, args.hidden, args.down_by_outputs, max_width, out));
  RETURN_IF_ERROR(ResolveSparsity(r, work, out));
  const uint32_t width = out->up.rows;
  out->neuron_begin = work.neuron_begin;
  out->neuron_end = work.neuron_end == 0 ? width : work.neuron_end;
  if (out->neuron_begin % kNeuronBlock != 0 || out->neuron_begin >= out->neuron_end ||
      out->neuron_end > width || (out->neuron_end != width && out->neuron_end % kNeuronBlock != 0)) {
    return r.Invalid(absl::StrCat("neurons ", out->neuron_begin, "..", out->neuron_end, " of ", width,
                                  " are not whole blocks of ", kNeuronBlock));
  }
  if (args.down_by_outputs && out->neuron_end - out->neuron_begin != width) {
    return r.Invalid(absl::StrCat("neurons ", out->neuron_begin, "..", out->neuron_end, " of ", width,
                                  ": with down by outputs experts are computed whole"));
  }
  for (size_t i = 0; i < work.rows.size(); ++i) {
    if (work.rows[i] >= args.tokens || work.slots[i] >= slot_taken.size()) {
      return r.Invalid(absl::StrCat("row ", work.rows[i], " of ", args.tokens, " to slot ", work.slots[i],
                                    " of ", slot_taken.size()));
    }
    if (slot_taken[work.slots[i]] != 0) {
      return r.Invalid(absl::StrCat("slot ", work.slots[i], " is written twice"));
    }
    slot_taken[work.slots[i]] = 1;
  }
  out->rows = work.rows;
  out->slots = work.slots;
  return absl::OkStatus();
}

inline absl::Status ResolveLead(const Resolver& r, const LeadWork& work, const ExpertLeadsArgs& args,
                                uint32_t max_width, LeadCallPart* out) {
  RETURN_IF_ERROR(r.Weights(work.lead, false, "lead", &out->lead));
  const uint32_t width = work.lead.rows;
  RETURN_IF_ERROR(r.Within(width, max_width, "expert width"));
  RETURN_IF_ERROR(r.Within(work.rows.size(), args.tokens, "rows"));
  if (work.lead.cols != args.hidden) {
    return r.Invalid(absl::StrCat("a lead of ", work.lead.cols, " columns with hidden ", args.hidden));
  }
  if (!(work.threshold >= 0)) {
    return r.Invalid(absl::StrCat("a sparsity threshold of ", work.threshold));
  }
  for (const uint32_t row : work.rows) {
    if (row >= args.tokens) {
      return r.Invalid(absl::StrCat("row ", row, " of ", args.tokens));
    }
  }
  if (work.bias) {
    RETURN_IF_ERROR(r.InFloats(work.bias, width, "bias", &out->bias));
  }
  RETURN_IF_ERROR(r.Out(work.values, work.rows.size(), width, "values", &out->values));
  if (work.active) {
    const uint64_t words = (uint64_t{width} + kNeuronBlock - 1) / kNeuronBlock;
    int32_t* active = nullptr;
    RETURN_IF_ERROR(r.OutInts(work.active, 2 * words, "active", &active));
    if (reinterpret_cast<uintptr_t>(active) % alignof(uint64_t) != 0) {
      return r.Invalid("the mask of active neurons is not aligned to 8 bytes");
    }
    out->active = reinterpret_cast<uint64_t*>(active);
  }
  out->rows = work.rows;
  out->threshold = work.threshold;
  return absl::OkStatus();
}

}  // namespace internal

inline absl::StatusOr<ExpertLeadsCall> Resolve(const Resolver& r, const ExpertLeadsArgs& args) {
  ExpertLeadsCall call;
  RETURN_IF_ERROR(internal::CheckActivation(r, args.activation));
  if (args.order != SparsityOrder::kUp && args.order != SparsityOrder::kGate) {
    return r.Invalid(absl::StrCat("sparsity order ", static_cast<int>(args.order), " has no lead"));
  }
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.hidden, r.limits().hidden, "hidden"));
  RETURN_IF_ERROR(r.Within(args.experts.size(), r.scratch().leads.capacity(), "the number of experts"));
  RETURN_IF_ERROR(r.In(args.x, args.tokens, args.hidden, "x", &call.x));
  r.scratch().leads.clear();
  for (const LeadWork& work : args.experts) {
    r.scratch().leads.emplace_back();
    RETURN_IF_ERROR(internal::ResolveLead(r, work, args, r.limits().expert_width, &r.scratch().leads.back()));
  }
  call.tokens = args.tokens;
  call.hidden = args.hidden;
  call.activation = args.activation;
  call.up = args.order == SparsityOrder::kUp;
  call.experts = r.scratch().leads;
  return call;
}

inline absl::StatusOr<MoeExpertsCall> Resolve(const Resolver& r, const MoeExpertsArgs& args) {
  MoeExpertsCall call;
  RETURN_IF_ERROR(internal::CheckActivation(r, args.activation));
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.hidden, r.limits().hidden, "hidden"));
  RETURN_IF_ERROR(r.Within(args.experts.size(), r.scratch().experts.capacity(), "the number of experts"));
  RETURN_IF_ERROR(r.Within(args.slots, r.scratch().slot_taken.capacity(), "slots"));
  RETURN_IF_ERROR(r.In(args.x, args.tokens, args.hidden, "x", &call.x));
  RETURN_IF_ERROR(r.Out(args.y, args.slots, args.hidden, "y", &call.y));
  if (Overlap(call.x, args.hidden, call.y, args.hidden, args.tokens, args.slots)) {
    return r.Invalid("y overlaps x");
  }
  if (args.active) {
    int32_t* active = nullptr;
    RETURN_IF_ERROR(r.OutInts(args.active, args.slots, "active", &active));
    call.active = reinterpret_cast<uint32_t*>(active);
  }
  r.scratch().slot_taken.assign(args.slots, 0);
  r.scratch().experts.clear();
  for (const ExpertWork& work : args.experts) {
    r.scratch().experts.emplace_back();
    RETURN_IF_ERROR(internal::ResolveExpert(r, work, args, r.limits().expert_width, r.scratch().slot_taken,
                                            &r.scratch().experts.back()));
  }
  call.tokens = args.tokens;
  call.hidden = args.hidden;
  call.activation = args.activation;
  call.experts = r.scratch().experts;
  call.slots = args.slots;
  call.down_by_outputs = args.down_by_outputs;
  return call;
}

inline absl::StatusOr<CombineCall> Resolve(const Resolver& r, const CombineArgs& args) {
  CombineCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.hidden, r.limits().hidden, "hidden"));
  RETURN_IF_ERROR(r.Within(args.top_k, uint64_t{r.limits().top_k} + 1, "top_k"));
  const uint64_t slots = uint64_t{args.tokens} * args.top_k;
  RETURN_IF_ERROR(r.In(args.y, slots, args.hidden, "y", &call.y));
  if (args.weights) {
    RETURN_IF_ERROR(r.InFloats(args.weights, slots, "weights", &call.weights));
  }
  if (args.residual.base) {
    RETURN_IF_ERROR(r.In(args.residual, args.tokens, args.hidden, "residual", &call.residual));
  }
  if (args.gain) {
    RETURN_IF_ERROR(r.InFloats(args.gain, 1, "gain", &call.gain));
  }
  RETURN_IF_ERROR(r.Out(args.out, args.tokens, args.hidden, "out", &call.out));
  call.tokens = args.tokens;
  call.top_k = args.top_k;
  call.hidden = args.hidden;
  call.scale = args.scale;
  return call;
}

// RoutedExperts and RoutedLeads, whose experts are known on the device only, checked and resolved. Devices
// that can read the ids when they compute turn them into calls of MoeExperts and ExpertLeads.
//
// Thread safety: free functions, as expert_calls.h.

struct RoutedExpertsCall {
  InRows x;
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  bool by_slot = false;
  ActivationSpec activation;
  const int32_t* ids = nullptr;
  const float* weights = nullptr;  // nullptr: no rank is left out
  uint32_t ranks = 0;
  absl::Span<const ExpertCall> experts;  // by id
  uint64_t experts_number = 0;           // 0: not kept
  OutRows y;
  uint32_t* active = nullptr;  // [tokens * ranks], nullptr: not wanted
  bool down_by_outputs = false;
  CallScratch* scratch = nullptr;
};

struct RoutedLeadsCall {
  InRows x;
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  ActivationSpec activation;
  bool up = false;  // the lead is up, else gate
  const int32_t* ids = nullptr;
  const float* weights = nullptr;
  uint32_t ranks = 0;
  uint32_t top_k = 0;
  absl::Span<const LeadCallPart> experts;  // by id, without rows
  OutRows values;
  uint64_t* active = nullptr;  // [tokens * ranks][words]
  CallScratch* scratch = nullptr;
};

absl::StatusOr<RoutedExpertsCall> Resolve(const Resolver& r, const RoutedExpertsArgs& args);
absl::StatusOr<RoutedLeadsCall> Resolve(const Resolver& r, const RoutedLeadsArgs& args);

// Groups the work by expert, by the current ids. The result is valid until the next call with the same
// scratch.
MoeExpertsCall GroupByExpert(const RoutedExpertsCall& call);
ExpertLeadsCall AsLeads(const RoutedLeadsCall& call);

// The choice of experts, checked and resolved: Router.
//
// Thread safety: free functions; a call may be read, and disjoint rows of its outputs written, by several
// threads.

struct RouterCall {
  InRows logits;
  uint32_t tokens = 0;
  uint32_t experts = 0;
  RouterKind kind = RouterKind::kSoftmaxTopK;
  uint32_t top_k = 0;
  bool norm_topk_prob = true;
  float norm_epsilon = 0;
  float routed_scale = 1;
  const float* expert_scale = nullptr;  // [experts], nullptr: none
  const float* correction = nullptr;
  InRows fixed;  // base nullptr: the scores choose
  float jitter = 0;
  uint32_t groups = 0;  // 0: none
  uint32_t top_groups = 0;
  GroupScore group_score = GroupScore::kMax;
  bool shared = false;
  InRows shared_logits;  // base nullptr: weight 1
  bool cut = false;
  double cut_sensitivity = 0;
  double cut_limit = 0;
  int32_t* ids = nullptr;
  float* weights = nullptr;
  uint32_t Ranks() const { return top_k + (shared ? 1 : 0); }
  // True if an expert's score is a function of its own logit, and the sum of the chosen gets an epsilon.
  bool HasOwnScores() const {
    return kind == RouterKind::kSigmoidTopK || kind == RouterKind::kSqrtSoftplusTopK;
  }
  // The expert that a fixed choice has at a rank of a row; one beyond the last counts as the last.
  int32_t FixedExpert(uint64_t row, uint32_t rank) const {
    const float number = fixed.Row(row)[rank];
    return number > 0 ? static_cast<int32_t>(std::min(number, static_cast<float>(experts - 1))) : 0;
  }
  // True if the order of the logits decides the choice: other scores are absent or have the same order.
  bool ChoosesByLogit() const {
    return !HasOwnScores() && fixed.base == nullptr && correction == nullptr &&
           (groups == 0 || group_score == GroupScore::kMax);
  }
};

namespace internal {

inline const char* RouterWord(RouterKind kind) {
  switch (kind) {
    case RouterKind::kSoftmaxTopK:
      return "softmax_topk";
    case RouterKind::kTopKSoftmax:
      return "topk_softmax";
    case RouterKind::kSigmoidTopK:
      return "sigmoid_topk";
    case RouterKind::kSqrtSoftplusTopK:
      return "sqrt_softplus_topk";
    case RouterKind::kSparseMixer:
      return "sparse_mixer";
    case RouterKind::kSigmoidInput:
      return "sigmoid_input";
  }
  return "unknown";
}

// Checks the options of the choice: corrections, groups, the sparse mixer's two ranks.
inline absl::Status CheckChoice(const Resolver& r, const RouterArgs& args) {
  const bool scored = args.kind == RouterKind::kSoftmaxTopK || args.kind == RouterKind::kSigmoidTopK ||
                      args.kind == RouterKind::kSqrtSoftplusTopK;
  if (!scored && (args.correction || args.groups != 0 || args.fixed.base)) {
    return r.Unimplemented(absl::StrCat("corrections and groups with router kind ", RouterWord(args.kind)));
  }
  if (args.kind == RouterKind::kSparseMixer && (args.top_k != 2 || !(args.jitter >= 0))) {
    return r.Invalid(
        absl::StrCat("the sparse mixer with ", args.top_k, " experts a token and jitter ", args.jitter));
  }
  if (args.groups == 0) {
    return absl::OkStatus();
  }
  const uint32_t size = args.experts / args.groups;
  const bool two = args.group_score == GroupScore::kTopTwoSum;
  if (args.experts % args.groups != 0 || args.top_groups == 0 || args.top_groups > args.groups ||
      uint64_t{args.top_groups} * size < args.top_k || (two && size < 2)) {
    return r.Invalid(absl::StrCat("the best ", args.top_groups, " of ", args.groups, " groups of ",
                                  args.experts, " experts, scored by their best ", two ? "two" : "one",
                                  ", for ", args.top_k, " experts a token"));
  }
  return absl::OkStatus();
}

}  // namespace internal

inline absl::StatusOr<RouterCall> Resolve(const Resolver& r, const RouterArgs& args) {
  RouterCall call;
  if (args.kind > RouterKind::kSqrtSoftplusTopK) {
    return r.Unimplemented(absl::StrCat("router kind ", static_cast<int>(args.kind)));
  }
  if (args.group_score > GroupScore::kTopTwoSum) {
    return r.Unimplemented(absl::StrCat("group score ", static_cast<int>(args.group_score)));
  }
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.experts, r.limits().experts, "experts"));
  RETURN_IF_ERROR(r.Within(args.top_k, std::min(args.experts, r.limits().top_k), "top_k"));
  RETURN_IF_ERROR(internal::CheckChoice(r, args));
  const uint64_t entries = uint64_t{args.tokens} * (args.top_k + (args.shared ? 1 : 0));
  RETURN_IF_ERROR(r.In(args.logits, args.tokens, args.experts, "logits", &call.logits));
  RETURN_IF_ERROR(r.OutInts(args.ids, entries, "ids", &call.ids));
  RETURN_IF_ERROR(r.OutFloats(args.weights, entries, "weights", &call.weights));
  if (args.correction) {
    RETURN_IF_ERROR(r.InFloats(args.correction, args.experts, "correction", &call.correction));
  }
  if (args.fixed.base) {
    RETURN_IF_ERROR(r.In(args.fixed, args.tokens, args.top_k, "fixed choice", &call.fixed));
  }
  if (args.expert_scale) {
    RETURN_IF_ERROR(r.InFloats(args.expert_scale, args.experts, "expert scale", &call.expert_scale));
  }
  if (!(args.norm_epsilon >= 0)) {
    return r.Invalid(absl::StrCat("an epsilon of ", args.norm_epsilon, " of the chosen scores' sum"));
  }
  if (args.shared && args.shared_logits.base) {
    RETURN_IF_ERROR(r.In(args.shared_logits, args.tokens, 1, "shared logits", &call.shared_logits));
  }
  call.tokens = args.tokens;
  call.experts = args.experts;
  call.kind = args.kind;
  call.top_k = args.top_k;
  call.norm_topk_prob = args.norm_topk_prob;
  call.norm_epsilon = args.norm_epsilon;
  call.routed_scale = args.routed_scale;
  call.jitter = args.jitter;
  call.groups = args.groups;
  call.top_groups = args.top_groups;
  call.group_score = args.group_score;
  call.shared = args.shared;
  call.cut = args.cut;
  call.cut_sensitivity = args.cut_sensitivity;
  call.cut_limit = args.cut_limit;
  return call;
}

}  // namespace sluice
