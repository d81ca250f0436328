// Conversion of gRPC requests, including conversations, to engine requests.
//
// Renders a client's conversation to the prompt's token ids, by the model's chat template or the request's
// own.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.
#pragma once

#include "absl/status/statusor.h"
#include "inferd/serving/chat_render.h"
#include "inferd/serving/serving_context.h"
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

}  // namespace sluice::inferd
