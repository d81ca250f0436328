// How errors look to clients of the HTTP APIs: a status, an object, and when to try again.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "inferd/http/http_message.h"

namespace sluice {

// Whose objects: OpenAI's {"error":{..}} or Anthropic's {"type":"error","error":{..}}.
enum class ErrorStyle { kOpenAi, kAnthropic };

// By the path: Anthropic's are those below /v1/messages.
ErrorStyle ErrorStyleOf(const std::string& path);

// `status` as an answer of its own. REQUIRES: it is no OK.
HttpAnswer ErrorAnswer(const absl::Status& status, ErrorStyle style);
HttpAnswer ErrorAnswer(const HttpProblem& problem, ErrorStyle style);

// The object alone, for a stream that has begun.
std::string ErrorObject(const absl::Status& status, ErrorStyle style);

}  // namespace sluice
