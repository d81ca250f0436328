// Reads the fields common to chat and completions into RequestFields.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "inferd/openai/fields/json_body.h"
#include "inferd/serving/generation_plan.h"
#include "inferd/serving/serving_context.h"

namespace sluice::inferd {

// Delivery of an answer, as opposed to its content.
struct AnswerStyle {
  bool stream = false;
  bool include_usage = false;     // a last event with the usage
  bool continuous_usage = false;  // usage on every event
  uint32_t n = 1;
};

// INVALID_ARGUMENT naming a field of a wrong type or range, or an unsupported one. `least_tokens`: minimum of
// max_tokens.
absl::Status ReadGeneration(const JsonFields& body, const ServingContext& context, uint32_t least_tokens,
                            RequestFields* fields, AnswerStyle* style);

// Copies the serving fields, which every API accepts beside its own, unchanged.
void CopyServingFields(const JsonFields& body, Json* to);

// Field names for errors of PlanRequest and FitToPrompt, as in the API.
FieldNames ApiFieldNames(const JsonFields& body);

}  // namespace sluice::inferd
