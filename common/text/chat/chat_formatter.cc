#include "common/text/chat/chat_formatter.h"

#include <algorithm>
#include <utility>

#include "common/status.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<ChatFormatter>> ChatFormatter::Create(const std::string& template_source,
                                                                     const Tokenizer& tokenizer) {
  auto formatter = std::unique_ptr<ChatFormatter>(new ChatFormatter(tokenizer));
  ASSIGN_OR_RETURN(formatter->template_,
                   ChatTemplate::Create(template_source, tokenizer.special_token_names()));
  formatter->control_ = tokenizer.ControlTokens(template_source);
  formatter->end_of_turn_ = formatter->FindEndOfTurn();
  return formatter;
}

absl::StatusOr<FormattedChat> ChatFormatter::Format(const std::string& conversation,
                                                    const ChatRenderOptions& options) const {
  ASSIGN_OR_RETURN(RenderedChat rendered, template_->Render(conversation, options));
  FormattedChat chat;
  ASSIGN_OR_RETURN(chat.ids, tokenizer_.EncodeMarked(rendered.text, rendered.marks, control_));
  chat.text = std::move(rendered.text);
  return chat;
}

// Finds the end-of-turn token: renders an answered question and takes the token that the template puts right
// after the answer, because templates do not declare it otherwise.
std::optional<int32_t> ChatFormatter::FindEndOfTurn() const {
  constexpr char kAnswered[] =
      R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]})";
  ChatRenderOptions options;
  options.add_generation_prompt = false;
  const absl::StatusOr<RenderedChat> rendered = template_->Render(kAnswered, options);
  if (!rendered.ok()) {
    return std::nullopt;  // the template may require another form of conversation
  }
  const size_t answer = rendered->marks.rfind('\1');
  if (answer == std::string::npos || rendered->text[answer] != 'A') {
    return std::nullopt;
  }
  const std::string behind = rendered->text.substr(answer + 1);
  const auto ids = tokenizer_.EncodeMarked(behind, std::string(behind.size(), '\0'), control_);
  const bool ends = ids.ok() && !ids->empty() && tokenizer_.is_special(ids->front());
  return ends ? std::optional<int32_t>(ids->front()) : std::nullopt;
}

}  // namespace sluice
