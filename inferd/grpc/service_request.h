// Conversion of gRPC requests, including conversations, to engine requests.
//
// Renders a client's conversation to the prompt's token ids, by the model's chat template or the request's
// own.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inferd/api/engine_api.h"
#include "inferd/serving/generation_plan.h"
#include "inferd/serving/serving_context.h"
#include "sluice/inference/v1/evaluation.pb.h"
#include "sluice/inference/v1/generation.pb.h"
#include "sluice/inference/v1/inference.pb.h"

namespace sluice::inferd {

// Fields common to Chat, ChatStream and Tokenize. Both pointees must outlive it.
struct ConversationView {
  const google::protobuf::RepeatedPtrField<inference::v1::ChatMessage>& messages;
  const inference::v1::ChatOptions& options;
};

// INVALID_ARGUMENT (INVALID_FIELD) for a wrong field; errors of RenderConversation.
absl::StatusOr<ChatPrompt> MakeChatPrompt(const ServingContext& context,
                                          const ConversationView& conversation);

// Converts gRPC requests to the engine's types. The part common to all servers is
// inferd/serving/generation_plan.h.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.

// Reporting options of an answer.
struct ReportOptions {
  bool text = true;
  bool token_ids = true;
  bool logprobs = false;
  uint32_t interval_tokens = 1;
};

struct GenerationPlan {
  GenerateSpec spec;
  ReportOptions report;
};

// INVALID_ARGUMENT (INVALID_FIELD, CONTEXT_TOO_LONG), UNIMPLEMENTED (UNSUPPORTED_FIELD), NOT_FOUND
// (UNKNOWN_MODEL), FAILED_PRECONDITION (NO_TOKENIZER). Field paths begin at the request: "spec...". REQUIRES
// for both: CheckNoUnknownFields(the request).ok().
absl::StatusOr<GenerationPlan> PlanGeneration(const ServingContext& context, const CallFacts& call,
                                              const inference::v1::GenerationSpec& spec);

// Same for a conversation; also the errors of MakeChatPrompt. `spec` must have no prompt.
absl::StatusOr<GenerationPlan> PlanChat(const ServingContext& context, const CallFacts& call,
                                        const inference::v1::GenerationSpec& spec,
                                        const ConversationView& conversation);

absl::StatusOr<ScoreSpec> PlanScore(const ServingContext& context, const CallFacts& call,
                                    const inference::v1::ScoreRequest& request);

// INVALID_ARGUMENT (UNKNOWN_FIELD) naming the message and the number if `message` or any part of it has a
// field unknown to this build: no field is silently ignored.
absl::Status CheckNoUnknownFields(const google::protobuf::Message& message);

// Returns `ids`, each checked to be below `limit`.
absl::StatusOr<std::vector<int32_t>> TokenIdsOf(const google::protobuf::RepeatedField<uint32_t>& ids,
                                                uint32_t limit, const std::string& field);

}  // namespace sluice::inferd
