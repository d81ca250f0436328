#include "inferd/http/messages_api.h"

#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "inferd/http/answer_format.h"
#include "inferd/http/request_fields.h"

namespace sluice::inferd {
namespace {

// Returns the text of a string or of text blocks.
absl::StatusOr<std::string> TextOfBlocks(const Json& content, const std::string& path) {
  if (content.is_string()) {
    return content.get<std::string>();
  }
  if (!content.is_array()) {
    return BadField(path, absl::StrCat("is ", KindOf(content), ", must be a string or a list of blocks"));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string block = absl::StrCat(path, "[", i, "]");
    std::string own;
    std::string type;
    if (!content[i].is_object()) {
      return BadField(block, "must be an object");
    }
    const JsonFields fields(content[i], block + ".");
    RETURN_IF_ERROR(fields.Take("type", &type));
    if (type != "text") {
      return BadField(fields.Path("type"),
                      absl::StrCat("is \"", type.substr(0, 40), "\": only text is understood here"));
    }
    RETURN_IF_ERROR(fields.Take("text", &own));
    absl::StrAppend(&text, i == 0 ? "" : "\n", own);
  }
  return text;
}

// Returns the text of a document or of a search result; its type in brackets if it is no text.
std::string DocumentText(const Json& block) {
  const auto source = block.find("source");
  if (source != block.end() && source->is_object() && TextMember(*source, "type") == "text") {
    return TextMember(*source, "data");
  }
  std::string text;
  if (const auto content = block.find("content"); content != block.end() && content->is_array()) {
    for (const Json& part : *content) {
      text += part.is_object() && part.contains("text") && part["text"].is_string() ? part["text"] : Json("");
    }
  }
  return text.empty() ? absl::StrCat("[", TextMember(block, "type"), "]") : text;
}

// Returns the text of a tool's result. Parts that are no text are named in their place.
absl::StatusOr<std::string> ResultText(const Json& content, const std::string& path) {
  Json blocks = content;
  for (size_t i = 0; blocks.is_array() && i < blocks.size(); ++i) {
    if (blocks[i].is_object() && blocks[i].contains("type") && blocks[i]["type"].is_string() &&
        blocks[i]["type"] != "text") {
      blocks[i] = {{"type", "text"}, {"text", DocumentText(blocks[i])}};
    }
  }
  return TextOfBlocks(blocks, path);
}

// Converts one message's blocks to chat messages: tool results are separate messages there.
class MessageBlocks {
 public:
  explicit MessageBlocks(const std::string& role) : message_({{"role", role}, {"content", ""}}) {}

  absl::Status Add(const Json& block, const std::string& path) {
    if (!block.is_object()) {
      return BadField(path, "must be an object");
    }
    const JsonFields fields(block, path + ".");
    std::string type;
    std::string text;
    RETURN_IF_ERROR(fields.Take("type", &type));
    if (type == "text") {
      RETURN_IF_ERROR(fields.Take("text", &text));
      AddText(text);
      return absl::OkStatus();
    }
    if (type == "thinking") {
      RETURN_IF_ERROR(fields.Take("thinking", &text));
      message_["reasoning_content"] = text;
      return absl::OkStatus();
    }
    if (type == "redacted_thinking") {
      return absl::OkStatus();
    }
    if (type == "tool_use") {
      return AddCall(fields);
    }
    if (type == "tool_result") {
      return AddResult(fields);
    }
    if (type == "image") {
      return BadField(fields.Path("type"),
                      "is \"image\": this model understands text, tool_use and tool_result");
    }
    if (type == "document" || type == "search_result") {
      AddText(DocumentText(block));
    }
    return absl::OkStatus();  // calls and results of tools that only their maker runs, and the like
  }

  // Results precede the user's text of the same message.
  void MoveTo(Json* messages) {
    for (Json& result : results_) {
      messages->push_back(std::move(result));
    }
    if (results_.empty() || has_text_) {
      messages->push_back(std::move(message_));
    }
  }
  void AddText(const std::string& text) {
    std::string& content = message_["content"].get_ref<std::string&>();
    absl::StrAppend(&content, has_text_ ? "\n" : "", text);
    has_text_ = true;
  }

 private:
  absl::Status AddCall(const JsonFields& fields) {
    std::string id;
    std::string name;
    RETURN_IF_ERROR(fields.Take("id", &id));
    RETURN_IF_ERROR(fields.Take("name", &name));
    ASSIGN_OR_RETURN(const Json* input, fields.TakeObject("input"));
    message_["tool_calls"].push_back(
        {{"id", id},
         {"type", "function"},
         {"function", {{"name", name}, {"arguments", input != nullptr ? *input : Json::object()}}}});
    return absl::OkStatus();
  }
  absl::Status AddResult(const JsonFields& fields) {
    std::string id;
    std::string text;
    RETURN_IF_ERROR(fields.Take("tool_use_id", &id));
    if (const Json* content = fields.Find("content"); content != nullptr) {
      ASSIGN_OR_RETURN(text, ResultText(*content, fields.Path("content")));
    }
    results_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", text}});
    return absl::OkStatus();
  }

  Json message_;
  Json results_ = Json::array();
  bool has_text_ = false;
};

absl::StatusOr<Json> ConvertMessages(const JsonFields& body) {
  Json messages = Json::array();
  if (const Json* system = body.Find("system"); system != nullptr) {
    ASSIGN_OR_RETURN(std::string text, TextOfBlocks(*system, "system"));
    if (!text.empty()) {
      messages.push_back({{"role", "system"}, {"content", std::move(text)}});
    }
  }
  ASSIGN_OR_RETURN(const Json* list, body.TakeList("messages"));
  if (list == nullptr || list->empty()) {
    return BadField("messages", "is missing or empty");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = absl::StrCat("messages[", i, "]");
    if (!(*list)[i].is_object()) {
      return BadField(path, "must be an object");
    }
    const JsonFields fields((*list)[i], path + ".");
    std::string role;
    RETURN_IF_ERROR(fields.Take("role", &role));
    const Json* content = fields.Find("content");
    if ((role != "user" && role != "assistant" && role != "system") || content == nullptr) {
      return content == nullptr ? BadField(fields.Path("content"), "is missing")
                                : BadField(fields.Path("role"), "must be user or assistant");
    }
    MessageBlocks blocks(role);
    if (content->is_string()) {
      blocks.AddText(content->get<std::string>());
    } else if (content->is_array()) {
      for (size_t j = 0; j < content->size(); ++j) {
        RETURN_IF_ERROR(blocks.Add((*content)[j], absl::StrCat(path, ".content[", j, "]")));
      }
    } else {
      return BadField(fields.Path("content"), "must be a string or a list of blocks");
    }
    blocks.MoveTo(&messages);
  }
  return messages;
}

// Returns the function for a tool that the client runs and whose schema follows from its type; null for tools
// that only their maker runs.
Json ClientTool(const Json& tool, const std::string& type) {
  const Json text = {{"type", "string"}};
  Json properties;
  Json required = {"command"};
  std::string description;
  if (absl::StartsWith(type, "bash_")) {
    description = "Runs a command in a shell on the user's machine, or restarts the shell.";
    properties = {{"command", text}, {"restart", {{"type", "boolean"}}}};
    required = Json::array();
  } else if (absl::StartsWith(type, "text_editor_")) {
    description = "Views and edits files on the user's machine.";
    properties = {{"command", {{"type", "string"}, {"enum", {"view", "create", "str_replace", "insert"}}}},
                  {"path", text},
                  {"file_text", text},
                  {"old_str", text},
                  {"new_str", text},
                  {"insert_line", {{"type", "integer"}}},
                  {"insert_text", text},
                  {"view_range", {{"type", "array"}, {"items", {{"type", "integer"}}}}}};
    required.push_back("path");
  } else {
    return Json();
  }
  return {{"name", tool.contains("name") ? tool["name"] : Json("")},
          {"description", description},
          {"parameters",
           {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}}}};
}

absl::Status ReadMessagesTools(const JsonFields& body, spdlog::logger* log, Json* chat) {
  ASSIGN_OR_RETURN(const Json* tools, body.TakeList("tools"));
  std::set<std::string> left_out;
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const std::string path = absl::StrCat("tools[", i, "]");
    if (!(*tools)[i].is_object()) {
      return BadField(path, "must be an object");
    }
    const JsonFields fields((*tools)[i], path + ".");
    std::string type;
    RETURN_IF_ERROR(fields.Take("type", &type));
    if (!type.empty() && type != "custom") {
      Json known = ClientTool((*tools)[i], type);
      if (known.is_null()) {
        left_out.insert(type.substr(0, 40));
      } else {
        (*chat)["tools"].push_back({{"type", "function"}, {"function", std::move(known)}});
      }
      continue;
    }
    Json function = {{"name", ""}};
    for (const auto& [from, to] : {std::pair("name", "name"), std::pair("description", "description"),
                                   std::pair("input_schema", "parameters")}) {
      if (const Json* value = fields.Find(from); value != nullptr) {
        function[to] = *value;
      }
    }
    (*chat)["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  if (!left_out.empty()) {
    log->info("/v1/messages: tools left out that this server does not run: {}",
              absl::StrJoin(left_out, ", "));
  }
  ASSIGN_OR_RETURN(const Json* choice, body.TakeObject("tool_choice"));
  if (choice == nullptr) {
    return absl::OkStatus();
  }
  const JsonFields fields(*choice, "tool_choice.");
  std::string type;
  std::string name;
  bool single = false;
  RETURN_IF_ERROR(fields.Take("type", &type));
  RETURN_IF_ERROR(fields.Take("name", &name));
  RETURN_IF_ERROR(fields.Take("disable_parallel_tool_use", &single));
  (*chat)["parallel_tool_calls"] = !single;
  if (type == "any") {
    (*chat)["tool_choice"] = "required";
  } else if (type == "tool") {
    (*chat)["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
  } else {
    (*chat)["tool_choice"] = type;
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ChatOfMessages(const Json& body, spdlog::logger* log) {
  if (!JsonFields(body).Has("max_tokens")) {
    return BadField("max_tokens", "is missing");
  }
  return ChatOfCountTokens(body, log);
}

}  // namespace

const ChatApi& MessagesApi() {
  static const ChatApi* const api = new ChatApi{
      "http_messages",
      "msg_",
      &ChatOfMessages,
      {{"stop", "stop_sequences"}, {".function.parameters", ".input_schema"}, {".function.", "."}},
      &MakeWriter<MessagesWriter>};
  return *api;
}

absl::StatusOr<Json> ChatOfCountTokens(const Json& body, spdlog::logger* log) {
  const JsonFields fields(body);
  Json chat = Json::object();
  for (const auto& [from, to] : {std::pair("model", "model"), std::pair("max_tokens", "max_tokens"),
                                 std::pair("stop_sequences", "stop"), std::pair("temperature", "temperature"),
                                 std::pair("top_p", "top_p"), std::pair("top_k", "top_k"),
                                 std::pair("stream", "stream"), std::pair("output_format", "output_format"),
                                 std::pair("chat_template_kwargs", "chat_template_kwargs")}) {
    if (const Json* value = fields.Find(from); value != nullptr) {
      chat[to] = *value;
    }
  }
  CopyServingFields(fields, &chat);
  ASSIGN_OR_RETURN(chat["messages"], ConvertMessages(fields));
  RETURN_IF_ERROR(ReadMessagesTools(fields, log, &chat));
  ASSIGN_OR_RETURN(const Json* output, fields.TakeObject("output_config"));
  if (output != nullptr && output->contains("format")) {
    chat["output_config.format"] = (*output)["format"];
  }
  ASSIGN_OR_RETURN(const Json* thinking, fields.TakeObject("thinking"));
  if (thinking != nullptr) {
    std::string type;
    RETURN_IF_ERROR(JsonFields(*thinking, "thinking.").Take("type", &type));
    if (!chat.contains("chat_template_kwargs") || !chat["chat_template_kwargs"].is_object()) {
      chat["chat_template_kwargs"] = Json::object();
    }
    chat["chat_template_kwargs"]["enable_thinking"] = type != "disabled";
  }
  return chat;
}

MessagesWriter::MessagesWriter(ChatWriterOptions options)
    : options_(std::move(options)), text_(options_.dialect, options_.parsing) {}

Json MessagesWriter::Message() const {
  return {{"id", options_.facts.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", options_.facts.model},
          {"content", Json::array()},
          {"stop_reason", stop_reason_.empty() ? Json() : Json(stop_reason_)},
          {"stop_sequence", stop_sequence_}};
}

void MessagesWriter::Begin(std::string* out) {
  if (std::exchange(begun_, true)) {
    return;
  }
  Json message = Message();
  message["usage"] = {{"input_tokens", running_.prompt_tokens - running_.cached_prompt_tokens},
                      {"cache_read_input_tokens", running_.cached_prompt_tokens},
                      {"output_tokens", 0}};
  AppendNamedEvent("message_start", {{"type", "message_start"}, {"message", std::move(message)}}, out);
}

void MessagesWriter::OpenBlock(Kind kind, const std::string& name, std::string* out) {
  CloseBlock(out);
  open_ = true;
  kind_ = kind;
  ++block_;
  Json block = {{"type", "text"}, {"text", ""}};
  if (kind == Kind::kReasoning) {
    block = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
  } else if (kind == Kind::kCall) {
    block = {{"type", "tool_use"},
             {"id", absl::StrCat("toolu_", text_.calls()[calls_++].id)},
             {"name", name},
             {"input", Json::object()}};
  }
  AppendNamedEvent("content_block_start",
                   {{"type", "content_block_start"}, {"index", block_}, {"content_block", std::move(block)}},
                   out);
}

void MessagesWriter::CloseBlock(std::string* out) {
  if (std::exchange(open_, false)) {
    AppendNamedEvent("content_block_stop", {{"type", "content_block_stop"}, {"index", block_}}, out);
  }
}

void MessagesWriter::Events(const std::vector<MessageEvent>& events, std::string* out) {
  for (const MessageEvent& event : events) {
    const bool part_of_call = event.kind == Kind::kArguments;
    if (event.kind == Kind::kCall || (!part_of_call && (!open_ || kind_ != event.kind))) {
      OpenBlock(event.kind, event.text, out);
    }
    Json delta;
    switch (event.kind) {
      case Kind::kReasoning:
        delta = {{"type", "thinking_delta"}, {"thinking", event.text}};
        break;
      case Kind::kText:
        delta = {{"type", "text_delta"}, {"text", event.text}};
        break;
      case Kind::kCall:
        continue;
      case Kind::kArguments:
        delta = {{"type", "input_json_delta"}, {"partial_json", event.text}};
        break;
    }
    AppendNamedEvent("content_block_delta",
                     {{"type", "content_block_delta"}, {"index", block_}, {"delta", std::move(delta)}}, out);
  }
}

void MessagesWriter::Add(size_t, AnswerPiece piece, const Usage& running, std::string* out) {
  const uint32_t fresh = running.completion_tokens - running_.completion_tokens;
  running_ = running;
  const std::vector<MessageEvent> events = text_.Push(piece.text, fresh);
  if (options_.style.stream) {
    Begin(out);
    Events(events, out);
  }
}

void MessagesWriter::Finish(size_t, const FinishInfo& info, std::string* out) {
  running_ = info.usage;
  const std::vector<MessageEvent> events = text_.Finish();
  if (options_.style.stream) {
    Begin(out);
    Events(events, out);
    CloseBlock(out);
  }
  stop_reason_ = info.reason == FinishReason::kLength         ? "max_tokens"
                 : !text_.calls().empty()                     ? "tool_use"
                 : info.reason == FinishReason::kStopSequence ? "stop_sequence"
                                                              : "end_turn";
  if (info.matched_stop_string.has_value()) {
    stop_sequence_ = *info.matched_stop_string;
  }
}

void MessagesWriter::End(const AnswerTotals& totals, std::string* out) {
  const Json usage = {{"input_tokens", totals.usage.prompt_tokens - totals.usage.cached_prompt_tokens},
                      {"cache_read_input_tokens", totals.usage.cached_prompt_tokens},
                      {"output_tokens", totals.usage.completion_tokens}};
  if (options_.style.stream) {
    AppendNamedEvent("message_delta",
                     {{"type", "message_delta"},
                      {"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
                      {"usage", usage}},
                     out);
    AppendNamedEvent("message_stop", {{"type", "message_stop"}}, out);
    return;
  }
  Json message = Message();
  Json& content = message["content"];
  if (!text_.reasoning().empty()) {
    content.push_back({{"type", "thinking"}, {"thinking", text_.reasoning()}, {"signature", ""}});
  }
  if (!text_.content().empty()) {
    content.push_back({{"type", "text"}, {"text", text_.content()}});
  }
  for (const ToolCallText& call : text_.calls()) {
    Json input = ParseBounded(call.arguments);
    content.push_back({{"type", "tool_use"},
                       {"id", absl::StrCat("toolu_", call.id)},
                       {"name", call.name},
                       {"input", input.is_object() ? std::move(input) : Json::object()}});
  }
  message["usage"] = usage;
  *out = Dump(message);
}

std::string MessagesWriter::ErrorEvent(const absl::Status& status) const {
  return absl::StrCat("event: error\ndata: ", ErrorObject(status, ErrorStyle::kAnthropic), "\n\n");
}

}  // namespace sluice::inferd
