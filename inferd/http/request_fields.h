// Reads the fields common to chat and completions into RequestFields.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/api/engine_api.h"
#include "inferd/http/json_body.h"
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

// INVALID_ARGUMENT naming a field of a wrong type, or an unsupported one; PlanRequest checks the bounds.
absl::Status ReadGeneration(const JsonFields& body, const ServingContext& context, RequestFields* fields,
                            AnswerStyle* style);

// Copies the serving fields, which every API accepts besides its own, unchanged.
void CopyServingFields(const JsonFields& body, Json* to);

// Field names for errors of PlanRequest and FitToPrompt, as in the API.
FieldNames ApiFieldNames(const JsonFields& body);

// Reads a structured output constraint under all its names: response_format, vLLM's guided_* and
// structured_outputs, llama.cpp's json_schema and grammar.
//
// Thread safety: pure functions and plain values, safe to use from any thread.

struct RequestedGrammar {
  GrammarSpec spec;
  std::string field;  // the client's name: "response_format.json_schema.schema"
};

// Requests converted from other APIs keep their own names: text.format of a response is the member
// "text.format". INVALID_ARGUMENT naming the field; two constraints are an error.
absl::StatusOr<std::optional<RequestedGrammar>> ReadGrammar(const JsonFields& body);

// Replaces the name that the engine uses in errors ("guided.json_schema", "guided.calls[2]") by the
// client's name: the first of `fields`, or the field of the call. Other errors are unchanged.
absl::Status ToClientFieldNames(const absl::Status& status, absl::Span<const std::string> fields);

// FieldAliases: names of chat fields in other APIs, so that errors name the field that the client sent.
//
// Thread safety: pure functions, safe to call from any thread.

// Pairs of a chat field and the API's field, as parts of a field's path; the first match is replaced.
using FieldAliases = std::vector<std::pair<std::string, std::string>>;

std::string AliasOf(const std::string& field, const FieldAliases& aliases);

// Returns `status` with the field's alias; a status without a match is unchanged.
absl::Status ToApiFieldNames(const absl::Status& status, const FieldAliases& aliases);

}  // namespace sluice::inferd
