// What an answer must conform to, under all the names that clients have for it: response_format, vLLM's
// guided_* and structured_outputs, llama.cpp's json_schema and grammar.
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

namespace sluice {

struct AskedGuide {
  GuideSpec spec;
  std::string field;  // what the client calls it: "response_format.json_schema.schema"
};

// Other APIs' requests, turned into a chat's, keep their own names: what is at text.format of a response is
// the member "text.format". INVALID_ARGUMENT naming the field; two guides are one too many.
absl::StatusOr<std::optional<AskedGuide>> ReadGuide(const JsonFields& body);

// An error of a guide, which inferd/guide calls "guided.json_schema" or "guided.calls[2]", by the client's
// name of it: the first of `fields`, or that of the call. Other errors as they are.
absl::Status InClientsTerms(const absl::Status& status, absl::Span<const std::string> fields);

}  // namespace sluice
