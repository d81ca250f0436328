#include "inferd/openai/fields/chat_tools.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "inferd/openai/fields/told_tools.h"

namespace sluice::inferd {
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
