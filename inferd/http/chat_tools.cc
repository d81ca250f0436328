// Tool prompt fallback for models whose chat template does not read tools: the prompt describes the tools.
// Calls are in the family's form if it is known, with Hermes' as the fallback, the most common one in
// training data; then past calls and results become text.
//
// Thread safety: pure functions, safe to use from any thread.

#include "inferd/http/chat_tools.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "inferd/http/json_body.h"
#include "inferd/serving/dialect.h"

namespace sluice::inferd {

// Appends the list of tools and the call syntax to the first system message, or else the first user message.
// REQUIRES: `messages` as read by ReadChatMessage, at least one.
void DescribeToolsInPrompt(const Json& tools, const CallForm& form, Json* messages);

// Appends calls to the assistant's text. Results become user messages, merged with the user's next message:
// many templates require alternating roles.
void ConvertCallsToText(Json* messages);

namespace {

std::string Written(const CallForm& form, const std::string& name, const std::string& arguments) {
  return absl::StrCat(form.before_name, name, form.before_arguments, arguments, form.end);
}

std::string InQuotes(const std::string& name) {
  const std::string quoted = Dump(Json(name));
  return quoted.substr(1, quoted.size() - 2);
}

// Returns a message's content as one text.
std::string ContentText(const Json& message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_array()) {
    return message.value("content", "");
  }
  std::string text;
  for (const Json& part : *content) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", part.value("text", ""));
  }
  return text;
}

void Append(const std::string& text, Json* message) {
  std::string content = ContentText(*message);
  absl::StrAppend(&content, content.empty() ? "" : "\n", text);
  (*message)["content"] = std::move(content);
}

}  // namespace

void DescribeToolsInPrompt(const Json& tools, const CallForm& form, Json* messages) {
  std::string description = "\nTools that can be called:\n";
  for (const Json& tool : tools) {
    absl::StrAppend(&description, Dump(tool["function"]), "\n");
  }
  absl::StrAppend(&description, "To call one, write:\n", Written(form, "its name", "{..}"));
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
        const Json& arguments = function["arguments"];
        Append(Written(CallFormOf(ToolStyle::kHermes), InQuotes(function["name"]),
                       arguments.is_string() ? arguments.get<std::string>() : Dump(arguments)),
               &message);
      }
      message.erase("tool_calls");
    }
    const bool result = message["role"] == "tool";
    if (result) {
      message = {{"role", "user"},
                 {"content", absl::StrCat("<tool_response>\n", ContentText(message), "\n</tool_response>")}};
    }
    if (results && message["role"] == "user") {
      Append(ContentText(message), &out.back());
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

constexpr int kMaxSchemaDepth = 16;

// SchemaTypes: collects the JSON types that a parameter's schema allows.
class SchemaTypes {
 public:
  // `root`: the tool's parameters, into which `$ref` points.
  explicit SchemaTypes(const Json& root) : root_(root) {}

  std::vector<std::string> Of(const Json& schema) {
    types_.clear();
    Collect(schema, 0);
    return types_;
  }

 private:
  void Add(const std::string& type) {
    if (std::find(types_.begin(), types_.end(), type) == types_.end()) {
      types_.push_back(type);
    }
  }
  void AddTypeOf(const Json& value) {
    Add(value.is_string()           ? "string"
        : value.is_number_integer() ? "integer"
        : value.is_number()         ? "number"
        : value.is_boolean()        ? "boolean"
        : value.is_null()           ? "null"
        : value.is_array()          ? "array"
                                    : "object");
  }

  void Collect(const Json& schema, int depth) {
    if (!schema.is_object() || depth > kMaxSchemaDepth) {
      return;
    }
    const auto type = schema.find("type");
    if (type != schema.end() && (type->is_string() || type->is_array())) {
      for (const Json& one : type->is_array() ? *type : Json::array({*type})) {
        if (one.is_string()) {
          Add(one.get<std::string>());
        }
      }
    } else {
      CollectFromKeywords(schema);
    }
    if (schema.contains("nullable") && schema["nullable"] == true) {
      Add("null");
    }
    if (const Json* target = Referenced(schema); target != nullptr) {
      Collect(*target, depth + 1);
    }
    for (const char* any : {"anyOf", "oneOf", "allOf"}) {
      if (const auto list = schema.find(any); list != schema.end() && list->is_array()) {
        for (const Json& one : *list) {
          Collect(one, depth + 1);
        }
      }
    }
  }

  // Types of a schema without `type`: those of its values, or those that its keywords speak of.
  void CollectFromKeywords(const Json& schema) {
    if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
      std::for_each(values->begin(), values->end(), [this](const Json& value) { AddTypeOf(value); });
    }
    if (const auto value = schema.find("const"); value != schema.end()) {
      AddTypeOf(*value);
    }
    constexpr std::pair<const char*, const char*> kKeywords[] = {{"properties", "object"},
                                                                 {"additionalProperties", "object"},
                                                                 {"patternProperties", "object"},
                                                                 {"required", "object"},
                                                                 {"items", "array"},
                                                                 {"prefixItems", "array"},
                                                                 {"minItems", "array"},
                                                                 {"maxItems", "array"},
                                                                 {"uniqueItems", "array"},
                                                                 {"minLength", "string"},
                                                                 {"maxLength", "string"},
                                                                 {"pattern", "string"},
                                                                 {"format", "string"},
                                                                 {"minimum", "number"},
                                                                 {"maximum", "number"},
                                                                 {"exclusiveMinimum", "number"},
                                                                 {"exclusiveMaximum", "number"},
                                                                 {"multipleOf", "number"}};
    for (const auto& [keyword, type] : kKeywords) {
      if (schema.contains(keyword)) {
        Add(type);
      }
    }
  }

  // Returns what `$ref` points to, a JSON pointer into the tool's parameters or an `$anchor` there; null if
  // there is none.
  const Json* Referenced(const Json& schema) const {
    const auto ref = schema.find("$ref");
    if (ref == schema.end() || !ref->is_string() ||
        !absl::StartsWith(ref->get_ref<const std::string&>(), "#")) {
      return nullptr;
    }
    const Json* at = &root_;
    const std::string pointer = ref->get<std::string>().substr(1);
    if (pointer.empty()) {
      return at;
    }
    if (pointer[0] != '/') {
      return Anchored(root_, pointer, 0);
    }
    for (const std::string& coded : std::vector<std::string>(absl::StrSplit(pointer.substr(1), '/'))) {
      const std::string key =
          absl::StrReplaceAll(coded, {{"~1", "/"}, {"~0", "~"}, {"%24", "$"}, {"%25", "%"}});
      uint32_t index = 0;
      if (at->is_object() && at->contains(key)) {
        at = &(*at)[key];
      } else if (at->is_array() && absl::SimpleAtoi(key, &index) && index < at->size()) {
        at = &(*at)[index];
      } else {
        return nullptr;
      }
    }
    return at;
  }

  static const Json* Anchored(const Json& schema, const std::string& name, int depth) {
    if (!schema.is_structured() || depth > kMaxSchemaDepth) {
      return nullptr;
    }
    if (schema.is_object() && schema.contains("$anchor") && schema["$anchor"] == name) {
      return &schema;
    }
    for (const Json& item : schema) {
      if (const Json* found = Anchored(item, name, depth + 1)) {
        return found;
      }
    }
    return nullptr;
  }

  const Json& root_;
  std::vector<std::string> types_;
};

// Checks a tool and collects the types of its parameters. Templates get the client's own object.
absl::Status ReadTool(const Json& tool, const std::string& path, ToolTypes* types) {
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
  auto& of_tool = (*types)[name];
  if (parameters != nullptr && parameters->contains("properties") &&
      (*parameters)["properties"].is_object()) {
    for (const auto& [key, schema] : (*parameters)["properties"].items()) {
      of_tool[key] = SchemaTypes(*parameters).Of(schema);
    }
  }
  return absl::OkStatus();
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

absl::Status ReadTools(const JsonFields& body, const Dialect& dialect, bool template_reads_tools,
                       Json* messages, ChatTools* tools) {
  const bool in_prompt = !template_reads_tools;
  if (in_prompt && dialect.tools == ToolStyle::kNone) {
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
    RETURN_IF_ERROR(ReadTool((*asked)[i], absl::StrCat("tools[", i, "]"), &tools->types));
    list.push_back((*asked)[i]);
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
    DescribeToolsInPrompt(choice.forced ? tools->callable : list, CallFormOf(dialect.tools), messages);
  }
  tools->offered = std::move(list);
  return absl::OkStatus();
}

}  // namespace sluice::inferd
