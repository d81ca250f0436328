#include "inferd/openai/chat_request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status.h"

namespace sluice {
namespace {

constexpr uint32_t kMaxTopLogprobs = 20;
constexpr size_t kMaxTools = 512;
constexpr char kPlainTemplate[] =
    "{% if bos_token %}{{ bos_token }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% if not loop.last %}\n{% endif %}{% endfor %}";
constexpr const char* kRoles[] = {"system", "developer", "user", "assistant", "tool"};
constexpr const char* kReserved[] = {"messages", "tools", "add_generation_prompt"};

// A message's content: a string, or parts that are joined.
absl::StatusOr<std::string> ReadContent(const JsonFields& message) {
  const Json* content = message.Find("content");
  if (content == nullptr) {
    return "";
  }
  if (content->is_string()) {
    return content->get<std::string>();
  }
  if (!content->is_array()) {
    return BadField(message.Path("content"),
                    absl::StrCat("is ", KindOf(*content), ", must be a string or a list of parts"));
  }
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string path = absl::StrCat(message.Path("content"), "[", i, "]");
    const Json& part = (*content)[i];
    if (!part.is_object()) {
      return BadField(path, absl::StrCat("is ", KindOf(part), ", must be an object"));
    }
    const JsonFields fields(part, path + ".");
    std::string type;
    std::string own;
    RETURN_IF_ERROR(fields.Take("type", &type));
    if (type != "text" && type != "input_text" && type != "output_text" && type != "refusal") {
      return BadField(
          fields.Path("type"),
          absl::StrCat("is \"", type.substr(0, 40), "\": only parts of text are understood by this model"));
    }
    RETURN_IF_ERROR(fields.Take(type == "refusal" ? "refusal" : "text", &own));
    absl::StrAppend(&text, i == 0 ? "" : "\n", own);
  }
  return text;
}

// Arguments come as the text of an object; most templates want the object.
absl::StatusOr<Json> ReadArguments(const JsonFields& function) {
  const Json* arguments = function.Find("arguments");
  if (arguments == nullptr) {
    return Json::object();
  }
  if (arguments->is_object()) {
    return *arguments;
  }
  Json parsed = arguments->is_string() ? ParseBounded(arguments->get_ref<const std::string&>())
                                       : Json(Json::value_t::discarded);
  if (arguments->is_string() && arguments->get_ref<const std::string&>().empty()) {
    return Json::object();
  }
  if (!parsed.is_object()) {
    return BadField(function.Path("arguments"), "is not the text of a JSON object");
  }
  return parsed;
}

absl::StatusOr<Json> ReadCalls(const JsonFields& message) {
  ASSIGN_OR_RETURN(const Json* calls, message.TakeList("tool_calls"));
  Json out = Json::array();
  for (size_t i = 0; calls != nullptr && i < calls->size(); ++i) {
    const std::string path = absl::StrCat(message.Path("tool_calls"), "[", i, "]");
    if (!(*calls)[i].is_object()) {
      return BadField(path, "must be an object");
    }
    const JsonFields call((*calls)[i], path + ".");
    ASSIGN_OR_RETURN(const Json* function, call.TakeObject("function"));
    if (function == nullptr) {
      return BadField(call.Path("function"), "is missing");
    }
    const JsonFields fields(*function, call.Path("function") + ".");
    std::string name;
    std::string id;
    RETURN_IF_ERROR(fields.Take("name", &name));
    RETURN_IF_ERROR(call.Take("id", &id));
    if (name.empty()) {
      return BadField(fields.Path("name"), "is missing or empty");
    }
    ASSIGN_OR_RETURN(Json arguments, ReadArguments(fields));
    Json one = {{"type", "function"}};
    if (!id.empty()) {
      one["id"] = id;
    }
    one["function"] = {{"name", name}, {"arguments", std::move(arguments)}};
    out.push_back(std::move(one));
  }
  return out;
}

absl::StatusOr<Json> ReadMessage(const Json& message, const std::string& path) {
  if (!message.is_object()) {
    return BadField(path, absl::StrCat("is ", KindOf(message), ", must be an object"));
  }
  const JsonFields fields(message, path + ".");
  std::string role;
  RETURN_IF_ERROR(fields.Take("role", &role));
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
    return BadField(fields.Path("role"),
                    role.empty() ? std::string("is missing")
                                 : absl::StrCat("is \"", role.substr(0, 40),
                                                "\", must be system, developer, user, assistant or tool"));
  }
  Json out = {{"role", role == "developer" ? "system" : role}};
  ASSIGN_OR_RETURN(out["content"], ReadContent(fields));
  const bool assistant = role == "assistant";
  if (!fields.Has("content") && !(assistant && (fields.Has("tool_calls") || fields.Has("refusal")))) {
    return BadField(fields.Path("content"), "is missing");
  }
  for (const char* name : {"name", "tool_call_id", "reasoning_content", "reasoning"}) {
    std::string text;
    RETURN_IF_ERROR(fields.Take(name, &text));
    if (!text.empty()) {
      out[name] = text;
    }
  }
  ASSIGN_OR_RETURN(Json calls, ReadCalls(fields));
  if (!calls.empty() && !assistant) {
    return BadField(fields.Path("tool_calls"), "is the assistant's alone");
  }
  if (!calls.empty()) {
    out["tool_calls"] = std::move(calls);
  }
  return out;
}

absl::Status ReadMessages(const JsonFields& body, ChatRequest* chat) {
  ASSIGN_OR_RETURN(const Json* messages, body.TakeList("messages"));
  if (messages == nullptr || messages->empty()) {
    return BadField("messages",
                    messages == nullptr ? "is missing" : "is empty: a conversation has at least one");
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    ASSIGN_OR_RETURN(Json message, ReadMessage((*messages)[i], absl::StrCat("messages[", i, "]")));
    chat->has_tool_calls = chat->has_tool_calls || message.contains("tool_calls");
    chat->messages.push_back(std::move(message));
  }
  return absl::OkStatus();
}

// The types that a parameter's schema allows.
std::vector<std::string> TypesOf(const Json& schema) {
  std::vector<std::string> types;
  const auto add = [&types](const Json& type) {
    if (type.is_string()) {
      types.push_back(type.get<std::string>());
    }
  };
  if (!schema.is_object()) {
    return types;
  }
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (type->is_array()) {
      std::for_each(type->begin(), type->end(), add);
    } else {
      add(*type);
    }
  }
  for (const char* any : {"anyOf", "oneOf"}) {
    if (const auto list = schema.find(any); list != schema.end() && list->is_array()) {
      for (const Json& one : *list) {
        if (one.is_object() && one.contains("type")) {
          add(one["type"]);
        }
      }
    }
  }
  return types;
}

absl::StatusOr<Json> ReadTool(const Json& tool, const std::string& path, ToolTypes* types) {
  if (!tool.is_object()) {
    return BadField(path, "must be an object");
  }
  const JsonFields fields(tool, path + ".");
  std::string type;
  RETURN_IF_ERROR(fields.Take("type", &type));
  ASSIGN_OR_RETURN(const Json* function, fields.TakeObject("function"));
  if (type != "function" || function == nullptr) {
    return type != "function" ? BadField(fields.Path("type"), "must be \"function\"")
                              : BadField(fields.Path("function"), "is missing");
  }
  const JsonFields own(*function, fields.Path("function") + ".");
  std::string name;
  std::string description;
  RETURN_IF_ERROR(own.Take("name", &name));
  RETURN_IF_ERROR(own.Take("description", &description));
  ASSIGN_OR_RETURN(const Json* parameters, own.TakeObject("parameters"));
  if (name.empty()) {
    return BadField(own.Path("name"), "is missing or empty");
  }
  Json out = {{"type", "function"}, {"function", {{"name", name}, {"description", description}}}};
  out["function"]["parameters"] =
      parameters != nullptr ? *parameters : Json({{"type", "object"}, {"properties", Json::object()}});
  auto& of_tool = (*types)[name];
  if (parameters != nullptr && parameters->contains("properties") &&
      (*parameters)["properties"].is_object()) {
    for (const auto& [key, schema] : (*parameters)["properties"].items()) {
      of_tool[key] = TypesOf(schema);
    }
  }
  return out;
}

absl::Status ReadToolChoice(const JsonFields& body, bool* none) {
  const Json* choice = body.Find("tool_choice");
  if (choice == nullptr || *choice == "auto") {
    return absl::OkStatus();
  }
  *none = *choice == "none";
  if (*none) {
    return absl::OkStatus();
  }
  if (choice->is_string() && *choice != "required") {
    return BadField("tool_choice", "must be none, auto, required or a function by name");
  }
  if (!choice->is_string() && !choice->is_object()) {
    return BadField("tool_choice", absl::StrCat("is ", KindOf(*choice), ", must be a string or an object"));
  }
  return BadField("tool_choice",
                  "forces a call, which is not served: answers are not guided; auto and none are");
}

absl::Status ReadTools(const JsonFields& body, const Dialect& dialect, ChatRequest* chat) {
  ASSIGN_OR_RETURN(const Json* tools, body.TakeList("tools"));
  bool none = false;
  if (tools == nullptr || tools->empty()) {
    // A choice without tools to choose among says nothing.
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(ReadToolChoice(body, &none));
  if (tools->size() > kMaxTools) {
    return BadField("tools", absl::StrCat("has ", tools->size(), " entries, at most ", kMaxTools));
  }
  Json list = Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    ASSIGN_OR_RETURN(Json tool, ReadTool((*tools)[i], absl::StrCat("tools[", i, "]"), &chat->types));
    list.push_back(std::move(tool));
  }
  bool parallel = true;
  RETURN_IF_ERROR(body.Take("parallel_tool_calls", &parallel));
  chat->max_calls = parallel ? UINT32_MAX : 1;
  if (none) {
    return absl::OkStatus();
  }
  if (dialect.tools == ToolStyle::kNone) {
    return BadField("tools", "cannot be offered: this model's chat template knows no tools");
  }
  chat->tools = std::move(list);
  return absl::OkStatus();
}

absl::Status ReadVariables(const JsonFields& body, ChatRequest* chat) {
  ASSIGN_OR_RETURN(const Json* variables, body.TakeObject("chat_template_kwargs"));
  std::string effort;
  RETURN_IF_ERROR(body.Take("reasoning_effort", &effort));
  if (!effort.empty()) {
    chat->variables["reasoning_effort"] = effort;
    chat->variables["enable_thinking"] = effort != "none";
  }
  static const Json kNone = Json::object();
  for (const auto& [name, value] : (variables != nullptr ? *variables : kNone).items()) {
    if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
      return BadField(absl::StrCat("chat_template_kwargs.", name), "is set by a field of its own");
    }
    chat->variables[name] = value;
  }
  return body.Take("continue_final_message", &chat->continue_last);
}

absl::Status ReadLogprobs(const JsonFields& body, ChatRequest* chat) {
  RETURN_IF_ERROR(body.Take("logprobs", &chat->logprobs));
  std::optional<uint32_t> top;
  RETURN_IF_ERROR(body.Take("top_logprobs", 0, kMaxTopLogprobs, &top));
  if (top.has_value() && *top > 0 && !chat->logprobs) {
    return BadField("top_logprobs", "needs logprobs: true");
  }
  chat->top_logprobs = top.value_or(0);
  chat->fields.logprobs = chat->top_logprobs;
  return absl::OkStatus();
}

absl::StatusOr<std::string> ConversationText(const ChatRequest& chat, ArgumentsAs arguments_as) {
  Json json = chat.variables;
  json["messages"] = chat.messages;
  if (arguments_as == ArgumentsAs::kText) {
    for (Json& message : json["messages"]) {
      if (const auto calls = message.find("tool_calls"); calls != message.end()) {
        for (Json& call : *calls) {
          call["function"]["arguments"] = Dump(call["function"]["arguments"]);
        }
      }
    }
  }
  if (!chat.tools.is_null()) {
    json["tools"] = chat.tools;
  }
  return Dump(json);
}

}  // namespace

absl::StatusOr<ChatRequest> ReadChat(const Json& body, const ServingContext& context) {
  const JsonFields fields(body);
  ChatRequest chat;
  chat.names = ApiFieldNames(fields);
  RETURN_IF_ERROR(ReadGeneration(fields, context, /*least_tokens=*/1, &chat.fields, &chat.style));
  RETURN_IF_ERROR(ReadMessages(fields, &chat));
  RETURN_IF_ERROR(ReadTools(fields, context.dialect, &chat));
  RETURN_IF_ERROR(ReadLogprobs(fields, &chat));
  RETURN_IF_ERROR(ReadVariables(fields, &chat));
  return chat;
}

Conversation ConversationOf(const ServingContext& context, const ChatRequest& chat) {
  Conversation conversation;
  if (context.chat == nullptr && context.chat_error.ok()) {
    conversation.chat_template = kPlainTemplate;
  }
  conversation.json = [&chat](ArgumentsAs arguments_as) { return ConversationText(chat, arguments_as); };
  conversation.has_tool_calls = chat.has_tool_calls;
  conversation.render.continue_final_message = chat.continue_last;
  conversation.render.add_generation_prompt = !chat.continue_last;
  conversation.render.now = absl::Now();
  return conversation;
}

std::vector<int32_t> SpelledTokens(const Tokenizer& tokenizer, const std::vector<std::string>& marks) {
  std::vector<int32_t> ids;
  for (const std::string& mark : marks) {
    const std::optional<int32_t> id = mark.empty() ? std::nullopt : tokenizer.TokenToId(mark);
    if (id.has_value() && tokenizer.is_special(*id)) {
      ids.push_back(*id);
    }
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<GenerateSpec> Choices(const GenerateSpec& spec, uint32_t n, uint32_t first) {
  std::vector<GenerateSpec> specs(n, spec);
  for (uint32_t i = 0; i < n; ++i) {
    if (first + i > 0) {
      absl::StrAppend(&specs[i].request_id, "-", first + i);
    }
    if (spec.sampling.seed.has_value()) {
      specs[i].sampling.seed = *spec.sampling.seed + i;
    }
  }
  return specs;
}

absl::StatusOr<ChatPlan> PlanChatAnswer(const ServingContext& context, const CallFacts& call,
                                        const ChatRequest& chat) {
  ASSIGN_OR_RETURN(GenerateSpec spec, PlanRequest(context, call, chat.fields, chat.names));
  ASSIGN_OR_RETURN(ChatPrompt prompt, RenderConversation(context, ConversationOf(context, chat)));
  spec.prompt = std::move(prompt.ids);
  RETURN_IF_ERROR(FitToPrompt(context, chat.fields, chat.names, "messages", &spec));
  StopAtEndOfTurn(context, prompt.end_of_turn, &spec);
  const Dialect& dialect = context.dialect;
  ChatPlan plan;
  plan.parsing.tools = !chat.tools.is_null();
  plan.parsing.max_calls = chat.max_calls;
  plan.parsing.types = chat.types;
  // A template that opens the thought itself leaves only its end to the model.
  const absl::string_view text = absl::StripTrailingAsciiWhitespace(prompt.text);
  plan.parsing.begins_in_thought = !dialect.think_open.empty() && absl::EndsWith(text, dialect.think_open);
  spec.spelled_tokens = SpelledTokens(*context.tokenizer, dialect.marks);
  plan.specs = Choices(spec, chat.style.n, 0);
  return plan;
}

}  // namespace sluice
