// Converts a generating request of any server to the engine's types: checks every bound, applies the model's
// defaults. This is the only place where a request's fields become an engine request.
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
#include "common/text/chat_template.h"
#include "inferd/api/engine_api.h"
#include "inferd/api/request_checks.h"
#include "inferd/serving/serving_context.h"

namespace sluice::inferd {

// Facts of a call besides its message.
struct CallFacts {
  std::string client;      // fairness key
  std::string request_id;  // metadata x-request-id; empty if absent
  absl::Time deadline = absl::InfiniteFuture();
};

// A generating request as read by a server: types are valid, nothing else is checked. A server sets those
// fields of `spec` that the client sent, all but the prompt, the client and the deadline.
struct RequestFields {
  // Sets the model's defaults.
  explicit RequestFields(const ServingContext& context);

  std::string model;                   // empty: the served model
  GenerateSpec spec;                   // request_id empty: CallFacts::request_id, else a new one
  std::optional<uint32_t> max_tokens;  // absent: the rest of the context
  // True to reduce max_tokens to the rest of the context instead of refusing it.
  bool clip_max_tokens = false;
  absl::Duration timeout = absl::InfiniteDuration();  // total time of the request, besides the call's
};

// Builds the engine's request without its prompt, all fields checked (request_checks.h). NOT_FOUND
// (UNKNOWN_MODEL); INVALID_ARGUMENT (INVALID_FIELD); FAILED_PRECONDITION (NO_TOKENIZER) for a constraint,
// whose own errors are found by the engine.
absl::StatusOr<GenerateSpec> PlanRequest(const ServingContext& context, const CallFacts& call,
                                         const RequestFields& fields, const FieldNames& names);

// Sets the maximum of tokens, which depends on the length of spec->prompt, and checks both. The client's name
// of the prompt is `prompt_field`. INVALID_ARGUMENT (CONTEXT_TOO_LONG with both numbers, INVALID_FIELD).
absl::Status FitToPrompt(const ServingContext& context, const RequestFields& fields, const FieldNames& names,
                         const std::string& prompt_field, GenerateSpec* spec);

// Adds the template's end of turn to the stop tokens. Some models end a turn with a token that is not among
// their end-of-text tokens; without it the answer would continue with an invented next turn.
void StopAtEndOfTurn(const ServingContext& context, std::optional<int32_t> end_of_turn, GenerateSpec* spec);

// Bounds of a request that depend on the served model.
RequestLimits LimitsOf(const ServingContext& context);

// NOT_FOUND (UNKNOWN_MODEL) unless `model` is empty, the served model's id or its name.
absl::Status CheckModel(const ServingContext& context, const std::string& model);

// Errors of ServerState::Engine(); RESOURCE_EXHAUSTED (QUEUE_FULL) if the queue has no place for any request
// of `client`. Servers ask before they parse a request: under overload a refusal must not cost the reading of
// its text.
absl::Status CheckQueueSpace(const ServingContext& context, const std::string& client);

// FAILED_PRECONDITION (NO_TOKENIZER) if the model has none.
absl::Status CheckTokenizer(const ServingContext& context);

// Returns the request's own id, else the call's, else a new one. `field` is the client's name of its own.
absl::StatusOr<std::string> RequestIdOf(const CallFacts& call, const std::string& own,
                                        const std::string& field);
// Returns a random UUID of version 4, so that ids of different servers and runs never collide in a log.
std::string NewRequestId();

absl::Time DeadlineOf(const ServingContext& context, const CallFacts& call);

// Returns the sampling parameters of a request that sets none.
SamplingParams DefaultSampling(const GenerationDefaults& defaults);

// Renders a conversation to the prompt's token ids, by the model's chat template or the request's own.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.

// A conversation as read by a server.
struct Conversation {
  std::string json;                                      // the object for ChatTemplate::Render()
  std::string chat_template;                             // empty: the model's
  std::string template_field = "options.chat_template";  // the client's name of it
  ChatRenderOptions render;
};

struct ChatPrompt {
  std::string text;
  std::vector<int32_t> ids;
  std::optional<int32_t> end_of_turn;  // ends an answer, besides the model's end tokens
};

// FAILED_PRECONDITION (NO_CHAT_TEMPLATE, NO_TOKENIZER); INVALID_ARGUMENT (TEMPLATE_REFUSED with the
// template's words); UNIMPLEMENTED (TEMPLATE_UNSUPPORTED) naming what the interpreter lacks;
// RESOURCE_EXHAUSTED (TEMPLATE_LIMIT).
absl::StatusOr<ChatPrompt> RenderConversation(const ServingContext& context,
                                              const Conversation& conversation);

}  // namespace sluice::inferd
