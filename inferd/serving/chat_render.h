// Renders a conversation to the prompt's token ids, by the model's chat template or the request's own.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/chat/chat_template.h"
#include "inferd/serving/serving_context.h"

namespace sluice::inferd {

// Form of tool call arguments for a template.
enum class ArgumentsAs { kObject, kText };

// A conversation as read by a server.
struct Conversation {
  // Returns the object for ChatTemplate::Render().
  std::function<absl::StatusOr<std::string>(ArgumentsAs)> json;
  bool has_tool_calls = false;
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
// RESOURCE_EXHAUSTED (TEMPLATE_LIMIT); errors of `conversation.json`.
absl::StatusOr<ChatPrompt> RenderConversation(const ServingContext& context,
                                              const Conversation& conversation);

}  // namespace sluice::inferd
