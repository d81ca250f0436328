#include "inferd/http/responses_api.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "inferd/http/answer_format.h"
#include "inferd/http/chat_request.h"
#include "inferd/http/request_fields.h"

namespace sluice::inferd {
namespace {

// Appends one input item as chat messages.
absl::Status AddItem(const Json& item, const std::string& path, Json* messages) {
  if (!item.is_object()) {
    return BadField(path, absl::StrCat("is ", KindOf(item), ", must be an object"));
  }
  const JsonFields fields(item, path + ".");
  std::string type = "message";
  RETURN_IF_ERROR(fields.Take("type", &type));
  if (type == "message") {
    Json message = {{"role", ""}, {"content", Json()}};
    for (const char* name : {"role", "content"}) {
      if (const Json* value = fields.Find(name); value != nullptr) {
        message[name] = *value;
      }
    }
    RETURN_IF_ERROR(
        ReadChatMessage(message, path).status());  // checked here, where errors have the client's field name
    messages->push_back(std::move(message));
    return absl::OkStatus();
  }
  std::string id;
  RETURN_IF_ERROR(fields.Take("call_id", &id));
  if (type == "function_call") {
    std::string name;
    std::string arguments;
    RETURN_IF_ERROR(fields.Take("name", &name));
    RETURN_IF_ERROR(fields.Take("arguments", &arguments));
    Json call = {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
    // Parallel calls are one message of a chat.
    if (messages->empty() || messages->back()["role"] != "assistant") {
      messages->push_back({{"role", "assistant"}, {"content", ""}});
    }
    messages->back()["tool_calls"].push_back(std::move(call));
    return absl::OkStatus();
  }
  if (type == "function_call_output") {
    const Json* output = fields.Find("output");
    messages->push_back(
        {{"role", "tool"}, {"tool_call_id", id}, {"content", output != nullptr ? *output : Json("")}});
    return absl::OkStatus();
  }
  return type == "reasoning" ? absl::OkStatus()
                             : BadField(fields.Path("type"),
                                        absl::StrCat("is \"", type.substr(0, 40), "\", which is not served"));
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

absl::Status ReadResponsesTools(const JsonFields& body, Json* chat) {
  ASSIGN_OR_RETURN(const Json* tools, body.TakeList("tools"));
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const std::string path = absl::StrCat("tools[", i, "]");
    if (!(*tools)[i].is_object()) {
      return BadField(path, "must be an object");
    }
    const JsonFields fields((*tools)[i], path + ".");
    std::string type;
    RETURN_IF_ERROR(fields.Take("type", &type));
    if (type != "function") {
      return BadField(fields.Path("type"), absl::StrCat("is \"", type.substr(0, 40),
                                                        "\"; only functions are offered to the model"));
    }
    Json function = {{"name", ""}};
    for (const char* name : {"name", "description", "parameters"}) {
      if (const Json* value = fields.Find(name); value != nullptr) {
        function[name] = *value;
      }
    }
    (*chat)["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return absl::OkStatus();
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

absl::StatusOr<Json> ChatOfResponse(const Json& body) {
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
  RETURN_IF_ERROR(ReadResponsesTools(fields, &chat));
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
    items_.push_back({{"type", "function_call"},
                      {"id", absl::StrCat("fc_", id)},
                      {"call_id", absl::StrCat("call_", text_.calls()[calls_++].id)},
                      {"name", event.text},
                      {"arguments", ""},
                      {"status", "in_progress"}});
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
    said["name"] = item["name"];
    said["arguments"] = item["arguments"];
    Say("response.function_call_arguments.done", said, out);
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
