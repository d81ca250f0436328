// Reads a structured output guide under all its names: response_format, vLLM's guided_* and
// structured_outputs, llama.cpp's json_schema and grammar.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/api/guide_spec.h"
#include "inferd/openai/fields/json_body.h"

namespace sluice::inferd {

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

}  // namespace sluice::inferd
