#include "inferd/serving/dialect.h"

namespace sluice::inferd {
namespace {

bool Holds(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

struct StyleMark {
  std::string_view mark;
  ToolStyle style;
};

// Marks in templates that tell a family. The more specific come first: several families share <tool_call>.
constexpr StyleMark kStyleMarks[] = {
    {"<|channel|>", ToolStyle::kHarmony},
    {"｜DSML｜", ToolStyle::kDsml},
    {"<｜tool▁calls▁begin｜>", ToolStyle::kDeepSeek},
    {"<|tool_calls_section_begin|>", ToolStyle::kKimi},
    {"<|tool_call_start|>", ToolStyle::kLfm},
    {"<minimax:tool_call>", ToolStyle::kMinimax},
    {"<seed:tool_call>", ToolStyle::kSeed},
    {"<tool_call|>", ToolStyle::kGemma},
    {"[TOOL_CALLS]", ToolStyle::kMistral},
    {"<arg_key>", ToolStyle::kGlm},
    {"<function=", ToolStyle::kXml},
    {"<|python_start|>", ToolStyle::kPythonic},
    {"<tool_calls>", ToolStyle::kApriel},
    {"functools", ToolStyle::kFunctools},
    {"<|tool_call|>", ToolStyle::kGranite},
};

ToolStyle ToolsOf(std::string_view source) {
  for (const StyleMark& known : kStyleMarks) {
    if (Holds(source, known.mark)) {
      return known.style;
    }
  }
  if (Holds(source, "<tool_call>")) {
    return Holds(source, "<|start_of_role|>") ? ToolStyle::kGranite : ToolStyle::kHermes;
  }
  const bool llama = Holds(source, "<|start_header_id|>") && Holds(source, "\"parameters\": ");
  return llama ? ToolStyle::kLlama : ToolStyle::kNone;
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
    case ToolStyle::kSeed:
      marks->insert(marks->end(), {"<seed:tool_call>", "</seed:tool_call>"});
      break;
    case ToolStyle::kMinimax:
      marks->insert(marks->end(), {"<minimax:tool_call>", "</minimax:tool_call>"});
      break;
    case ToolStyle::kDsml:
      marks->push_back("｜DSML｜");
      break;
    case ToolStyle::kKimi:
      marks->insert(marks->end(),
                    {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                     "<|tool_call_argument_begin|>", "<|tool_call_end|>"});
      break;
    case ToolStyle::kLfm:
      marks->insert(marks->end(), {"<|tool_call_start|>", "<|tool_call_end|>"});
      break;
    case ToolStyle::kGemma:
      marks->insert(marks->end(), {"<|tool_call>", "<tool_call|>", "<|\"|>"});
      break;
    case ToolStyle::kLlama:
      marks->push_back("<|python_tag|>");
      break;
    case ToolStyle::kApriel:
      marks->insert(marks->end(), {"<tool_calls>", "</tool_calls>"});
      break;
    case ToolStyle::kFunctools:
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
  dialect.thinks_unasked = !dialect.think_open.empty() && Holds(chat_template, "enable_thinking");
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
    case ToolStyle::kKimi:
      return {style, "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
              ":0<|tool_call_argument_begin|>", "<|tool_call_end|><|tool_calls_section_end|>", false};
    case ToolStyle::kLlama:
      return {style, "{\"name\": \"", "\", \"parameters\": ", "}", true};
    case ToolStyle::kApriel:
      return {style, "<tool_calls>[{\"name\": \"", "\", \"arguments\": ", "}]</tool_calls>", true};
    case ToolStyle::kFunctools:
      return {style, "functools[{\"name\": \"", "\", \"arguments\": ", "}]", true};
    case ToolStyle::kNone:
    case ToolStyle::kHermes:
    case ToolStyle::kXml:
    case ToolStyle::kPythonic:
    case ToolStyle::kGlm:
    case ToolStyle::kSeed:
    case ToolStyle::kMinimax:
    case ToolStyle::kDsml:
    case ToolStyle::kLfm:
    case ToolStyle::kGemma:
      break;
  }
  return {ToolStyle::kHermes, "<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", true};
}

std::string TextOpening(ToolStyle style) {
  return style == ToolStyle::kHarmony ? "<|channel|>final<|message|>" : "";
}

}  // namespace sluice::inferd
