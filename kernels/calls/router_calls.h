// The choice of experts, checked and resolved: Router.
//
// Thread safety: free functions; a call may be read, and disjoint rows of its outputs written, by several
// threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/status.h"
#include "kernels/calls/places.h"
#include "kernels/calls/resolver.h"
#include "kernels/ops.h"

namespace sluice {

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
  // True if the order of the logits decides the choice: other scores are absent or have the same order.
  bool ChoosesByLogit() const {
    return kind != RouterKind::kSigmoidTopK && correction == nullptr &&
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
    case RouterKind::kSparseMixer:
      return "sparse_mixer";
    case RouterKind::kSigmoidInput:
      return "sigmoid_input";
  }
  return "unknown";
}

// Checks the options of the choice: corrections, groups, the sparse mixer's two ranks.
inline absl::Status CheckChoice(const Resolver& r, const RouterArgs& args) {
  const bool scored = args.kind == RouterKind::kSoftmaxTopK || args.kind == RouterKind::kSigmoidTopK;
  if (!scored && (args.correction || args.groups != 0)) {
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
  if (args.kind > RouterKind::kSigmoidInput) {
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
