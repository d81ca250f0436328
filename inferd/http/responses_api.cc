#include "inferd/http/responses_api.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "inferd/http/answer_format.h"
#include "inferd/http/chat_request.h"
#include "inferd/http/request_fields.h"

namespace sluice::inferd {
namespace {

constexpr char kLocalShell[] = "local_shell";

// Returns the text of a reasoning item: its content, or else its summary.
std::string ReasoningText(const Json& item) {
  std::string text;
  for (const char* name : {"content", "summary"}) {
    const auto parts = item.find(name);
    for (size_t i = 0; text.empty() && parts != item.end() && parts->is_array() && i < parts->size(); ++i) {
      const Json& part = (*parts)[i];
      const auto own = part.is_object() ? part.find("text") : part.end();
      if (part.is_object() && own != part.end() && own->is_string()) {
        text += own->get<std::string>();
      }
    }
  }
  return text;
}

// Returns the last message, which is made the assistant's: an item of its turn follows.
Json& AssistantTurn(Json* messages) {
  if (messages->empty() || messages->back()["role"] != "assistant") {
    messages->push_back({{"role", "assistant"}, {"content", ""}});
  }
  return messages->back();
}

// Adds a call to the assistant's turn: parallel calls are one message of a chat.
void AddCall(const std::string& id, const std::string& name, Json arguments, Json* messages) {
  AssistantTurn(messages)["tool_calls"].push_back(
      {{"id", id},
       {"type", "function"},
       {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
}

// Returns a call's output as content of a message. Parts that are no text are named in their place.
Json OutputContent(const Json* output) {
  if (output == nullptr || output->is_string()) {
    return output == nullptr ? Json("") : *output;
  }
  if (!output->is_array()) {
    return Dump(*output);
  }
  Json parts = Json::array();
  for (const Json& part : *output) {
    const bool text = part.is_object() && part.contains("text") && part["text"].is_string();
    const std::string type = TextMember(part, "type");
    parts.push_back({{"type", "text"}, {"text", text ? part["text"] : Json(absl::StrCat("[", type, "]"))}});
  }
  return parts;
}

absl::Status AddMessage(const JsonFields& fields, const std::string& path, Json* messages) {
  Json message = {{"role", ""}, {"content", Json()}};
  for (const char* name : {"role", "content"}) {
    if (const Json* value = fields.Find(name); value != nullptr) {
      message[name] = *value;
    }
  }
  // Checked here, where errors have the client's field name.
  RETURN_IF_ERROR(ReadChatMessage(message, path).status());
  const bool thought_alone = !messages->empty() && messages->back().contains("reasoning_content") &&
                             messages->back()["content"] == "" && !messages->back().contains("tool_calls");
  if (thought_alone && message["role"] == "assistant") {
    messages->back()["content"] = message["content"];
  } else {
    messages->push_back(std::move(message));
  }
  return absl::OkStatus();
}

// Appends one input item as chat messages. Items of tools that only their maker runs are left out.
absl::Status AddItem(const Json& item, const std::string& path, Json* messages) {
  if (!item.is_object()) {
    return BadField(path, absl::StrCat("is ", KindOf(item), ", must be an object"));
  }
  const JsonFields fields(item, path + ".");
  std::string type = "message";
  RETURN_IF_ERROR(fields.Take("type", &type));
  if (type == "message") {
    return AddMessage(fields, path, messages);
  }
  if (type == "item_reference") {
    return BadField(fields.Path("type"), "is \"item_reference\": items are not kept; send the item itself");
  }
  if (type == "reasoning") {
    if (std::string text = ReasoningText(item); !text.empty()) {
      messages->push_back({{"role", "assistant"}, {"content", ""}, {"reasoning_content", std::move(text)}});
    }
    return absl::OkStatus();
  }
  std::string id;
  std::string name;
  RETURN_IF_ERROR(fields.Take("call_id", &id));
  if (type == "function_call") {
    std::string arguments;
    RETURN_IF_ERROR(fields.Take("name", &name));
    RETURN_IF_ERROR(fields.Take("arguments", &arguments));
    AddCall(id, name, arguments, messages);
  } else if (type == "custom_tool_call") {
    std::string input;
    RETURN_IF_ERROR(fields.Take("name", &name));
    RETURN_IF_ERROR(fields.Take("input", &input));
    AddCall(id, name, {{"input", input}}, messages);
  } else if (type == "local_shell_call") {
    ASSIGN_OR_RETURN(const Json* action, fields.TakeObject("action"));
    Json arguments = action != nullptr ? *action : Json::object();
    arguments.erase("type");
    AddCall(id, kLocalShell, std::move(arguments), messages);
  } else if (fields.Has("output") && !id.empty()) {  // function_call_output and its like
    messages->push_back(
        {{"role", "tool"}, {"tool_call_id", id}, {"content", OutputContent(fields.Find("output"))}});
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ReadInput(const JsonFields& body) {
  Json messages = Json::array();
  std::string instructions;
  RETURN_IF_ERROR(body.Take("instructions", &instructions));
  if (!instructions.empty()) {
    messages.push_back({{"role", "system"}, {"content", instructions}});
  }
  const Json* input = body.Find("input");
  if (input == nullptr || (!input->is_string() && !input->is_array())) {
    return BadField("input", input == nullptr ? "is missing" : "must be a string or a list of items");
  }
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return messages;
  }
  for (size_t i = 0; i < input->size(); ++i) {
    RETURN_IF_ERROR(AddItem((*input)[i], absl::StrCat("input[", i, "]"), &messages));
  }
  return messages;
}

// Returns the function that represents a tool; null if the model cannot use a tool of this type.
Json FunctionOfTool(const Json& tool, const std::string& type) {
  if (type == "function") {
    Json function = tool;
    function.erase("type");
    return function;
  }
  if (type == "custom") {  // free text; the description states a client's grammar
    std::string description = TextMember(tool, "description");
    if (const auto format = tool.find("format"); format != tool.end() && format->is_object() &&
                                                 format->contains("definition") &&
                                                 (*format)["definition"].is_string()) {
      absl::StrAppend(&description, description.empty() ? "" : "\n", "The input follows this grammar:\n",
                      (*format)["definition"].get<std::string>());
    }
    return {{"name", TextMember(tool, "name")},
            {"description", description},
            {"parameters",
             {{"type", "object"},
              {"properties",
               {{"input", {{"type", "string"}, {"description", "The tool's input, as plain text."}}}}},
              {"required", {"input"}}}}};
  }
  if (type == kLocalShell) {
    return {{"name", kLocalShell},
            {"description", "Runs a command on the user's machine and returns its output."},
            {"parameters",
             {{"type", "object"},
              {"properties",
               {{"command", {{"type", "array"}, {"items", {{"type", "string"}}}}},
                {"working_directory", {{"type", "string"}}},
                {"timeout_ms", {{"type", "integer"}}}}},
              {"required", {"command"}}}}};
  }
  return Json();
}

absl::Status AddTools(const Json& tools, const std::string& path, std::set<std::string>* left_out,
                      Json* chat) {
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string own = absl::StrCat(path, "[", i, "]");
    if (!tools[i].is_object()) {
      return BadField(own, "must be an object");
    }
    const JsonFields fields(tools[i], own + ".");
    std::string type;
    std::string text;
    RETURN_IF_ERROR(fields.Take("type", &type));
    RETURN_IF_ERROR(fields.Take("name", &text));
    RETURN_IF_ERROR(fields.Take("description", &text));
    if (type == "namespace" && path == "tools") {  // tools of one server, offered by their own names
      ASSIGN_OR_RETURN(const Json* inner, fields.TakeList("tools"));
      RETURN_IF_ERROR(AddTools(inner != nullptr ? *inner : Json::array(), own + ".tools", left_out, chat));
      continue;
    }
    Json function = FunctionOfTool(tools[i], type);
    if (function.is_null()) {
      left_out->insert(type.substr(0, 40));
    } else {
      (*chat)["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  return absl::OkStatus();
}

absl::Status ReadResponsesTools(const JsonFields& body, spdlog::logger* log, Json* chat) {
  ASSIGN_OR_RETURN(const Json* tools, body.TakeList("tools"));
  std::set<std::string> left_out;
  RETURN_IF_ERROR(AddTools(tools != nullptr ? *tools : Json::array(), "tools", &left_out, chat));
  if (!left_out.empty()) {
    log->info("/v1/responses: tools left out that this server does not run: {}",
              absl::StrJoin(left_out, ", "));
  }
  if (const Json* choice = body.Find("tool_choice"); choice != nullptr && choice->is_object()) {
    const std::string type =
        choice->contains("type") && (*choice)["type"].is_string() ? (*choice)["type"] : Json("");
    if (type == "custom" || type == kLocalShell) {
      (*chat)["tool_choice"] = {{"type", "function"},
                                {"name", type == kLocalShell ? kLocalShell : TextMember(*choice, "name")}};
    }
  }
  return absl::OkStatus();
}

// The client's tool behind a call.
struct CalledTool {
  std::string type = "function";
  std::string in_namespace;
};

CalledTool ToolCalled(const Json& asked, const std::string& name) {
  const auto tools = asked.find("tools");
  for (size_t i = 0; tools != asked.end() && tools->is_array() && i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string type = TextMember(tool, "type");
    if ((type == "custom" && TextMember(tool, "name") == name) ||
        (type == kLocalShell && name == kLocalShell)) {
      return {type, ""};
    }
    const auto inner = tool.find("tools");
    for (size_t j = 0; type == "namespace" && inner != tool.end() && j < inner->size(); ++j) {
      if (TextMember((*inner)[j], "name") == name) {
        return {TextMember((*inner)[j], "type"), TextMember(tool, "name")};
      }
    }
  }
  return {};
}

Json UsageOf(const Usage& usage, uint32_t reasoning) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_prompt_tokens}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", reasoning}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

Json TextPart(const std::string& text) {
  return {
      {"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
}

absl::StatusOr<Json> ChatOfResponse(const Json& body, spdlog::logger* log) {
  const JsonFields fields(body);
  for (const char* name : {"previous_response_id", "conversation"}) {
    if (fields.Has(name)) {
      return BadField(name, "is not served: answers are not kept; send the whole conversation");
    }
  }
  bool background = false;
  RETURN_IF_ERROR(fields.Take("background", &background));
  if (background) {
    return BadField("background", "is not served");
  }
  Json chat = Json::object();
  for (const auto& [from, to] :
       {std::pair("model", "model"), std::pair("max_output_tokens", "max_tokens"),
        std::pair("temperature", "temperature"), std::pair("top_p", "top_p"), std::pair("stream", "stream"),
        std::pair("tool_choice", "tool_choice"), std::pair("parallel_tool_calls", "parallel_tool_calls"),
        std::pair("seed", "seed"), std::pair("chat_template_kwargs", "chat_template_kwargs")}) {
    if (const Json* value = fields.Find(from); value != nullptr) {
      chat[to] = *value;
    }
  }
  CopyServingFields(fields, &chat);
  ASSIGN_OR_RETURN(chat["messages"], ReadInput(fields));
  RETURN_IF_ERROR(ReadResponsesTools(fields, log, &chat));
  ASSIGN_OR_RETURN(const Json* reasoning, fields.TakeObject("reasoning"));
  if (reasoning != nullptr && reasoning->contains("effort")) {
    chat["reasoning_effort"] = (*reasoning)["effort"];
  }
  ASSIGN_OR_RETURN(const Json* text, fields.TakeObject("text"));
  if (text != nullptr && text->contains("format")) {
    chat["text.format"] = (*text)["format"];
  }
  return chat;
}

}  // namespace

const ChatApi& ResponsesApi() {
  static const ChatApi* const api = new ChatApi{
      "http_response",
      "resp_",
      &ChatOfResponse,
      {{"max_tokens", "max_output_tokens"}, {"reasoning_effort", "reasoning.effort"}, {".function.", "."}},
      &MakeWriter<ResponsesWriter>};
  return *api;
}

ResponsesWriter::ResponsesWriter(ChatWriterOptions options)
    : options_(std::move(options)), text_(options_.dialect, options_.parsing) {}

Json ResponsesWriter::Response(const char* status) const {
  Json response = {{"id", options_.facts.id},
                   {"object", "response"},
                   {"created_at", options_.facts.created},
                   {"status", status},
                   {"error", Json()},
                   {"incomplete_details", cut_ ? Json({{"reason", "max_output_tokens"}}) : Json()},
                   {"model", options_.facts.model},
                   {"output", items_},
                   {"previous_response_id", Json()},
                   {"store", false},
                   {"truncation", "disabled"},
                   {"usage", Json()}};
  const std::pair<const char*, Json> settings[] = {{"instructions", Json()},
                                                   {"max_output_tokens", Json()},
                                                   {"metadata", Json::object()},
                                                   {"temperature", Json()},
                                                   {"top_p", Json()},
                                                   {"tools", Json::array()},
                                                   {"tool_choice", "auto"},
                                                   {"parallel_tool_calls", true},
                                                   {"reasoning", Json::object()},
                                                   {"text", {{"format", {{"type", "text"}}}}}};
  for (const auto& [name, otherwise] : settings) {
    const auto found = options_.asked.find(name);
    response[name] = found == options_.asked.end() || found->is_null() ? otherwise : *found;
  }
  return response;
}

void ResponsesWriter::Say(const char* type, Json event, std::string* out) {
  if (!options_.style.stream) {
    return;
  }
  Json whole = {{"type", type}, {"sequence_number", sequence_++}};
  whole.update(event);
  AppendNamedEvent(type, whole, out);
}

void ResponsesWriter::Begin(std::string* out) {
  if (!std::exchange(begun_, true)) {
    Say("response.created", {{"response", Response("in_progress")}}, out);
    Say("response.in_progress", {{"response", Response("in_progress")}}, out);
  }
}

// Returns the item of a call in the form of its tool's type.
Json ResponsesWriter::CallItem(const std::string& id, const std::string& name) {
  const CalledTool tool = ToolCalled(options_.asked, name);
  const std::string call_id = absl::StrCat("call_", text_.calls()[calls_++].id);
  Json item;
  if (tool.type == "custom") {
    item = {{"type", "custom_tool_call"},
            {"id", absl::StrCat("ctc_", id)},
            {"call_id", call_id},
            {"name", name},
            {"input", ""},
            {"status", "in_progress"}};
  } else if (tool.type == kLocalShell) {
    item = {{"type", "local_shell_call"},
            {"id", absl::StrCat("lsh_", id)},
            {"call_id", call_id},
            {"action", {{"type", "exec"}, {"command", Json::array()}, {"env", Json::object()}}},
            {"status", "in_progress"}};
  } else {
    item = {{"type", "function_call"}, {"id", absl::StrCat("fc_", id)}, {"call_id", call_id}, {"name", name},
            {"arguments", ""},         {"status", "in_progress"}};
  }
  if (!tool.in_namespace.empty()) {
    item["namespace"] = tool.in_namespace;
  }
  return item;
}

// Puts the arguments of a call's function into the form of its tool.
void ResponsesWriter::CloseCall(const Json& said, Json* item, std::string* out) {
  const std::string& arguments = text_.calls()[calls_ - 1].arguments;
  const std::string type = (*item)["type"];
  if (type == "function_call") {
    Json done = said;
    done["name"] = (*item)["name"];
    done["arguments"] = (*item)["arguments"];
    Say("response.function_call_arguments.done", std::move(done), out);
    return;
  }
  const Json parsed = ParseBounded(arguments);
  if (type == "local_shell_call") {
    for (const char* name : {"command", "working_directory", "timeout_ms"}) {
      if (parsed.is_object() && parsed.contains(name)) {
        (*item)["action"][name] = parsed[name];
      }
    }
    return;
  }
  const bool whole = parsed.is_object() && parsed.contains("input") && parsed["input"].is_string();
  (*item)["input"] = whole ? parsed["input"] : Json(arguments);
  Json delta = said;
  delta["delta"] = (*item)["input"];
  Say("response.custom_tool_call_input.delta", std::move(delta), out);
  Json done = said;
  done["input"] = (*item)["input"];
  Say("response.custom_tool_call_input.done", std::move(done), out);
}

void ResponsesWriter::OpenItem(const MessageEvent& event, std::string* out) {
  CloseItem("completed", out);
  open_ = true;
  kind_ = event.kind;
  const std::string id = absl::StrCat(options_.facts.id, "_", items_.size());
  if (event.kind == Kind::kText) {
    items_.push_back({{"type", "message"},
                      {"id", absl::StrCat("msg_", id)},
                      {"role", "assistant"},
                      {"status", "in_progress"},
                      {"content", Json::array()}});
  } else if (event.kind == Kind::kReasoning) {
    items_.push_back({{"type", "reasoning"},
                      {"id", absl::StrCat("rs_", id)},
                      {"summary", Json::array()},
                      {"content", Json::array()}});
  } else {
    items_.push_back(CallItem(id, event.text));
  }
  const size_t index = items_.size() - 1;
  Say("response.output_item.added", {{"output_index", index}, {"item", items_[index]}}, out);
  if (event.kind != Kind::kCall) {
    const Json part =
        event.kind == Kind::kText ? TextPart("") : Json({{"type", "reasoning_text"}, {"text", ""}});
    items_[index]["content"].push_back(part);
    Say("response.content_part.added",
        {{"item_id", items_[index]["id"]}, {"output_index", index}, {"content_index", 0}, {"part", part}},
        out);
  }
}

void ResponsesWriter::Grow(const MessageEvent& event, std::string* out) {
  const size_t index = items_.size() - 1;
  Json& item = items_[index];
  if (event.kind == Kind::kArguments && item["type"] != "function_call") {
    return;  // sent once they are complete
  }
  Json said = {{"item_id", item["id"]}, {"output_index", index}};
  Json& grown = event.kind == Kind::kArguments ? item["arguments"] : item["content"][0]["text"];
  grown.get_ref<std::string&>() += event.text;
  if (event.kind != Kind::kArguments) {
    said["content_index"] = 0;
  }
  said["delta"] = event.text;
  if (event.kind == Kind::kText) {
    said["logprobs"] = Json::array();
  }
  Say(event.kind == Kind::kText        ? "response.output_text.delta"
      : event.kind == Kind::kReasoning ? "response.reasoning_text.delta"
                                       : "response.function_call_arguments.delta",
      std::move(said), out);
}

void ResponsesWriter::CloseItem(const char* status, std::string* out) {
  if (!std::exchange(open_, false)) {
    return;
  }
  const size_t index = items_.size() - 1;
  Json& item = items_[index];
  Json said = {{"item_id", item["id"]}, {"output_index", index}};
  if (kind_ == Kind::kCall) {
    CloseCall(said, &item, out);
  } else {
    said["content_index"] = 0;
    Json whole = said;
    whole["text"] = item["content"][0]["text"];
    Say(kind_ == Kind::kText ? "response.output_text.done" : "response.reasoning_text.done", std::move(whole),
        out);
    said["part"] = item["content"][0];
    Say("response.content_part.done", std::move(said), out);
  }
  if (kind_ != Kind::kReasoning) {
    item["status"] = status;
  }
  Say("response.output_item.done", {{"output_index", index}, {"item", item}}, out);
}

void ResponsesWriter::Take(const std::vector<MessageEvent>& events, std::string* out) {
  for (const MessageEvent& event : events) {
    if (event.kind == Kind::kCall || (event.kind != Kind::kArguments && (!open_ || kind_ != event.kind))) {
      OpenItem(event, out);
    }
    if (event.kind != Kind::kCall) {
      Grow(event, out);
    }
  }
}

void ResponsesWriter::Add(size_t, AnswerPiece piece, const Usage& running, std::string* out) {
  const uint32_t fresh = running.completion_tokens - running_.completion_tokens;
  running_ = running;
  Begin(out);
  Take(text_.Push(piece.text, fresh), out);
}

void ResponsesWriter::Finish(size_t, const FinishInfo& info, std::string* out) {
  Begin(out);
  Take(text_.Finish(), out);
  cut_ = info.reason == FinishReason::kLength;
  CloseItem(cut_ ? "incomplete" : "completed", out);
}

void ResponsesWriter::End(const AnswerTotals& totals, std::string* out) {
  Json response = Response(cut_ ? "incomplete" : "completed");
  response["usage"] = UsageOf(totals.usage, text_.reasoning_tokens());
  if (options_.style.stream) {
    Say(cut_ ? "response.incomplete" : "response.completed", {{"response", std::move(response)}}, out);
  } else {
    *out = Dump(response);
  }
}

std::string ResponsesWriter::ErrorEvent(const absl::Status& status) const {
  Json error = Json::parse(ErrorObject(status, ErrorStyle::kOpenAi))["error"];
  error["type"] = "error";
  error["sequence_number"] = sequence_;
  std::string out;
  AppendNamedEvent("error", error, &out);
  return out;
}

}  // namespace sluice::inferd
