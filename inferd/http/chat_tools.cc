// Tool prompt fallback for models whose chat template has no tools: the prompt describes the tools, and past
// calls and results become text. Calls are in Hermes' form, the most common one in training data.
//
// Thread safety: pure functions, safe to use from any thread.

#include "inferd/http/chat_tools.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "inferd/http/json_body.h"
#include "inferd/serving/dialect.h"

namespace sluice::inferd {

// Appends the list of tools and the call syntax to the first system message, or else the first user message.
// REQUIRES: `messages` as read by ReadChatMessage, at least one.
void DescribeToolsInPrompt(const Json& tools, Json* messages);

// Appends calls to the assistant's text. Results become user messages, merged with the user's next message:
// many templates require alternating roles.
void ConvertCallsToText(Json* messages);

namespace {

// Writes a call in the form CallFormOf(kHermes); the name is escaped as a JSON string.
std::string Written(const std::string& name, const std::string& arguments) {
  const CallForm form = CallFormOf(ToolStyle::kHermes);
  return absl::StrCat(form.before_name, name, form.before_arguments, arguments, form.end);
}

std::string InQuotes(const std::string& name) {
  const std::string quoted = Dump(Json(name));
  return quoted.substr(1, quoted.size() - 2);
}

void Append(const std::string& text, Json* message) {
  std::string content = message->value("content", "");
  absl::StrAppend(&content, content.empty() ? "" : "\n", text);
  (*message)["content"] = std::move(content);
}

}  // namespace

void DescribeToolsInPrompt(const Json& tools, Json* messages) {
  std::string description = "\nTools that can be called:\n";
  for (const Json& tool : tools) {
    absl::StrAppend(&description, Dump(tool["function"]), "\n");
  }
  absl::StrAppend(&description, "To call one, write:\n", Written("its name", "{..}"));
  const auto first = std::find_if(messages->begin(), messages->end(),
                                  [](const Json& message) { return message["role"] != "assistant"; });
  Append(description, first != messages->end() ? &*first : &messages->front());
}

void ConvertCallsToText(Json* messages) {
  Json out = Json::array();
  bool results = false;  // true if the last of `out` holds results
  for (Json& message : *messages) {
    if (const auto calls = message.find("tool_calls"); calls != message.end()) {
      for (const Json& call : *calls) {
        const Json& function = call["function"];
        Append(Written(InQuotes(function["name"]), Dump(function["arguments"])), &message);
      }
      message.erase("tool_calls");
    }
    const bool result = message["role"] == "tool";
    if (result) {
      message = {
          {"role", "user"},
          {"content", absl::StrCat("<tool_response>\n", message.value("content", ""), "\n</tool_response>")}};
    }
    if (results && message["role"] == "user") {
      Append(message["content"], &out.back());
      results = result;
      continue;
    }
    results = result;
    out.push_back(std::move(message));
  }
  *messages = std::move(out);
}

namespace {

constexpr size_t kMaxTools = 512;

// Returns the types allowed by a parameter's schema.
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

// Parsed tool_choice.
struct ToolChoice {
  bool none = false;
  bool forced = false;
  std::string name;  // name of the required tool; empty: any
};

absl::StatusOr<ToolChoice> ReadToolChoice(const JsonFields& body) {
  ToolChoice out;
  const Json* choice = body.Find("tool_choice");
  if (choice == nullptr || *choice == "auto") {
    return out;
  }
  out.none = *choice == "none";
  out.forced = !out.none;
  if (out.none || *choice == "required") {
    return out;
  }
  if (!choice->is_object()) {
    return BadField("tool_choice", choice->is_string() ? "must be none, auto, required or a function by name"
                                                       : absl::StrCat("is ", KindOf(*choice),
                                                                      ", must be a string or an object"));
  }
  const JsonFields fields(*choice, "tool_choice.");
  std::string type;
  RETURN_IF_ERROR(fields.Take("type", &type));
  if (type != "function") {
    return BadField(fields.Path("type"),
                    absl::StrCat("is \"", type.substr(0, 40), "\", must be \"function\""));
  }
  ASSIGN_OR_RETURN(const Json* function, fields.TakeObject("function"));
  // Responses API: the name is beside the type.
  const JsonFields own = function != nullptr ? JsonFields(*function, fields.Path("function") + ".") : fields;
  RETURN_IF_ERROR(own.Take("name", &out.name));
  return out.name.empty() ? BadField(own.Path("name"), "is missing or empty")
                          : absl::StatusOr<ToolChoice>(out);
}

absl::Status TakeCallable(const ToolChoice& choice, const Json& list, ChatTools* tools) {
  tools->forced = true;
  tools->callable = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    if (choice.name.empty() || list[i]["function"]["name"] == choice.name) {
      tools->callable.push_back(list[i]);
      tools->callable_fields.push_back(absl::StrCat("tools[", i, "].function.parameters"));
    }
  }
  return tools->callable.empty()
             ? BadField("tool_choice.function.name",
                        absl::StrCat("is \"", choice.name.substr(0, 100), "\", which no tool is called"))
             : absl::OkStatus();
}

}  // namespace

absl::Status ReadTools(const JsonFields& body, const Dialect& dialect, Json* messages, ChatTools* tools) {
  const bool in_prompt = dialect.tools == ToolStyle::kNone;
  if (in_prompt) {
    ConvertCallsToText(messages);
  }
  ASSIGN_OR_RETURN(const Json* asked, body.TakeList("tools"));
  ASSIGN_OR_RETURN(const ToolChoice choice, ReadToolChoice(body));
  bool parallel = true;
  RETURN_IF_ERROR(body.Take("parallel_tool_calls", &parallel));
  if (asked == nullptr || asked->empty()) {
    return choice.forced ? BadField("tool_choice", "asks for a call, and there are no tools")
                         : absl::OkStatus();
  }
  if (asked->size() > kMaxTools) {
    return BadField("tools", absl::StrCat("has ", asked->size(), " entries, at most ", kMaxTools));
  }
  Json list = Json::array();
  for (size_t i = 0; i < asked->size(); ++i) {
    ASSIGN_OR_RETURN(Json tool, ReadTool((*asked)[i], absl::StrCat("tools[", i, "]"), &tools->types));
    list.push_back(std::move(tool));
  }
  tools->max_calls = parallel ? UINT32_MAX : 1;
  if (choice.none) {
    return absl::OkStatus();
  }
  if (choice.forced) {
    RETURN_IF_ERROR(TakeCallable(choice, list, tools));
  }
  tools->in_prompt = in_prompt;
  if (in_prompt) {
    DescribeToolsInPrompt(choice.forced ? tools->callable : list, messages);
  }
  tools->offered = std::move(list);
  return absl::OkStatus();
}

}  // namespace sluice::inferd
