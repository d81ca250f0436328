// Bounds of a request's fields, and the only check of them. HTTP, gRPC and the command line refuse a value
// outside of its bound before the engine gets the request; the reference documents name the same numbers.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "inferd/api/engine_api.h"

namespace sluice::inferd {

// Fields with a constant bound, in the order of the table.
enum class Field : uint8_t {
  kTemperature,
  kTopP,
  kTopK,
  kMinP,
  kRepetitionPenalty,
  kFrequencyPenalty,
  kPresencePenalty,
  kLogitBias,        // each value
  kLogitBiasTokens,  // their number
  kChoices,
  kMaxTokens,  // the context bounds it too
  kStopTexts,
  kStopText,  // each text
  kStopTokenIds,
  kLogprobs,
  kCacheSalt,
  kRequestId,
  kTimeout,
  kMaxQueueWait,
};

struct FieldBound {
  Field field;
  const char* name;  // in the protos; HTTP's own names are in docs/reference/http.md
  double least;
  double most;            // 2^32 - 1: none but the type's
  const char* unit = "";  // of both
  bool excludes_least = false;
  bool excludes_most = false;
};

// Every bound, by Field.
absl::Span<const FieldBound> FieldBounds();
const FieldBound& BoundOf(Field field);

// The bound in words, as errors and documents have it: "0 to 2", "above 0, at most 1", "at most 16 texts".
std::string RangeOf(const FieldBound& bound);

// INVALID_ARGUMENT with the client's `name` of the field, the value and the bound. NaN is outside of every
// bound.
absl::Status CheckBound(Field field, double value, const std::string& name);

// Client names of the groups of fields: errors name "<sampling>top_p".
struct FieldNames {
  std::string request;   // "spec.", the prefix of request_id
  std::string sampling;  // "spec.sampling."
  std::string stopping;
  std::string output;
  std::string cache;
  std::string max_tokens = "max_tokens";
  std::string logprobs = "logprobs";
};

// Properties of the served model that bound its requests.
struct RequestLimits {
  uint32_t vocab = 0;
  uint32_t context = 0;
  bool has_text = false;  // true with a tokenizer: stop strings work
};

// Checks what depends on neither the prompt nor the number of tokens. INVALID_ARGUMENT with the field.
absl::Status CheckFields(const GenerateSpec& spec, const RequestLimits& limits, const FieldNames& names);

// Checks the rest of a request that passed CheckFields. INVALID_ARGUMENT with the field; reason
// CONTEXT_TOO_LONG where prompt and answer do not fit.
absl::Status CheckLengths(const GenerateSpec& spec, const RequestLimits& limits, const FieldNames& names,
                          const std::string& prompt_field);

// Requires at least one token and at most `most`, each in the vocabulary. INVALID_ARGUMENT with the field;
// reason CONTEXT_TOO_LONG above `most`.
absl::Status CheckPrompt(absl::Span<const int32_t> ids, size_t most, const RequestLimits& limits,
                         const std::string& field);

// INVALID_ARGUMENT (CONTEXT_TOO_LONG).
absl::Status ContextTooLong(const std::string& field, const std::string& description);

}  // namespace sluice::inferd
