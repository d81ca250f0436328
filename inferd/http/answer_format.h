// Parts of answers shared by several formats: usage, timings, logprobs, stream events.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/text/tokenizer.h"
#include "daemon/http/http_message.h"
#include "inferd/api/engine_api.h"
#include "inferd/http/json_body.h"

namespace sluice::inferd {

// Fields repeated in every event of an answer, or once in a whole answer.
struct AnswerFacts {
  std::string id;
  std::string model;
  std::string fingerprint;
  int64_t created = 0;                   // seconds since 1970
  const Tokenizer* tokenizer = nullptr;  // null: texts of tokens are empty
};

Json UsageJson(const Usage& usage, uint32_t reasoning_tokens);
// Timings with llama.cpp's names.
Json TimingsJson(const Timings& timings, const Usage& usage);

// "stop" or "length".
const char* FinishWord(FinishReason reason);

// Returns the bytes of a token; for a special token its spelling.
std::string BytesOfToken(const Tokenizer* tokenizer, int32_t id);
// Returns these bytes as UTF-8, with U+FFFD for incomplete characters.
std::string TextOfToken(const Tokenizer* tokenizer, int32_t id);

// Stands for minus infinity, which JSON cannot represent.
inline constexpr double kLogprobFloor = -9999.0;
double LogprobNumber(float logprob);

// Entries of chat's logprobs.content, with `top` candidates each.
Json ChatLogprobs(const Tokenizer* tokenizer, absl::Span<const TokenOut> tokens, uint32_t top);

// "data: {..}\n\n"
void AppendEvent(const Json& json, std::string* out);
// "event: NAME\ndata: {..}\n\n"
void AppendNamedEvent(const char* name, const Json& json, std::string* out);

// Error responses of the HTTP APIs: a status, an object, and a retry delay.
//
// Thread safety: pure functions, safe to call from any thread.

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
