// Error responses of the HTTP APIs: a status, an object, and a retry delay.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "inferd/http/http_message.h"

namespace sluice::inferd {

// Format of error objects: OpenAI's {"error":{..}} or Anthropic's {"type":"error","error":{..}}.
enum class ErrorStyle { kOpenAi, kAnthropic };

// Style by path: Anthropic's below /v1/messages.
ErrorStyle ErrorStyleOf(const std::string& path);

// Formats `status` as a response. REQUIRES: it is not OK.
HttpResponse ErrorAnswer(const absl::Status& status, ErrorStyle style);
HttpResponse ErrorAnswer(const HttpProblem& problem, ErrorStyle style);

// Returns the object alone, for a stream that has begun.
std::string ErrorObject(const absl::Status& status, ErrorStyle style);

}  // namespace sluice::inferd
