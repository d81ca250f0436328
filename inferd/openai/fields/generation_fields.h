// The fields that chat and completions have in common, from their names in the API to RequestFields.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "inferd/openai/fields/json_body.h"
#include "inferd/serving/generation_plan.h"
#include "inferd/serving/serving_context.h"

namespace sluice {

// How an answer is given, beside what it holds.
struct AnswerStyle {
  bool stream = false;
  bool include_usage = false;     // a last event with the usage
  bool continuous_usage = false;  // on every event
  uint32_t n = 1;
};

// INVALID_ARGUMENT naming the field where a type or a range is wrong, or where it asks for what is not
// served. `least_tokens`: what max_tokens must be at least.
absl::Status ReadGeneration(const JsonFields& body, const ServingContext& context, uint32_t least_tokens,
                            RequestFields* fields, AnswerStyle* style);

// The fields about serving that any API may have beside its own, as they stand.
void CopyServingFields(const JsonFields& body, Json* to);

// Errors of PlanRequest and FitToPrompt name fields as the API does.
FieldNames ApiFieldNames(const JsonFields& body);

}  // namespace sluice
