#include "inferd/dialect/call_parsers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "inferd/dialect/json_calls.h"
#include "inferd/dialect/marked_text.h"
#include "inferd/dialect/object_calls.h"
#include "inferd/dialect/python_calls.h"

namespace sluice::inferd {
namespace {

using Json = nlohmann::ordered_json;
using Kind = MessageEvent::Kind;
using Outcome = CallParser::Outcome;

// Parser of calls whose parameters are plain text between marks.
class TextArgumentsParser : public CallParser {
 protected:
  explicit TextArgumentsParser(const ToolTypes& types) : types_(types) {}

  void BeginCall(const std::string& name, std::vector<MessageEvent>* out) {
    Emit(Kind::kCall, name, out);
    const auto found = types_.find(name);
    of_call_ = found == types_.end() ? nullptr : &found->second;
    parameters_ = 0;
  }
  void AddParameter(const std::string& key, const std::string& text, std::vector<MessageEvent>* out) {
    static const std::vector<std::string> kUnknown;
    const bool known = of_call_ != nullptr && of_call_->contains(key);
    Emit(Kind::kArguments,
         (parameters_++ == 0 ? "{" : ", ") + Json(key).dump(-1, ' ', false, Json::error_handler_t::replace) +
             ": " + JsonOfText(text, known ? of_call_->at(key) : kUnknown),
         out);
  }
  void EndCall(std::vector<MessageEvent>* out) { Emit(Kind::kArguments, parameters_ == 0 ? "{}" : "}", out); }

 private:
  const ToolTypes& types_;
  const std::map<std::string, std::vector<std::string>>* of_call_ = nullptr;
  int parameters_ = 0;
};

class XmlCallParser final : public TextArgumentsParser {
 public:
  explicit XmlCallParser(const ToolTypes& types) : TextArgumentsParser(types) {}

  Outcome Step(std::string* in, bool ended, std::vector<MessageEvent>* out) override {
    while (true) {
      std::string text;
      switch (state_) {
        case State::kFunction: {
          const size_t at = SkipBlank(*in);
          const size_t end = in->find('>', at);
          if (!MayTakeMark(*in, "<function=") || (end == std::string::npos && ended)) {
            return Outcome::kNoCall;
          }
          if (end == std::string::npos) {
            return Outcome::kMore;
          }
          const size_t name = at + std::string_view("<function=").size();
          BeginCall(in->substr(name, end - name), out);
          in->erase(0, end + 1);
          state_ = State::kParameters;
          break;
        }
        case State::kParameters:
          if (TakeMark(in, "<parameter=")) {
            state_ = State::kKey;
          } else if (TakeMark(in, "</function>") || (ended && SkipBlank(*in) == in->size())) {
            EndCall(out);
            state_ = State::kBehind;
          } else if (MayTakeMark(*in, "<parameter=") || MayTakeMark(*in, "</function>")) {
            return Outcome::kMore;
          } else {
            EndCall(out);
            return Outcome::kDone;
          }
          break;
        case State::kKey:
          if (!TakeTo(in, ">", &key_)) {
            return Outcome::kMore;
          }
          state_ = State::kValue;
          break;
        case State::kValue:
          if (!TakeTo(in, "</parameter>", &text)) {
            return Outcome::kMore;
          }
          // One line break on each side belongs to the syntax, not to the value.
          text.erase(0, StartsWith(text, "\n") ? 1 : 0);
          text.resize(text.size() - (!text.empty() && text.back() == '\n' ? 1 : 0));
          AddParameter(key_, text, out);
          state_ = State::kParameters;
          break;
        case State::kBehind:
          if (TakeMark(in, "</tool_call>")) {
            return Outcome::kDone;
          }
          return MayTakeMark(*in, "</tool_call>") && !ended ? Outcome::kMore : Outcome::kDone;
      }
    }
  }

 private:
  enum class State : uint8_t { kFunction, kParameters, kKey, kValue, kBehind };
  State state_ = State::kFunction;
  std::string key_;
};

class GlmCallParser final : public TextArgumentsParser {
 public:
  explicit GlmCallParser(const ToolTypes& types) : TextArgumentsParser(types) {}

  Outcome Step(std::string* in, bool ended, std::vector<MessageEvent>* out) override {
    while (true) {
      std::string text;
      switch (state_) {
        case State::kName: {
          const size_t end = std::min(in->find("<arg_key>"), in->find("</tool_call>"));
          if (end == std::string::npos) {
            return ended ? Outcome::kNoCall : Outcome::kMore;
          }
          const std::string name = Trimmed(in->substr(0, end));
          if (name.empty() || name.find_first_of(" \n<>{}\"") != std::string::npos) {
            return Outcome::kNoCall;
          }
          BeginCall(name, out);
          in->erase(0, end);
          state_ = State::kParameters;
          break;
        }
        case State::kParameters:
          if (TakeMark(in, "</tool_call>")) {
            EndCall(out);
            return Outcome::kDone;
          }
          if (TakeMark(in, "<arg_key>")) {
            state_ = State::kKey;
          } else if (!ended && (MayTakeMark(*in, "</tool_call>") || MayTakeMark(*in, "<arg_key>"))) {
            return Outcome::kMore;
          } else {
            EndCall(out);
            return Outcome::kDone;
          }
          break;
        case State::kKey:
          if (!TakeTo(in, "</arg_key>", &text)) {
            return Outcome::kMore;
          }
          key_ = Trimmed(text);
          state_ = State::kOpening;
          break;
        case State::kOpening:
          if (!TakeTo(in, "<arg_value>", &text)) {
            return Outcome::kMore;
          }
          state_ = State::kValue;
          break;
        case State::kValue:
          if (!TakeTo(in, "</arg_value>", &text)) {
            return Outcome::kMore;
          }
          AddParameter(key_, text, out);
          state_ = State::kParameters;
          break;
      }
    }
  }

 private:
  enum class State : uint8_t { kName, kParameters, kKey, kOpening, kValue };
  State state_ = State::kName;
  std::string key_;
};

// Parser of Python calls: short, and unambiguous only after the closing bracket.
class PythonCallParser final : public CallParser {
 public:
  Outcome Step(std::string* in, bool ended, std::vector<MessageEvent>* out) override {
    constexpr std::string_view kEnd = "<|python_end|>";
    if (!parsed_) {
      const size_t size = PythonListEnd(*in);
      if (size == std::string::npos) {
        const bool other = SkipBlank(*in) < in->size() && (*in)[SkipBlank(*in)] != '[';
        return ended || other ? Outcome::kNoCall : Outcome::kMore;
      }
      const auto calls = ParsePythonCalls(std::string_view(*in).substr(0, size));
      if (!calls.has_value()) {
        return Outcome::kNoCall;
      }
      for (const auto& [name, arguments] : *calls) {
        Emit(Kind::kCall, name, out);
        Emit(Kind::kArguments, arguments, out);
      }
      in->erase(0, size);
      parsed_ = true;
    }
    if (StartsWith(*in, kEnd)) {
      in->erase(0, kEnd.size());
      return Outcome::kDone;
    }
    return !ended && MayStartWith(*in, kEnd) ? Outcome::kMore : Outcome::kDone;
  }

 private:
  bool parsed_ = false;
};

bool Allows(const std::vector<std::string>& types, const char* type) {
  return std::find(types.begin(), types.end(), type) != types.end();
}

}  // namespace

std::vector<std::string> CallMarks(ToolStyle style) {
  switch (style) {
    case ToolStyle::kHermes:
    case ToolStyle::kGlm:
      return {"<tool_call>"};
    case ToolStyle::kXml:
      return {"<tool_call>"};
    case ToolStyle::kMistral:
      return {"[TOOL_CALLS]"};
    case ToolStyle::kDeepSeek:
      return {"<｜tool▁calls▁begin｜>"};
    case ToolStyle::kGranite:
      return {"<|tool_call|>", "<tool_call>"};
    case ToolStyle::kPythonic:
      return {"<|python_start|>"};
    default:
      return {};
  }
}

std::unique_ptr<CallParser> MakeCallParser(ToolStyle style, const ToolTypes& types) {
  switch (style) {
    case ToolStyle::kXml:
      return std::make_unique<XmlCallParser>(types);
    case ToolStyle::kMistral:
      return MakeMistralCalls();
    case ToolStyle::kDeepSeek:
      return MakeDeepSeekCalls();
    case ToolStyle::kPythonic:
      return std::make_unique<PythonCallParser>();
    case ToolStyle::kGlm:
      return std::make_unique<GlmCallParser>(types);
    default:
      return MakeObjectCalls("</tool_call>");
  }
}

std::string JsonOfText(const std::string& text, const std::vector<std::string>& types) {
  const auto dump = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  const Json json = types.empty() ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
  const bool fits =
      (json.is_number_integer() && (Allows(types, "integer") || Allows(types, "number"))) ||
      (json.is_number_float() && Allows(types, "number")) ||
      (json.is_boolean() && Allows(types, "boolean")) || (json.is_null() && Allows(types, "null")) ||
      (json.is_object() && Allows(types, "object")) || (json.is_array() && Allows(types, "array"));
  if (fits) {
    return dump(json);
  }
  if (Allows(types, "boolean") && (text == "True" || text == "False")) {
    return text == "True" ? "true" : "false";  // Python spelling
  }
  return dump(Json(text));
}

}  // namespace sluice::inferd
