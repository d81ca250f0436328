// RoutedExperts and RoutedLeads, whose experts are known on the device only, checked and resolved. Devices
// that can read the ids when they compute turn them into calls of MoeExperts and ExpertLeads.
//
// Thread safety: free functions, as expert_calls.h.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/calls/expert_calls.h"
#include "kernels/calls/resolver.h"
#include "kernels/ops.h"

namespace sluice {

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
  OutRows y;
  uint32_t* active = nullptr;  // [tokens * ranks], nullptr: not wanted
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

}  // namespace sluice
