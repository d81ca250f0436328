#include "kernels/expert_calls.h"

#include <algorithm>
#include <numeric>

#include "common/base/status.h"

namespace sluice {
namespace {

// Resolves the ids and weights of all pairs (row, rank).
absl::Status ResolvePairs(const Resolver& r, BufferRef ids, BufferRef weights, uint64_t pairs,
                          const int32_t** out_ids, const float** out_weights) {
  const float* place = nullptr;
  RETURN_IF_ERROR(r.InFloats(ids, pairs, "ids", &place));
  *out_ids = reinterpret_cast<const int32_t*>(place);
  return weights ? r.InFloats(weights, pairs, "weights", out_weights) : absl::OkStatus();
}

// The expert of a pair; `experts` if the pair is left out.
uint32_t ExpertOf(const int32_t* ids, const float* weights, uint64_t pair, size_t experts) {
  const auto id = static_cast<uint32_t>(ids[pair]);
  const bool out = id >= experts || (weights != nullptr && weights[pair] == 0.0f);
  return out ? static_cast<uint32_t>(experts) : id;
}

absl::Status CheckShape(const Resolver& r, uint32_t tokens, uint32_t hidden, uint32_t ranks, size_t experts,
                        size_t most_experts) {
  RETURN_IF_ERROR(r.Within(tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(hidden, r.limits().hidden, "hidden"));
  RETURN_IF_ERROR(r.Within(ranks, uint64_t{r.limits().top_k} + 1, "ranks"));
  return r.Within(experts, most_experts, "the number of experts");
}

// Resolves all experts of a call, or finds a numbered list as it was resolved before.
absl::StatusOr<absl::Span<const ExpertCall>> ResolveRouted(const Resolver& r, const RoutedExpertsArgs& args) {
  CallScratch& scratch = r.scratch();
  const bool keeps = scratch.keeps_numbered && args.experts_number != 0;
  if (const auto found = scratch.numbered.find(args.experts_number);
      keeps && found != scratch.numbered.end()) {
    return absl::MakeConstSpan(found->second);
  }
  scratch.experts.clear();
  for (const ExpertWork& work : args.experts) {
    ExpertCall& expert = scratch.experts.emplace_back();
    RETURN_IF_ERROR(
        internal::ResolveParts(r, work, args.hidden, args.down_by_outputs, r.limits().expert_width, &expert));
    if (work.lead_values.base || work.neuron_begin != 0 ||
        (work.neuron_end != 0 && work.neuron_end != work.up.rows)) {
      return r.Invalid("a part of an expert, or one whose lead was made: only whole ones have a row each");
    }
    RETURN_IF_ERROR(internal::ResolveSparsity(r, work, &expert));
    expert.neuron_end = expert.up.rows;
    if (keeps && expert.HasLists()) {
      return r.Invalid("a numbered list of experts with an index list");
    }
  }
  if (!keeps) {
    return absl::MakeConstSpan(scratch.experts);
  }
  // Lists that changed leave their numbers behind.
  if (scratch.numbered.size() > 2 * uint64_t{r.limits().layers}) {
    scratch.numbered.clear();
  }
  return absl::MakeConstSpan(scratch.numbered.emplace(args.experts_number, scratch.experts).first->second);
}

}  // namespace

absl::StatusOr<RoutedExpertsCall> Resolve(const Resolver& r, const RoutedExpertsArgs& args) {
  RoutedExpertsCall call;
  CallScratch& scratch = r.scratch();
  RETURN_IF_ERROR(internal::CheckActivation(r, args.activation));
  RETURN_IF_ERROR(
      CheckShape(r, args.tokens, args.hidden, args.ranks, args.experts.size(), scratch.experts.capacity()));
  const uint64_t pairs = uint64_t{args.tokens} * args.ranks;
  const uint64_t x_rows = args.by_slot ? pairs : args.tokens;
  RETURN_IF_ERROR(r.Within(x_rows, r.limits().max_tokens, "rows of x"));
  RETURN_IF_ERROR(r.In(args.x, x_rows, args.hidden, "x", &call.x));
  RETURN_IF_ERROR(r.Out(args.y, pairs, args.hidden, "y", &call.y));
  if (Overlap(call.x, args.hidden, call.y, args.hidden, x_rows, pairs)) {
    return r.Invalid("y overlaps x");
  }
  RETURN_IF_ERROR(ResolvePairs(r, args.ids, args.weights, pairs, &call.ids, &call.weights));
  if (args.active) {
    int32_t* active = nullptr;
    RETURN_IF_ERROR(r.OutInts(args.active, pairs, "active", &active));
    call.active = reinterpret_cast<uint32_t*>(active);
  }
  ASSIGN_OR_RETURN(call.experts, ResolveRouted(r, args));
  call.experts_number = scratch.keeps_numbered ? args.experts_number : 0;
  call.tokens = args.tokens;
  call.hidden = args.hidden;
  call.by_slot = args.by_slot;
  call.activation = args.activation;
  call.ranks = args.ranks;
  call.down_by_outputs = args.down_by_outputs;
  call.scratch = &scratch;
  return call;
}

MoeExpertsCall GroupByExpert(const RoutedExpertsCall& call) {
  CallScratch& s = *call.scratch;
  const size_t experts = call.experts.size();
  const uint32_t pairs = call.tokens * call.ranks;
  s.begin.assign(experts + 1, 0);
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    s.begin[ExpertOf(call.ids, call.weights, pair, experts)]++;
  }
  std::exclusive_scan(s.begin.begin(), s.begin.end(), s.begin.begin(), 0u);
  s.rows.assign(pairs, 0);
  s.slots.assign(pairs, 0);
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    const uint32_t place = s.begin[ExpertOf(call.ids, call.weights, pair, experts)]++;
    s.rows[place] = call.by_slot ? pair : pair / call.ranks;
    s.slots[place] = pair;
  }
  s.grouped.clear();
  for (uint32_t e = 0, first = 0; e < experts; first = s.begin[e++]) {
    const uint32_t count = s.begin[e] - first;
    if (count > 0) {
      ExpertCall& expert = s.grouped.emplace_back(call.experts[e]);
      expert.rows = absl::MakeConstSpan(s.rows).subspan(first, count);
      expert.slots = absl::MakeConstSpan(s.slots).subspan(first, count);
    }
  }
  MoeExpertsCall grouped;
  grouped.x = call.x;
  grouped.tokens = call.by_slot ? pairs : call.tokens;
  grouped.hidden = call.hidden;
  grouped.activation = call.activation;
  grouped.experts = s.grouped;
  grouped.y = call.y;
  grouped.slots = pairs;
  grouped.active = call.active;
  grouped.down_by_outputs = call.down_by_outputs;
  return grouped;
}

absl::StatusOr<RoutedLeadsCall> Resolve(const Resolver& r, const RoutedLeadsArgs& args) {
  RoutedLeadsCall call;
  CallScratch& scratch = r.scratch();
  RETURN_IF_ERROR(internal::CheckActivation(r, args.activation));
  if (args.order != SparsityOrder::kUp && args.order != SparsityOrder::kGate) {
    return r.Invalid(absl::StrCat("sparsity order ", static_cast<int>(args.order), " has no lead"));
  }
  RETURN_IF_ERROR(
      CheckShape(r, args.tokens, args.hidden, args.ranks, args.experts.size(), scratch.leads.capacity()));
  RETURN_IF_ERROR(r.Within(args.top_k, args.ranks, "top_k"));
  const uint64_t pairs = uint64_t{args.tokens} * args.ranks;
  const uint32_t width = args.experts.front().lead.rows;
  const uint64_t words = (uint64_t{width} + kNeuronBlock - 1) / kNeuronBlock;
  RETURN_IF_ERROR(r.Within(width, r.limits().expert_width, "expert width"));
  RETURN_IF_ERROR(r.In(args.x, args.tokens, args.hidden, "x", &call.x));
  RETURN_IF_ERROR(ResolvePairs(r, args.ids, args.weights, pairs, &call.ids, &call.weights));
  RETURN_IF_ERROR(r.Out(args.values, pairs, width, "values", &call.values));
  int32_t* active = nullptr;
  RETURN_IF_ERROR(r.OutInts(args.active, pairs * words * 2, "active", &active));
  if (reinterpret_cast<uintptr_t>(active) % alignof(uint64_t) != 0) {
    return r.Invalid("the masks of active neurons are not aligned to 8 bytes");
  }
  call.active = reinterpret_cast<uint64_t*>(active);
  scratch.leads.clear();
  for (const LeadWork& work : args.experts) {
    LeadCallPart& lead = scratch.leads.emplace_back();
    RETURN_IF_ERROR(r.Weights(work.lead, false, "lead", &lead.lead));
    if (work.lead.rows != width || work.lead.cols != args.hidden || !(work.threshold >= 0)) {
      return r.Invalid(absl::StrCat("a lead [", work.lead.rows, ", ", work.lead.cols, "] with threshold ",
                                    work.threshold, " beside one of ", width, " rows, with hidden ",
                                    args.hidden));
    }
    if (work.bias) {
      RETURN_IF_ERROR(r.InFloats(work.bias, width, "bias", &lead.bias));
    }
    lead.threshold = work.threshold;
  }
  call.tokens = args.tokens;
  call.hidden = args.hidden;
  call.activation = args.activation;
  call.up = args.order == SparsityOrder::kUp;
  call.ranks = args.ranks;
  call.top_k = args.top_k;
  call.experts = scratch.leads;
  call.scratch = &scratch;
  return call;
}

ExpertLeadsCall AsLeads(const RoutedLeadsCall& call) {
  CallScratch& s = *call.scratch;
  const uint64_t words = (uint64_t{call.experts.front().lead.rows} + kNeuronBlock - 1) / kNeuronBlock;
  s.rows.resize(call.tokens);
  std::iota(s.rows.begin(), s.rows.end(), 0u);
  s.routed_leads.clear();
  for (uint32_t pair = 0; pair < call.tokens * call.ranks; ++pair) {
    const uint32_t expert = ExpertOf(call.ids, call.weights, pair, call.experts.size());
    if (expert == call.experts.size() || pair % call.ranks >= call.top_k) {
      continue;
    }
    LeadCallPart& lead = s.routed_leads.emplace_back(call.experts[expert]);
    lead.rows = absl::MakeConstSpan(s.rows).subspan(pair / call.ranks, 1);
    lead.values = {call.values.Row(pair), call.values.stride};
    lead.active = call.active + pair * words;
  }
  ExpertLeadsCall leads;
  leads.x = call.x;
  leads.tokens = call.tokens;
  leads.hidden = call.hidden;
  leads.activation = call.activation;
  leads.up = call.up;
  leads.experts = s.routed_leads;
  return leads;
}

}  // namespace sluice
