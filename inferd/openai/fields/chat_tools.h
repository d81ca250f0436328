// The tools of a chat request, and whether one must be called.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "inferd/dialect/dialect.h"
#include "inferd/dialect/message_parser.h"
#include "inferd/openai/fields/json_body.h"

namespace sluice {

struct ChatTools {
  Json offered;         // as templates take them; null: none are offered to the model
  bool told = false;    // in the messages, as the template knows no tools; calls are in Hermes' form
  ToolTypes types;      // of their parameters
  bool forced = false;  // the answer is a call
  Json callable;        // those of them that a forced call may be of: all, or the one that is named
  std::vector<std::string> callable_fields;  // what the client calls their parameters, for errors
  uint32_t max_calls = UINT32_MAX;
};

// INVALID_ARGUMENT naming the field. A model whose template knows no tools (`dialect`) is told of them in its
// `messages`, in which calls and results of the past become text.
absl::Status ReadTools(const JsonFields& body, const Dialect& dialect, Json* messages, ChatTools* tools);

}  // namespace sluice
