#include "cli/client/conversation.h"

#include "absl/strings/str_cat.h"

namespace sluice::cli {

void Conversation::Ask(const std::string& question) { turns_.push_back({question, "", false}); }

void Conversation::Answer(const std::string& text) {
  turns_.back().answer = text;
  turns_.back().answered = true;
}

bool Conversation::TakeBack() {
  if (turns_.empty()) {
    return false;
  }
  turns_.pop_back();
  return true;
}

bool Conversation::ForgetOldest() {
  if (turns_.empty()) {
    return false;
  }
  turns_.erase(turns_.begin());
  return true;
}

void Conversation::Fill(google::protobuf::RepeatedPtrField<api::ChatMessage>* messages) const {
  const auto add = [messages](api::ChatRole role, const std::string& content) {
    api::ChatMessage* message = messages->Add();
    message->set_role(role);
    message->set_content(content);
  };
  if (!system_.empty()) {
    add(api::CHAT_ROLE_SYSTEM, system_);
  }
  for (const Turn& turn : turns_) {
    add(api::CHAT_ROLE_USER, turn.question);
    if (turn.answered) {
      add(api::CHAT_ROLE_ASSISTANT, turn.answer);
    }
  }
}

Json Conversation::Messages() const {
  Json messages = Json::Array();
  const auto add = [&messages](const char* role, const std::string& content) {
    messages.Append(Json::Object().Set("role", role).Set("content", content));
  };
  if (!system_.empty()) {
    add("system", system_);
  }
  for (const Turn& turn : turns_) {
    add("user", turn.question);
    if (turn.answered) {
      add("assistant", turn.answer);
    }
  }
  return messages;
}

absl::Status AddTemplateArgument(const std::string& argument, api::ChatOptions* options) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--template-arg '", argument, "' is not of the form NAME=VALUE"));
  }
  const std::string value = argument.substr(equals + 1);
  (*options->mutable_template_variables())[argument.substr(0, equals)] =
      IsJson(value) ? value : Json(value).Dump();
  return absl::OkStatus();
}

}  // namespace sluice::cli
