#include "inferd/openai/fields/told_tools.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "inferd/dialect/call_form.h"

namespace sluice::inferd {
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

}  // namespace sluice::inferd
