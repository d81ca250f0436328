// A chat request of OpenAI's API, and of those that are turned into one, to what the engine and the answer's
// writer need.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/dialect/dialect.h"
#include "inferd/dialect/message_parser.h"
#include "inferd/openai/fields/chat_tools.h"
#include "inferd/openai/fields/generation_fields.h"
#include "inferd/openai/fields/guide_fields.h"
#include "inferd/openai/fields/json_body.h"
#include "inferd/serving/chat_render.h"
#include "inferd/serving/generation_plan.h"
#include "inferd/serving/serving_context.h"

namespace sluice {

struct ChatRequest {
  RequestFields fields;
  FieldNames names;
  AnswerStyle style;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  Json messages = Json::array();  // as templates take them, arguments of calls as objects
  ChatTools tools;
  std::string guide_field;          // what the client calls fields.guide
  Json variables = Json::object();  // of the template
  bool continue_last = false;
  bool has_tool_calls = false;
};

// One message as templates take it. INVALID_ARGUMENT naming the field below `path`.
absl::StatusOr<Json> ReadChatMessage(const Json& message, const std::string& path);

// INVALID_ARGUMENT naming the field.
absl::StatusOr<ChatRequest> ReadChat(const Json& body, const ServingContext& context);

// The conversation for RenderConversation; `chat` outlives it. A model without a template is given the
// messages' text to go on with, one under the other.
Conversation ConversationOf(const ServingContext& context, const ChatRequest& chat);

struct ChatPlan {
  std::vector<GenerateSpec> specs;  // of the choices
  Dialect dialect;  // that reads them: a guide may have them written in another than the model's
  MessageParserOptions parsing;
  std::vector<std::string> guide_fields;  // for InClientsTerms
};

// Renders and checks. Errors of PlanRequest, RenderConversation and FitToPrompt.
absl::StatusOr<ChatPlan> PlanChatAnswer(const ServingContext& context, const CallFacts& call,
                                        const ChatRequest& chat);

// The tokens of `marks` that are special and so would be left out of the text. Ascending.
std::vector<int32_t> SpelledTokens(const Tokenizer& tokenizer, const std::vector<std::string>& marks);

// `spec` as `n` requests of their own: ids with their index, seeds counted on.
std::vector<GenerateSpec> Choices(const GenerateSpec& spec, uint32_t n, uint32_t first);

}  // namespace sluice
