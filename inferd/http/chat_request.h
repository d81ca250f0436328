// Parses chat requests in OpenAI's format, also those converted from other APIs, and plans their generation.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/http/chat_tools.h"
#include "inferd/http/json_body.h"
#include "inferd/http/request_fields.h"
#include "inferd/serving/dialect.h"
#include "inferd/serving/generation_plan.h"
#include "inferd/serving/message_parser.h"
#include "inferd/serving/serving_context.h"

namespace sluice::inferd {

struct ChatRequest {
  RequestFields fields;
  FieldNames names;
  AnswerStyle style;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  Json messages = Json::array();  // in the form of templates; arguments of calls as the client gave them
  ChatTools tools;
  std::string constraint_field;     // the client's name of the constraint
  Json variables = Json::object();  // variables of the template
  bool continue_last = false;
};

// Reads one message in the form of templates. INVALID_ARGUMENT naming the field below `path`.
absl::StatusOr<Json> ReadChatMessage(const Json& message, const std::string& path);

// INVALID_ARGUMENT naming the field.
absl::StatusOr<ChatRequest> ReadChat(const Json& body, const ServingContext& context);

// Returns the conversation for RenderConversation. For a model without a template,
// the prompt is the messages' text, one below the other, to be continued.
Conversation ConversationOf(const ServingContext& context, const ChatRequest& chat);

struct ChatPlan {
  std::vector<GenerateSpec> specs;  // by choice
  Dialect dialect;                  // of the answer; a constraint may impose another dialect than the model's
  MessageParserOptions parsing;
  std::vector<std::string> constraint_fields;  // for ToClientFieldNames
};

// Renders and checks the prompt. Errors of PlanRequest, RenderConversation and FitToPrompt.
absl::StatusOr<ChatPlan> PlanChatAnswer(const ServingContext& context, const CallFacts& call,
                                        const ChatRequest& chat);

// Returns those tokens of `marks` that are special, and would otherwise be omitted from the text. Ascending.
std::vector<int32_t> VisibleSpecialTokens(const Tokenizer& tokenizer, const std::vector<std::string>& marks);

// Splits `spec` into `n` requests: index appended to the id, seed incremented.
std::vector<GenerateSpec> Choices(const GenerateSpec& spec, uint32_t n, uint32_t first);

}  // namespace sluice::inferd
