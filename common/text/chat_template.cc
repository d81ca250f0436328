#include "common/text/chat_template.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "common/text/jinja_interpreter.h"
#include "common/text/jinja_parser.h"

namespace sluice {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxConversationBytes = 16 << 20;
constexpr JsonLimits kConversationJson{
    .max_values = 100'000, .max_members = 1024, .allow_duplicate_keys = true};
constexpr size_t kMaxTemplateBytes = 1 << 20;
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG";

// Converts a client's JSON to values. All of its text, keys included, is marked as the client's, so that none
// of it can become a control token.
jinja::Value ClientValue(const OrderedJson& json) {
  switch (json.type()) {
    case OrderedJson::value_t::string:
      return jinja::Value(jinja::String::FromClient(json.get_ref<const std::string&>()));
    case OrderedJson::value_t::boolean:
      return jinja::Value(json.get<bool>());
    case OrderedJson::value_t::number_integer:
    case OrderedJson::value_t::number_unsigned:
      return jinja::Value(json.get<int64_t>());
    case OrderedJson::value_t::number_float:
      return jinja::Value(json.get<double>());
    case OrderedJson::value_t::array: {
      jinja::List list;
      for (const OrderedJson& item : json) {
        list.push_back(ClientValue(item));
      }
      return jinja::Value(std::move(list));
    }
    case OrderedJson::value_t::object: {
      jinja::Map map;
      map.client = true;
      for (const auto& [key, item] : json.items()) {
        map.emplace_back(key, ClientValue(item));
      }
      return jinja::Value(std::move(map));
    }
    default:
      return jinja::Value(jinja::None{});
  }
}

// Drops null members, which templates would print as "None", and stores reasoning under all the names that
// templates use for it.
absl::Status NormalizeMessages(OrderedJson* messages) {
  for (OrderedJson& message : *messages) {
    if (!message.is_object()) {
      return absl::InvalidArgumentError("conversation: a message is not an object");
    }
    OrderedJson kept = OrderedJson::object();
    for (const auto& [name, value] : message.items()) {
      if (!value.is_null()) {
        kept[name] = value;
      }
    }
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      if (kept.contains(name)) {
        const OrderedJson reasoning = kept[name];
        if (!kept.contains("thinking")) {
          kept["thinking"] = reasoning;
        }
        kept["reasoning_content"] = reasoning;
        break;
      }
    }
    message = std::move(kept);
  }
  return absl::OkStatus();
}

// Tags the end of the message to be continued. A template may trim a message or add to it, so the cut
// position in the rendered text is found by a tag, as in transformers.
absl::Status TagFinalMessage(const ChatRenderOptions& options, OrderedJson* messages) {
  if (options.add_generation_prompt) {
    return absl::InvalidArgumentError(
        "conversation: the last message cannot be continued and a new one begun at once");
  }
  if (messages->empty() || !messages->back().contains("content") ||
      !messages->back()["content"].is_string()) {
    return absl::InvalidArgumentError("conversation: there is no last message with text to continue");
  }
  std::string& content = messages->back()["content"].get_ref<std::string&>();
  if (content.find(kContinueTag) != std::string::npos) {
    return absl::InvalidArgumentError("conversation: the last message holds a reserved text");
  }
  content.append(kContinueTag).append(" ");
  return absl::OkStatus();
}

absl::Status CutAtTag(RenderedChat* chat) {
  const size_t tag = chat->text.rfind(kContinueTag);
  if (tag == std::string::npos) {
    return absl::InvalidArgumentError(
        "chat template: it leaves the last message out, which was to be continued");
  }
  size_t end = tag;
  if (chat->text.compare(tag + kContinueTag.size(), 1, " ") != 0) {  // the template trims messages
    while (end > 0 && absl::ascii_isspace(static_cast<unsigned char>(chat->text[end - 1]))) {
      --end;
    }
  }
  chat->text.resize(end);
  chat->marks.resize(end);
  return absl::OkStatus();
}

// Roles of the protocol are one of a fixed set and cannot carry a client's text, while templates build
// control tokens from them (<|user|>).
void MarkRoles(const jinja::Value& messages) {
  for (const jinja::Value& message : *messages.list()) {
    jinja::Value* role = jinja::FindKey(*message.map(), "role");
    if (role == nullptr || role->string() == nullptr) {
      continue;
    }
    for (const std::string_view known : kChatRoles) {
      if (role->string()->text == known) {
        *role = jinja::Value(jinja::String::FromTemplate(known));
        break;
      }
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(
    const std::string& source, std::map<std::string, std::string> special_tokens) {
  if (source.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("chat template: ", source.size(), " bytes, more than ", kMaxTemplateBytes));
  }
  auto made = std::unique_ptr<ChatTemplate>(new ChatTemplate());
  absl::StatusOr<jinja::Block> block = jinja::Parse(source);
  if (!block.ok()) {
    return Annotate(block.status(), "chat template");
  }
  made->block_ = *std::move(block);
  made->special_tokens_ = std::move(special_tokens);
  return made;
}

absl::StatusOr<RenderedChat> ChatTemplate::Render(const std::string& conversation,
                                                  const ChatRenderOptions& options) const {
  if (conversation.size() > kMaxConversationBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("conversation: ", conversation.size(), " bytes, more than ", kMaxConversationBytes));
  }
  ASSIGN_OR_RETURN(OrderedJson json, ParseOrderedJson(conversation, "conversation", kConversationJson));
  if (!json.is_object() || !json.contains("messages") || !json["messages"].is_array()) {
    return absl::InvalidArgumentError("conversation: expected a JSON object with a list `messages`");
  }
  for (const auto& [name, value] : json.items()) {
    if (special_tokens_.contains(name) || name == "add_generation_prompt") {
      return absl::InvalidArgumentError(absl::StrCat("conversation: `", name, "` is not a client's to set"));
    }
  }
  RETURN_IF_ERROR(NormalizeMessages(&json["messages"]));
  if (options.continue_final_message) {
    RETURN_IF_ERROR(TagFinalMessage(options, &json["messages"]));
  }
  const jinja::Value given = ClientValue(json);
  jinja::Map variables = *given.map();
  variables.client = false;
  MarkRoles(*jinja::FindKey(variables, "messages"));
  ASSIGN_OR_RETURN(RenderedChat rendered, RenderVariables(std::move(variables), options));
  if (options.continue_final_message) {
    RETURN_IF_ERROR(CutAtTag(&rendered));
  }
  return rendered;
}

absl::StatusOr<RenderedChat> ChatTemplate::RenderVariables(jinja::Map variables,
                                                           const ChatRenderOptions& options) const {
  for (const auto& [name, token] : special_tokens_) {
    jinja::SetKey(variables, name, jinja::Value(jinja::String::FromTemplate(token)));
  }
  jinja::SetKey(variables, "add_generation_prompt", jinja::Value(options.add_generation_prompt));
  for (const char* name : {"tools", "documents"}) {
    if (jinja::FindKey(variables, name) == nullptr) {
      jinja::SetKey(variables, name, jinja::Value(jinja::None{}));
    }
  }
  absl::StatusOr<jinja::String> rendered = jinja::Render(block_, variables, options.now, options.limits);
  if (!rendered.ok()) {
    return Annotate(rendered.status(), "chat template");
  }
  return RenderedChat{std::move(rendered->text), std::move(rendered->marks)};
}

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
