#include "inferd/serving/dialect.h"

namespace sluice::inferd {
namespace {

bool Holds(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Checks the more specific marks first: several families share <tool_call>.
ToolStyle ToolsOf(std::string_view source) {
  if (Holds(source, "<|channel|>")) {
    return ToolStyle::kHarmony;
  }
  if (!Holds(source, "tools")) {
    return ToolStyle::kNone;
  }
  if (Holds(source, "<｜tool▁calls▁begin｜>")) {
    return ToolStyle::kDeepSeek;
  }
  if (Holds(source, "[TOOL_CALLS]")) {
    return ToolStyle::kMistral;
  }
  if (Holds(source, "<arg_key>")) {
    return ToolStyle::kGlm;
  }
  if (Holds(source, "<function=")) {
    return ToolStyle::kXml;
  }
  if (Holds(source, "<|python_start|>")) {
    return ToolStyle::kPythonic;
  }
  if (Holds(source, "<|tool_call|>") ||
      (Holds(source, "<tool_call>") && Holds(source, "<|start_of_role|>"))) {
    return ToolStyle::kGranite;
  }
  return Holds(source, "<tool_call>") ? ToolStyle::kHermes : ToolStyle::kNone;
}

void AddMarks(ToolStyle style, std::vector<std::string>* marks) {
  switch (style) {
    case ToolStyle::kNone:
      break;
    case ToolStyle::kHermes:
    case ToolStyle::kXml:
    case ToolStyle::kGlm:
      marks->insert(marks->end(), {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                                   "</arg_value>"});
      break;
    case ToolStyle::kMistral:
      marks->insert(marks->end(), {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"});
      break;
    case ToolStyle::kDeepSeek:
      marks->insert(marks->end(), {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
                                   "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"});
      break;
    case ToolStyle::kHarmony:
      marks->insert(marks->end(), {"<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>",
                                   "<|call|>", "<|return|>"});
      break;
    case ToolStyle::kPythonic:
      marks->insert(marks->end(), {"<|python_start|>", "<|python_end|>"});
      break;
    case ToolStyle::kGranite:
      marks->insert(marks->end(), {"<|tool_call|>", "<tool_call>", "</tool_call>"});
      break;
  }
}

}  // namespace

Dialect DialectOf(std::string_view chat_template) {
  Dialect dialect;
  dialect.tools = ToolsOf(chat_template);
  if (Holds(chat_template, "[THINK]")) {
    dialect.think_open = "[THINK]";
    dialect.think_close = "[/THINK]";
  } else if (Holds(chat_template, "</think>")) {
    dialect.think_open = "<think>";
    dialect.think_close = "</think>";
  }
  dialect.marks = {dialect.think_open, dialect.think_close};
  AddMarks(dialect.tools, &dialect.marks);
  return dialect;
}

void SetFallbackTools(ToolStyle style, Dialect* dialect) {
  dialect->tools = style;
  AddMarks(style, &dialect->marks);
}

CallForm CallFormOf(ToolStyle style) {
  switch (style) {
    case ToolStyle::kMistral:
      return {style, "[TOOL_CALLS][{\"name\": \"", "\", \"arguments\": ", "}]", true};
    case ToolStyle::kGranite:
      return {style, "<tool_call>[{\"name\": \"", "\", \"arguments\": ", "}]", true};
    case ToolStyle::kDeepSeek:
      return {style, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
              "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", false};
    case ToolStyle::kHarmony:
      return {style, "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "", false};
    case ToolStyle::kNone:
    case ToolStyle::kHermes:
    case ToolStyle::kXml:
    case ToolStyle::kPythonic:
    case ToolStyle::kGlm:
      break;
  }
  return {ToolStyle::kHermes, "<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", true};
}

std::string TextOpening(ToolStyle style) {
  return style == ToolStyle::kHarmony ? "<|channel|>final<|message|>" : "";
}

}  // namespace sluice::inferd
