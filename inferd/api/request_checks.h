// Checks of requests before they are queued: every bound of engine_api.h, with the field's name and both
// numbers in the error.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "inferd/api/engine_api.h"

namespace sluice::inferd {

struct RequestBounds {
  uint32_t vocab = 0;
  uint32_t context = 0;
  uint32_t max_logprobs = 0;
  bool has_text = false;  // true with a tokenizer: stop strings work
};

inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 1024;
inline constexpr size_t kMaxStopIds = 64;
inline constexpr size_t kMaxSaltBytes = 256;
inline constexpr size_t kMaxLogitBias = 1024;

// INVALID_ARGUMENT with the field (FieldError); reason CONTEXT_TOO_LONG where prompt and answer do not fit.
absl::Status CheckGenerate(const GenerateSpec& spec, const RequestBounds& bounds);
absl::Status CheckScore(const ScoreSpec& spec, const RequestBounds& bounds);

}  // namespace sluice::inferd
