#include "inferd/serving/chat_render.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error_detail.h"
#include "common/status.h"
#include "common/text/chat/chat_formatter.h"
#include "inferd/serving/generation_plan.h"

namespace sluice::inferd {
namespace {

absl::Status WithReason(absl::Status status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      status.SetPayload(kReasonPayload, absl::Cord("TEMPLATE_REFUSED"));
      break;
    case absl::StatusCode::kUnimplemented:
      status.SetPayload(kReasonPayload, absl::Cord("TEMPLATE_UNSUPPORTED"));
      break;
    case absl::StatusCode::kResourceExhausted:
      status.SetPayload(kReasonPayload, absl::Cord("TEMPLATE_LIMIT"));
      break;
    default:
      break;
  }
  return status;
}

absl::StatusOr<FormattedChat> Format(const ChatFormatter& formatter, const Conversation& conversation) {
  ASSIGN_OR_RETURN(const std::string json, conversation.json(ArgumentsAs::kObject));
  absl::StatusOr<FormattedChat> chat = formatter.Format(json, conversation.render);
  // Templates differ in whether they need tool call arguments as an object or as its text, and do not declare
  // it. A template that refuses the object gets the text; if it refuses both, the first error is reported.
  if (absl::IsInvalidArgument(chat.status()) && conversation.has_tool_calls) {
    ASSIGN_OR_RETURN(const std::string with_text, conversation.json(ArgumentsAs::kText));
    if (auto second = formatter.Format(with_text, conversation.render); second.ok()) {
      return second;
    }
  }
  return chat.ok() ? std::move(chat) : WithReason(chat.status());
}

}  // namespace

absl::StatusOr<ChatPrompt> RenderConversation(const ServingContext& context,
                                              const Conversation& conversation) {
  RETURN_IF_ERROR(CheckTokenizer(context));
  const ChatFormatter* formatter = context.chat;
  std::unique_ptr<ChatFormatter> own;
  if (const std::string& source = conversation.chat_template; !source.empty()) {
    auto made = ChatFormatter::Create(source, *context.tokenizer);
    if (!made.ok()) {
      return WithReason(Annotate(made.status(), conversation.template_field));
    }
    own = *std::move(made);
    formatter = own.get();
  }
  if (formatter == nullptr) {
    return context.chat_error.ok()
               ? ReasonError(absl::StatusCode::kFailedPrecondition, "NO_CHAT_TEMPLATE",
                             absl::StrCat("model ", context.model.name,
                                          " has no chat template: give one with the request or when packing, "
                                          "or call Generate"))
               : WithReason(context.chat_error);
  }
  ASSIGN_OR_RETURN(FormattedChat chat, Format(*formatter, conversation));
  return ChatPrompt{std::move(chat.text), std::move(chat.ids), formatter->end_of_turn()};
}

}  // namespace sluice::inferd
