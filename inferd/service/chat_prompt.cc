#include "inferd/service/chat_prompt.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/error_detail.h"
#include "common/status.h"
#include "inferd/serving/generation_plan.h"

namespace sluice::inferd {
namespace {

namespace v1 = inference::v1;
using Json = nlohmann::ordered_json;

constexpr int kMaxVariables = 64;
constexpr std::array<const char*, 3> kReservedVariables = {"messages", "tools", "add_generation_prompt"};

absl::Status InvalidPrompt(const std::string& field, const std::string& description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

absl::StatusOr<std::string> RoleName(v1::ChatRole role, const std::string& field) {
  switch (role) {
    case v1::CHAT_ROLE_SYSTEM:
      return "system";
    case v1::CHAT_ROLE_USER:
      return "user";
    case v1::CHAT_ROLE_ASSISTANT:
      return "assistant";
    case v1::CHAT_ROLE_TOOL:
      return "tool";
    case v1::CHAT_ROLE_DEVELOPER:
      return "developer";
    default:
      return InvalidPrompt(field, absl::StrCat("is ", static_cast<int>(role), ", which is no role"));
  }
}

absl::StatusOr<Json> ParseObject(const std::string& text, const std::string& field) {
  Json json = text.empty() ? Json::object() : Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return InvalidPrompt(field, "is not a JSON object");
  }
  return json;
}

absl::StatusOr<Json> ToolCallJson(const v1::ToolCall& call, ArgumentsAs arguments_as,
                                  const std::string& field) {
  if (call.name().empty()) {
    return InvalidPrompt(absl::StrCat(field, ".name"), "is empty");
  }
  ASSIGN_OR_RETURN(Json arguments, ParseObject(call.arguments(), absl::StrCat(field, ".arguments")));
  Json json = {{"type", "function"}};
  if (!call.id().empty()) {
    json["id"] = call.id();
  }
  json["function"] = {{"name", call.name()}};
  json["function"]["arguments"] =
      arguments_as == ArgumentsAs::kObject ? std::move(arguments) : Json(call.arguments());
  return json;
}

absl::StatusOr<Json> MessageJson(const v1::ChatMessage& message, ArgumentsAs arguments_as,
                                 const std::string& field) {
  ASSIGN_OR_RETURN(const std::string role, RoleName(message.role(), absl::StrCat(field, ".role")));
  Json json = {{"role", role}, {"content", message.content()}};
  for (const auto& [name, text] :
       {std::pair("name", &message.name()), std::pair("tool_call_id", &message.tool_call_id()),
        std::pair("reasoning_content", &message.reasoning())}) {
    if (!text->empty()) {
      json[name] = *text;
    }
  }
  if (message.tool_calls_size() > 0 && message.role() != v1::CHAT_ROLE_ASSISTANT) {
    return InvalidPrompt(absl::StrCat(field, ".tool_calls"), "is the assistant's alone");
  }
  for (int i = 0; i < message.tool_calls_size(); ++i) {
    ASSIGN_OR_RETURN(Json call, ToolCallJson(message.tool_calls(i), arguments_as,
                                             absl::StrCat(field, ".tool_calls[", i, "]")));
    json["tool_calls"].push_back(std::move(call));
  }
  return json;
}

absl::StatusOr<Json> ToolJson(const v1::ChatTool& tool, const std::string& field) {
  if (tool.name().empty()) {
    return InvalidPrompt(absl::StrCat(field, ".name"), "is empty");
  }
  Json json = {{"type", "function"}};
  json["function"] = {{"name", tool.name()}, {"description", tool.description()}};
  if (tool.parameters().empty()) {
    json["function"]["parameters"] = {{"type", "object"}, {"properties", Json::object()}};
  } else {
    ASSIGN_OR_RETURN(json["function"]["parameters"],
                     ParseObject(tool.parameters(), absl::StrCat(field, ".parameters")));
  }
  return json;
}

absl::Status AddVariables(const v1::ChatOptions& options, Json* conversation) {
  if (options.template_variables().size() > kMaxVariables) {
    return InvalidPrompt(
        "options.template_variables",
        absl::StrCat("has ", options.template_variables().size(), " entries, at most ", kMaxVariables));
  }
  for (const auto& [name, text] : options.template_variables()) {
    const std::string field = absl::StrCat("options.template_variables[\"", name, "\"]");
    if (std::find(kReservedVariables.begin(), kReservedVariables.end(), name) != kReservedVariables.end()) {
      return InvalidPrompt(field, "is set by a field of its own");
    }
    Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) {
      return InvalidPrompt(field, "is no JSON value (a text needs its quotation marks)");
    }
    (*conversation)[name] = std::move(value);
  }
  return absl::OkStatus();
}

// Returns the conversation in the form of ChatTemplate::Render(). Members keep their order, since templates
// print objects in that order.
absl::StatusOr<std::string> ConversationJson(const ConversationView& conversation, ArgumentsAs arguments_as) {
  Json json = {{"messages", Json::array()}};
  for (int i = 0; i < conversation.messages.size(); ++i) {
    ASSIGN_OR_RETURN(Json message,
                     MessageJson(conversation.messages[i], arguments_as, absl::StrCat("messages[", i, "]")));
    json["messages"].push_back(std::move(message));
  }
  for (int i = 0; i < conversation.options.tools_size(); ++i) {
    ASSIGN_OR_RETURN(Json tool,
                     ToolJson(conversation.options.tools(i), absl::StrCat("options.tools[", i, "]")));
    json["tools"].push_back(std::move(tool));
  }
  RETURN_IF_ERROR(AddVariables(conversation.options, &json));
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

absl::StatusOr<ChatRenderOptions> RenderOptions(const v1::ChatOptions& options) {
  ChatRenderOptions render;
  render.continue_final_message = options.continue_final_message();
  render.add_generation_prompt =
      options.has_add_generation_prompt() ? options.add_generation_prompt() : !render.continue_final_message;
  if (render.continue_final_message && render.add_generation_prompt) {
    return InvalidPrompt("options.add_generation_prompt", "and continue_final_message exclude each other");
  }
  render.now = absl::Now();
  if (options.has_now()) {
    constexpr int64_t kYear10000 = 253402300800;  // maximum of protobuf timestamps
    const int64_t seconds = options.now().seconds();
    if (seconds < -62135596800 || seconds >= kYear10000) {
      return InvalidPrompt("options.now", absl::StrCat("is ", seconds, " s, outside of the years 1 to 9999"));
    }
    render.now = absl::FromUnixSeconds(seconds);
  }
  return render;
}

bool HasToolCalls(const ConversationView& conversation) {
  return std::any_of(conversation.messages.begin(), conversation.messages.end(),
                     [](const v1::ChatMessage& message) { return message.tool_calls_size() > 0; });
}

}  // namespace

absl::StatusOr<ChatPrompt> MakeChatPrompt(const ServingContext& context, const ConversationView& view) {
  RETURN_IF_ERROR(CheckTokenizer(context));
  if (view.messages.empty()) {
    return InvalidPrompt("messages", "is empty: a conversation has at least one");
  }
  Conversation conversation;
  conversation.json = [&view](ArgumentsAs arguments_as) { return ConversationJson(view, arguments_as); };
  conversation.has_tool_calls = HasToolCalls(view);
  conversation.chat_template = view.options.chat_template();
  ASSIGN_OR_RETURN(conversation.render, RenderOptions(view.options));
  return RenderConversation(context, conversation);
}

}  // namespace sluice::inferd
