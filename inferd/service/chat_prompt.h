// From a client's conversation to the prompt's token ids, by the model's chat template or the request's own.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/serving/serving_context.h"
#include "sluice/inference/v1/inference.pb.h"

namespace sluice {

// What Chat, ChatStream and Tokenize have in common. Both pointees outlive it.
struct ConversationView {
  const google::protobuf::RepeatedPtrField<inference::v1::ChatMessage>& messages;
  const inference::v1::ChatOptions& options;
};

struct ChatPrompt {
  std::string text;
  std::vector<int32_t> ids;
  std::optional<int32_t> end_of_turn;  // ends an answer, besides the model's end tokens
};

// FAILED_PRECONDITION (NO_CHAT_TEMPLATE, NO_TOKENIZER); INVALID_ARGUMENT (INVALID_FIELD for a field,
// TEMPLATE_REFUSED with the template's words); UNIMPLEMENTED (TEMPLATE_UNSUPPORTED) naming what the
// interpreter lacks; RESOURCE_EXHAUSTED (TEMPLATE_LIMIT).
absl::StatusOr<ChatPrompt> MakeChatPrompt(const ServingContext& context,
                                          const ConversationView& conversation);

}  // namespace sluice
