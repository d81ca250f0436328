// From the messages of clients to the engine's terms: what is gRPC's own of it; the rest, which every door
// shares, is inferd/serving/generation_plan.h.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inferd/api/engine_api.h"
#include "inferd/service/chat_prompt.h"
#include "inferd/serving/generation_plan.h"
#include "inferd/serving/serving_context.h"
#include "sluice/inference/v1/evaluation.pb.h"
#include "sluice/inference/v1/generation.pb.h"
#include "sluice/inference/v1/inference.pb.h"

namespace sluice {

// How an answer is reported.
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
// (UNKNOWN_MODEL), FAILED_PRECONDITION (NO_TOKENIZER). Field paths begin at the request: "spec...".
// REQUIRES of both: CheckNoUnknownFields(the request).ok().
absl::StatusOr<GenerationPlan> PlanGeneration(const ServingContext& context, const CallFacts& call,
                                              const inference::v1::GenerationSpec& spec);

// The same for a conversation; also the errors of MakeChatPrompt. `spec` must have no prompt.
absl::StatusOr<GenerationPlan> PlanChat(const ServingContext& context, const CallFacts& call,
                                        const inference::v1::GenerationSpec& spec,
                                        const ConversationView& conversation);

absl::StatusOr<ScoreSpec> PlanScore(const ServingContext& context, const CallFacts& call,
                                    const inference::v1::ScoreRequest& request);

// INVALID_ARGUMENT (UNKNOWN_FIELD) naming the message and the number if `message` or anything in it has a
// field that this build does not know: nothing a client asks for is ignored.
absl::Status CheckNoUnknownFields(const google::protobuf::Message& message);

// `ids`, each checked to be below `limit`.
absl::StatusOr<std::vector<int32_t>> TokenIdsOf(const google::protobuf::RepeatedField<uint32_t>& ids,
                                                uint32_t limit, const std::string& field);

}  // namespace sluice
