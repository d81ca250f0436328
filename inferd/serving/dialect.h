// Dialect: a model family's syntax for thoughts and tool calls, detected from the chat template, which the
// model's author wrote.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::inferd {

enum class ToolStyle : uint8_t {
  kNone,    // no syntax of calls is known
  kHermes,  // <tool_call>{"name": .., "arguments": {..}}</tool_call>: Qwen2, Qwen3
  kXml,     // <tool_call><function=f><parameter=k>..</parameter></function></tool_call>: Qwen3-Coder, Qwen3.5
  kMistral,    // [TOOL_CALLS][{"name": .., "arguments": {..}}], or f{..}, or f[ARGS]{..}
  kDeepSeek,   // its own full-width marks, with or without a fenced block
  kHarmony,    // channels: GPT-OSS
  kPythonic,   // [f(a="x", b=1)]: Llama 4
  kGranite,    // <|tool_call|> or <tool_call>, then [{"name": .., "arguments": {..}}]
  kGlm,        // <tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>
  kSeed,       // kXml within <seed:tool_call>: Seed-OSS
  kMinimax,    // <minimax:tool_call><invoke name="f"><parameter
               // name="k">v</parameter></invoke></minimax:tool_call>
  kDsml,       // the same with marks <｜DSML｜..> and types at the parameters: DeepSeek V3.2, V4
  kKimi,       // <|tool_calls_section_begin|> and marks around "functions.f:0" and an object: Kimi-K2
  kLfm,        // <|tool_call_start|>[f(a="x", b=1)]<|tool_call_end|>: LFM2, LFM2.5
  kGemma,      // <|tool_call>call:f{a:<|"|>x<|"|>,b:1}<tool_call|>: Gemma-4
  kLlama,      // {"name": .., "parameters": {..}} as the whole message: Llama 3.1, 3.2, 3.3
  kApriel,     // <tool_calls>[{"name": .., "arguments": {..}}]</tool_calls>: Apriel
  kFunctools,  // functools[{"name": .., "arguments": {..}}]: FireFunction
};

struct Dialect {
  ToolStyle tools = ToolStyle::kNone;
  std::string think_open;  // "<think>"; empty: thoughts are not recognized
  std::string think_close;
  bool thinks_unasked = false;  // the model opens a thought itself unless the template closes one for it
  // Marks that may be special tokens, whose spelling must be part of the parsed text.
  std::vector<std::string> marks;
};

Dialect DialectOf(std::string_view chat_template);

// Sets a call syntax for a model of which none is known. REQUIRES: it has none.
void SetFallbackTools(ToolStyle style, Dialect* dialect);

// CallForm: the syntax of a tool call in a model family, as literal parts around a name and a JSON object,
// for grammars; and the prefix of the answer's text.
//
// Thread safety: pure functions and plain values, safe to use from any thread.

// before_name NAME before_arguments OBJECT end
struct CallForm {
  ToolStyle style = ToolStyle::kHermes;  // style of the parser for this form
  std::string before_name;
  std::string before_arguments;
  std::string end;      // may be empty
  bool quoted = false;  // true if the name is inside a JSON string
};

// Form for `style`. Families without JSON arguments, and models without tool support, use the Hermes form.
CallForm CallFormOf(ToolStyle style);

// Prefix before an answer's text; "" except for families with channels.
std::string TextOpening(ToolStyle style);

}  // namespace sluice::inferd
