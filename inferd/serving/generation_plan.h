// From a generating request, whichever door it came through, to the engine's terms: every bound checked, the
// model's defaults applied. This is the one place where a request's fields become an engine request.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "inferd/api/engine_api.h"
#include "inferd/api/guide_spec.h"
#include "inferd/serving/serving_context.h"

namespace sluice {

// What a call brings besides its message.
struct CallFacts {
  std::string client;      // fairness key
  std::string request_id;  // the metadata x-request-id; empty if there is none
  absl::Time deadline = absl::InfiniteFuture();
};

// A generating request as a door has read it: types are right, nothing else is checked. What is absent takes
// the model's default.
struct RequestFields {
  std::string model;       // empty: the served one
  std::string request_id;  // empty: CallFacts::request_id, else a new one
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<uint32_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> presence_penalty;
  std::vector<std::pair<int64_t, double>> logit_bias;
  std::optional<uint64_t> seed;
  std::optional<uint32_t> max_tokens;  // absent: what the context has room for
  // Whether a larger max_tokens than the context has room for is cut to it, and not refused.
  bool clip_max_tokens = false;
  uint32_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_in_output = false;
  uint32_t logprobs = 0;
  int32_t priority = 0;
  absl::Duration timeout = absl::InfiniteDuration();         // for all of the request; beside the call's own
  absl::Duration max_queue_wait = absl::InfiniteDuration();  // for its start
  std::string cache_salt;
  bool bypass_prefix_cache = false;
  std::optional<GuideSpec> guide;
};

// What a door's clients call the groups of fields: errors name "<sampling>top_p".
struct FieldNames {
  std::string request;   // "spec." for request_id
  std::string sampling;  // "spec.sampling."
  std::string stopping;
  std::string output;
  std::string cache;
  std::string max_tokens = "max_tokens";
};

// All of the engine's request but its prompt. NOT_FOUND (UNKNOWN_MODEL); INVALID_ARGUMENT (INVALID_FIELD);
// FAILED_PRECONDITION (NO_TOKENIZER) for a guide, whose own errors are the engine's to find.
absl::StatusOr<GenerateSpec> PlanRequest(const ServingContext& context, const CallFacts& call,
                                         const RequestFields& fields, const FieldNames& names);

// Checks spec->prompt, which the client calls `prompt_field`, against the context, and plans what ends the
// answer, which depends on its length. INVALID_ARGUMENT (CONTEXT_TOO_LONG with both numbers, INVALID_FIELD).
absl::Status FitToPrompt(const ServingContext& context, const RequestFields& fields, const FieldNames& names,
                         const std::string& prompt_field, GenerateSpec* spec);

// A conversation's answer ends with its template's end of turn, too. Some models end a turn with a token that
// is not among their end-of-text tokens; without it the answer would run on into an invented next turn.
void StopAtEndOfTurn(const ServingContext& context, std::optional<int32_t> end_of_turn, GenerateSpec* spec);

// At least one token, and at most `room`: what the context has room for.
absl::Status CheckPromptFits(const ServingContext& context, size_t tokens, size_t room,
                             const std::string& field);

// NOT_FOUND (UNKNOWN_MODEL) unless `model` is empty, the served model's id or its name.
absl::Status CheckModel(const ServingContext& context, const std::string& model);

// FAILED_PRECONDITION (NO_TOKENIZER) if the model has none.
absl::Status CheckTokenizer(const ServingContext& context);

// The request's own id, else the call's, else a new one. `field` is what the client calls its own.
absl::StatusOr<std::string> RequestIdOf(const CallFacts& call, const std::string& own,
                                        const std::string& field);
// A random UUID of version 4, so that ids of different servers and lives never meet in a log.
std::string NewRequestId();

absl::Time DeadlineOf(const ServingContext& context, const CallFacts& call);

// Sampling as it is where a request sets nothing.
SamplingParams DefaultSampling(const GenerationDefaults& defaults);

}  // namespace sluice
