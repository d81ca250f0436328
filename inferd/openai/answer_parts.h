// Parts of answers that several formats share: usage, timings, logprobs, events of a stream.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "common/text/tokenizer.h"
#include "inferd/api/engine_api.h"
#include "inferd/openai/fields/json_body.h"

namespace sluice {

// What every event of an answer, or the whole of it, says alike.
struct AnswerFacts {
  std::string id;
  std::string model;
  std::string fingerprint;
  int64_t created = 0;                   // seconds since 1970
  const Tokenizer* tokenizer = nullptr;  // null: texts of tokens are empty
};

Json UsageJson(const Usage& usage, uint32_t reasoning_tokens);
// llama.cpp's names.
Json TimingsJson(const Timings& timings, const Usage& usage);

// "stop" or "length".
const char* FinishWord(FinishReason reason);

// The bytes that a token stands for; a special one's spelling.
std::string BytesOfToken(const Tokenizer* tokenizer, int32_t id);
// Those as UTF-8, what is no whole character as U+FFFD.
std::string TextOfToken(const Tokenizer* tokenizer, int32_t id);

// JSON has no infinity: what has no probability is given this.
inline constexpr double kLogprobFloor = -9999.0;
double LogprobNumber(float logprob);

// Entries of chat's logprobs.content, with `top` candidates each.
Json ChatLogprobs(const Tokenizer* tokenizer, absl::Span<const TokenOut> tokens, uint32_t top);

// "data: {..}\n\n"
void AppendEvent(const Json& json, std::string* out);
// "event: NAME\ndata: {..}\n\n"
void AppendNamedEvent(const char* name, const Json& json, std::string* out);

}  // namespace sluice
