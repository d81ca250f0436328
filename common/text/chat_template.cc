#include "common/text/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/jinja_interpreter.h"
#include "common/text/jinja_parser.h"

namespace sluice {
namespace {

using jinja::Value;

constexpr int kMaxJsonDepth = 64;
constexpr size_t kMaxConversationBytes = 16 << 20;
constexpr size_t kMaxValues = 100'000;
constexpr size_t kMaxMembers = 1024;  // per object: a lookup is linear in them
constexpr size_t kMaxTemplateBytes = 1 << 20;
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG";

// ValueReader: reads a client's JSON as values, whole numbers of any length with all of their digits. All of
// its text, keys included, is marked as the client's, so that none of it can become a control token.
class ValueReader {
 public:
  using Sax = nlohmann::json_sax<nlohmann::json>;

  static absl::StatusOr<Value> Read(const std::string& text) {
    ValueReader reader;
    if (!nlohmann::json::sax_parse(text, &reader) && reader.status_.ok()) {
      return absl::InvalidArgumentError("conversation: no JSON");
    }
    RETURN_IF_ERROR(reader.status_);
    return std::move(reader.root_);
  }

  // Events of nlohmann's parser; false stops it.
  bool null() { return Add(Value(jinja::None{})); }
  bool boolean(bool value) { return Add(Value(value)); }
  bool number_integer(Sax::number_integer_t value) { return Add(Value(int64_t{value})); }
  bool number_unsigned(Sax::number_unsigned_t value) { return Add(Value(jinja::Integer{value})); }
  bool number_float(Sax::number_float_t value, const std::string& written) {
    return Add(written.find_first_of(".eE") == std::string::npos ? jinja::IntegerOf(written) : Value(value));
  }
  bool string(const std::string& value) { return Add(Value(jinja::String::FromClient(value))); }
  bool binary(Sax::binary_t&) { return false; }
  bool key(const std::string& value) {
    keys_.back() = Value(jinja::String::FromClient(value));
    return true;
  }
  bool start_object(size_t) { return Open(Value(jinja::Map())); }
  bool start_array(size_t) { return Open(Value(jinja::List())); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) { return false; }

 private:
  bool Fail(const std::string& message) {
    status_ = absl::InvalidArgumentError(absl::StrCat("conversation: ", message));
    return false;
  }
  bool Add(Value value) {
    if (++values_ > kMaxValues) {
      return Fail(absl::StrCat("more than ", kMaxValues, " values"));
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    if (jinja::List* list = open_.back().list()) {
      list->push_back(std::move(value));
      return true;
    }
    jinja::Map& map = *open_.back().map();
    jinja::SetItem(map, std::move(keys_.back()), std::move(value));
    return map.size() <= kMaxMembers ||
           Fail(absl::StrCat("an object of more than ", kMaxMembers, " members"));
  }
  bool Open(const Value& container) {
    if (open_.size() > kMaxJsonDepth) {
      return Fail(absl::StrCat("nested deeper than ", kMaxJsonDepth));
    }
    if (!Add(container)) {  // shared: its items are added behind
      return false;
    }
    open_.push_back(container);
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  Value root_;
  std::vector<Value> open_;
  std::vector<Value> keys_;  // the next member's, by open container
  size_t values_ = 0;
  absl::Status status_;
};

std::string TextOr(jinja::Map& map, std::string_view key, const std::string& otherwise) {
  const Value* value = jinja::FindKey(map, key);
  return value != nullptr && value->string() != nullptr ? value->string()->text : otherwise;
}

void Set(jinja::Map& map, std::string_view key, Value value) {
  jinja::SetItem(map, Value(jinja::String::FromClient(key)), std::move(value));
}

absl::StatusOr<Value> ArgumentsInForm(const Value& given, ArgumentsAs form) {
  if (form == ArgumentsAs::kGiven) {
    return given;
  }
  const jinja::String* text = given.string();
  if (form == ArgumentsAs::kText) {
    if (text != nullptr) {
      return given;
    }
    ASSIGN_OR_RETURN(jinja::String written, jinja::ToJson(given, {}));
    return Value(std::move(written));
  }
  Value value = given;
  if (text != nullptr) {
    const absl::StatusOr<Value> read = ValueReader::Read(text->text.empty() ? "{}" : text->text);
    value = read.ok() && read->map() != nullptr ? *read : given;
  }
  if (value.map() == nullptr && form == ArgumentsAs::kObjectAlways) {
    jinja::Map map;
    Set(map, "arguments", value);
    return Value(std::move(map));
  }
  return value;
}

// Returns nine letters or digits for an id, the same for the same id. Mistral's templates accept no others.
std::string ShortId(const std::string& id) {
  const bool fits = id.size() == 9 && std::all_of(id.begin(), id.end(), [](char c) {
                      return absl::ascii_isalnum(static_cast<unsigned char>(c));
                    });
  if (fits) {
    return id;
  }
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : id) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::string out;
  for (int i = 0; i < 9; ++i, hash /= 36) {
    out += kLetters[hash % 36];
  }
  return out;
}

absl::Status AdaptCalls(const Value& calls, const MessageForms& forms, size_t message) {
  for (size_t i = 0; calls.list() != nullptr && i < calls.list()->size(); ++i) {
    jinja::Map* call = (*calls.list())[i].map();
    if (call == nullptr) {
      continue;
    }
    const Value* function = jinja::FindKey(*call, "function");
    jinja::Map& owner = function != nullptr && function->map() != nullptr ? *function->map() : *call;
    if (Value* arguments = jinja::FindKey(owner, "arguments")) {
      ASSIGN_OR_RETURN(*arguments, ArgumentsInForm(*arguments, forms.arguments));
    }
    if (forms.short_ids) {  // without an id a call is identified by its position
      const std::string id = TextOr(*call, "id", absl::StrCat("call ", message, " ", i));
      Set(*call, "id", Value(jinja::String::FromClient(ShortId(id))));
    }
  }
  return absl::OkStatus();
}

// Replaces a list of text parts by one text. Lists with other parts stay.
void JoinParts(Value* content) {
  jinja::String text;
  for (size_t i = 0; i < content->list()->size(); ++i) {
    const jinja::Map* part = (*content->list())[i].map();
    Value* own = part == nullptr ? nullptr : jinja::FindKey(*(*content->list())[i].map(), "text");
    if (own == nullptr || own->string() == nullptr) {
      return;
    }
    text.Append(jinja::String::FromClient(i == 0 ? "" : "\n"));
    text.Append(*own->string());
  }
  *content = Value(std::move(text));
}

// Stores reasoning under all the names that templates use for it.
void NameReasoning(jinja::Map& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* found = jinja::FindKey(message, name);
    if (found == nullptr) {
      continue;
    }
    const Value reasoning = *found;
    if (jinja::FindKey(message, "thinking") == nullptr) {
      Set(message, "thinking", reasoning);
    }
    Set(message, "reasoning_content", reasoning);
    return;
  }
}

// Puts the text of a message with calls behind its thought, for templates that take only one of them.
void MergeThought(jinja::Map& message) {
  Value* thought = jinja::FindKey(message, "thinking");
  Value* content = jinja::FindKey(message, "content");
  if (jinja::FindKey(message, "tool_calls") == nullptr || thought == nullptr ||
      thought->string() == nullptr || content == nullptr || content->string() == nullptr ||
      content->string()->text.empty()) {
    return;
  }
  jinja::String merged = *thought->string();
  merged.Append(jinja::String::FromClient(merged.text.empty() ? "" : "\n\n"));
  merged.Append(*content->string());
  *content = Value(jinja::String());
  for (const char* name : {"thinking", "reasoning_content", "reasoning"}) {
    if (Value* own = jinja::FindKey(message, name)) {
      *own = Value(merged);
    }
  }
}

// Drops null members, which templates would print as "None", and gives each message the forms asked for.
absl::Status NormalizeMessages(const MessageForms& forms, jinja::List* messages) {
  for (size_t i = 0; i < messages->size(); ++i) {
    if ((*messages)[i].map() == nullptr) {
      return absl::InvalidArgumentError("conversation: a message is not an object");
    }
    jinja::Map& message = *(*messages)[i].map();
    std::erase_if(message, [](const auto& member) { return member.second.none(); });
    NameReasoning(message);
    if (Value* content = jinja::FindKey(message, "content");
        content != nullptr && content->list() != nullptr && forms.join_parts) {
      JoinParts(content);
    }
    if (forms.merge_thoughts) {
      MergeThought(message);
    }
    if (const Value* calls = jinja::FindKey(message, "tool_calls")) {
      RETURN_IF_ERROR(AdaptCalls(*calls, forms, i));
    }
    if (const std::string id = TextOr(message, "tool_call_id", ""); forms.short_ids && !id.empty()) {
      Set(message, "tool_call_id", Value(jinja::String::FromClient(ShortId(id))));
    }
  }
  return absl::OkStatus();
}

// Tags the end of the message to be continued. A template may trim a message or add to it, so the cut
// position in the rendered text is found by a tag, as in transformers.
absl::Status TagFinalMessage(const ChatRenderOptions& options, jinja::List* messages) {
  if (options.add_generation_prompt) {
    return absl::InvalidArgumentError(
        "conversation: the last message cannot be continued and a new one begun at once");
  }
  Value* content = messages->empty() ? nullptr : jinja::FindKey(*messages->back().map(), "content");
  if (content != nullptr && content->list() != nullptr) {
    JoinParts(content);
  }
  if (content == nullptr || content->string() == nullptr) {
    return absl::InvalidArgumentError("conversation: there is no last message with text to continue");
  }
  jinja::String tagged = *content->string();
  if (tagged.text.find(kContinueTag) != std::string::npos) {
    return absl::InvalidArgumentError("conversation: the last message holds a reserved text");
  }
  tagged.Append(jinja::String::FromClient(std::string(kContinueTag) + " "));
  *content = Value(std::move(tagged));
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
void MarkRoles(const jinja::List& messages) {
  for (const Value& message : messages) {
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

// Returns true if the template reads a variable of this name.
bool ReadsVariable(const std::string& source, std::string_view name) {
  const absl::StatusOr<std::vector<jinja::Token>> tokens = jinja::Tokenize(source);
  if (!tokens.ok()) {
    return false;
  }
  for (size_t i = 0; i < tokens->size(); ++i) {
    const bool attribute =
        i > 0 && (*tokens)[i - 1].kind == jinja::Token::Kind::kOperator && (*tokens)[i - 1].text == ".";
    if ((*tokens)[i].kind == jinja::Token::Kind::kName && (*tokens)[i].text == name && !attribute) {
      return true;
    }
  }
  return false;
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
  made->reads_tools_ = ReadsVariable(source, "tools");
  made->special_tokens_ = std::move(special_tokens);
  return made;
}

absl::StatusOr<RenderedChat> ChatTemplate::Render(const std::string& conversation,
                                                  const ChatRenderOptions& options) const {
  if (conversation.size() > kMaxConversationBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("conversation: ", conversation.size(), " bytes, more than ", kMaxConversationBytes));
  }
  ASSIGN_OR_RETURN(const Value given, ValueReader::Read(conversation));
  const Value* messages = given.map() != nullptr ? jinja::FindKey(*given.map(), "messages") : nullptr;
  if (messages == nullptr || messages->list() == nullptr) {
    return absl::InvalidArgumentError("conversation: expected a JSON object with a list `messages`");
  }
  jinja::Names variables;
  for (const auto& [name, value] : *given.map()) {
    const std::string& text = name.string()->text;
    if (special_tokens_.contains(text) || text == "add_generation_prompt") {
      return absl::InvalidArgumentError(absl::StrCat("conversation: `", text, "` is not a client's to set"));
    }
    variables.emplace_back(text, value);
  }
  RETURN_IF_ERROR(NormalizeMessages(options.forms, messages->list()));
  if (options.continue_final_message) {
    RETURN_IF_ERROR(TagFinalMessage(options, messages->list()));
  }
  MarkRoles(*messages->list());
  ASSIGN_OR_RETURN(RenderedChat rendered, RenderVariables(std::move(variables), options));
  if (options.continue_final_message) {
    RETURN_IF_ERROR(CutAtTag(&rendered));
  }
  return rendered;
}

absl::StatusOr<RenderedChat> ChatTemplate::RenderVariables(jinja::Names variables,
                                                           const ChatRenderOptions& options) const {
  for (const auto& [name, token] : special_tokens_) {
    jinja::SetName(variables, name, jinja::Value(jinja::String::FromTemplate(token)));
  }
  jinja::SetName(variables, "add_generation_prompt", jinja::Value(options.add_generation_prompt));
  for (const char* name : {"tools", "documents"}) {
    if (jinja::FindName(variables, name) == nullptr) {
      jinja::SetName(variables, name, jinja::Value(jinja::None{}));
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
  formatter->FindForms();
  return formatter;
}

absl::StatusOr<FormattedChat> ChatFormatter::Format(const std::string& conversation,
                                                    const ChatRenderOptions& options) const {
  ASSIGN_OR_RETURN(RenderedChat rendered, RenderInForms(conversation, options));
  FormattedChat chat;
  ASSIGN_OR_RETURN(chat.ids, tokenizer_.EncodeMarked(rendered.text, rendered.marks, control_));
  chat.text = std::move(rendered.text);
  return chat;
}

// Tries further forms where the template refuses the usual ones: a refusal depends on the conversation, and
// no template declares what it takes.
absl::StatusOr<RenderedChat> ChatFormatter::RenderInForms(const std::string& conversation,
                                                          ChatRenderOptions options) const {
  const bool text_first = forms_.arguments == ArgumentsAs::kText;
  const ArgumentsAs order[] = {forms_.arguments, text_first ? ArgumentsAs::kObject : ArgumentsAs::kText,
                               ArgumentsAs::kObjectAlways};
  absl::Status first;
  for (const bool merge : {false, true}) {
    for (const ArgumentsAs arguments : order) {
      options.forms = forms_;
      options.forms.arguments = arguments;
      options.forms.merge_thoughts = merge;
      absl::StatusOr<RenderedChat> rendered = template_->Render(conversation, options);
      if (rendered.ok() || !absl::IsInvalidArgument(rendered.status()) ||
          conversation.find("\"tool_calls\"") == std::string::npos) {
        return rendered;
      }
      first = first.ok() ? rendered.status() : first;
    }
  }
  return first;
}

// Finds the forms of messages that the template takes, by what it makes of small conversations.
void ChatFormatter::FindForms() {
  ChatRenderOptions options;
  options.add_generation_prompt = false;
  const auto prints = [&](const std::string& conversation, std::string_view text) {
    const absl::StatusOr<RenderedChat> rendered = template_->Render(conversation, options);
    return rendered.ok() && rendered->text.find(text) != std::string::npos;
  };
  const auto with_call = [](const std::string& id, const std::string& arguments) {
    return absl::StrCat(
        R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "",)",
        R"( "tool_calls": [{"type": "function", "id": ")", id, R"(", "function": {"name": "f",)",
        R"( "arguments": )", arguments, R"(}}]}, {"role": "tool", "name": "f", "tool_call_id": ")", id,
        R"(", "content": "R"}, {"role": "assistant", "content": "A"}]})");
  };
  forms_.join_parts =
      !prints(
          R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "text", "text": "P1"}]}]})",
          "P1") ||
      prints(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}]}]})", "'type'");
  const std::string object = with_call("abcdefghi", R"({"kü":7})");
  // A template with a syntax of its own for objects, or its own escapes, is given them: the model knows
  // these.
  const bool own_syntax = prints(object, "k") && !prints(object, R"("kü":7)") &&
                          !prints(object, R"("kü": 7)") && !prints(object, "'kü'");
  const bool text = !own_syntax && prints(with_call("abcdefghi", R"("{\"kü\":7}")"), R"({"kü":7})");
  forms_.arguments = text ? ArgumentsAs::kText : ArgumentsAs::kObject;
  const std::string arguments = text ? R"("{}")" : R"({"k":7})";
  forms_.short_ids =
      prints(with_call("abcdefghi", arguments), "f") && !prints(with_call("call_abcdefghi", arguments), "f");
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
