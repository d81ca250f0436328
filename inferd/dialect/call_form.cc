#include "inferd/dialect/call_form.h"

namespace sluice::inferd {

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
