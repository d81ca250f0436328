// Reads the tools of a chat request, and whether a call is required.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "inferd/http/json_body.h"
#include "inferd/serving/dialect.h"
#include "inferd/serving/message_parser.h"

namespace sluice::inferd {

struct ChatTools {
  Json offered;            // the client's own objects; null: no tools are offered to the model
  bool in_prompt = false;  // described in the messages, if the template does not read tools
  ToolTypes types;         // types of their parameters
  bool forced = false;     // true: the answer must be a call
  Json callable;           // tools allowed for a forced call: all, or the named one
  std::vector<std::string> callable_fields;  // the client's names of their parameters, for errors
  uint32_t max_calls = UINT32_MAX;
};

// INVALID_ARGUMENT naming the field. If the template does not read tools, describes them in `messages`; for a
// model without a known syntax of calls (`dialect`), past calls and results there become text then.
absl::Status ReadTools(const JsonFields& body, const Dialect& dialect, bool template_reads_tools,
                       Json* messages, ChatTools* tools);

}  // namespace sluice::inferd
