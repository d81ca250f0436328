#include "inferd/serving/call_parsers.h"

#include <algorithm>
#include <cmath>

#include "common/base/json_reader.h"
#include "inferd/serving/json_calls.h"

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
    AddTyped(key, text, known ? of_call_->at(key) : kUnknown, out);
  }
  void AddTyped(const std::string& key, const std::string& text, const std::vector<std::string>& types,
                std::vector<MessageEvent>* out) {
    Emit(Kind::kArguments,
         (parameters_++ == 0 ? "{" : ", ") + Json(key).dump(-1, ' ', false, Json::error_handler_t::replace) +
             ": " + JsonOfText(text, types),
         out);
  }
  void EndCall(std::vector<MessageEvent>* out) { Emit(Kind::kArguments, parameters_ == 0 ? "{}" : "}", out); }

 private:
  const ToolTypes& types_;
  const std::map<std::string, std::vector<std::string>>* of_call_ = nullptr;
  int parameters_ = 0;
};

// Marks of calls whose parameters have tags of their own. A section holds one call or several.
struct XmlMarks {
  std::string_view call_open;
  std::string_view parameter_open;
  std::string_view name_end;  // behind the name of a call or parameter
  std::string_view parameter_close;
  std::string_view call_close;
  std::string_view section_close;
};
constexpr XmlMarks kXmlMarks = {"<function=",   "<parameter=", ">",
                                "</parameter>", "</function>", "</tool_call>"};
constexpr XmlMarks kSeedMarks = {"<function=",   "<parameter=", ">",
                                 "</parameter>", "</function>", "</seed:tool_call>"};
constexpr XmlMarks kMinimaxMarks = {"<invoke name=\"", "<parameter name=\"", "\">",
                                    "</parameter>",    "</invoke>",          "</minimax:tool_call>"};
constexpr XmlMarks kDsmlMarks = {
    "<｜DSML｜invoke name=\"", "<｜DSML｜parameter name=\"", "\">",
    "</｜DSML｜parameter>",    "</｜DSML｜invoke>",          "</｜DSML｜function_calls>"};
constexpr XmlMarks kDsmlV4Marks = {
    "<｜DSML｜invoke name=\"", "<｜DSML｜parameter name=\"", "\">",
    "</｜DSML｜parameter>",    "</｜DSML｜invoke>",          "</｜DSML｜tool_calls>"};

class XmlCallParser final : public TextArgumentsParser {
 public:
  XmlCallParser(const XmlMarks& marks, const ToolTypes& types) : TextArgumentsParser(types), marks_(marks) {}

  Outcome Step(std::string* in, bool ended, std::vector<MessageEvent>* out) override {
    while (true) {
      std::string text;
      switch (state_) {
        case State::kFunction: {
          const size_t at = SkipBlank(*in);
          const size_t name = at + marks_.call_open.size();
          const size_t end = name < in->size() ? in->find(marks_.name_end, name) : std::string::npos;
          if (!MayTakeMark(*in, marks_.call_open) || (end == std::string::npos && ended)) {
            return Outcome::kNoCall;
          }
          if (end == std::string::npos) {
            return Outcome::kMore;
          }
          BeginCall(in->substr(name, end - name), out);
          in->erase(0, end + marks_.name_end.size());
          state_ = State::kParameters;
          break;
        }
        case State::kParameters:
          if (TakeMark(in, marks_.parameter_open)) {
            state_ = State::kKey;
          } else if (TakeMark(in, marks_.call_close) || (ended && SkipBlank(*in) == in->size())) {
            EndCall(out);
            state_ = State::kBehind;
          } else if (!ended &&
                     (MayTakeMark(*in, marks_.parameter_open) || MayTakeMark(*in, marks_.call_close))) {
            return Outcome::kMore;
          } else {
            EndCall(out);
            return Outcome::kDone;
          }
          break;
        case State::kKey:
          if (!TakeTo(in, marks_.name_end, &key_)) {
            return Outcome::kMore;
          }
          state_ = State::kValue;
          break;
        case State::kValue:
          if (!TakeTo(in, marks_.parameter_close, &text)) {
            return Outcome::kMore;
          }
          AddValue(std::move(text), out);
          state_ = State::kParameters;
          break;
        case State::kBehind:
          if (TakeMark(in, marks_.section_close)) {
            return Outcome::kDone;
          }
          if (StartsWith(std::string_view(*in).substr(SkipBlank(*in)), marks_.call_open)) {
            state_ = State::kFunction;
            break;
          }
          const bool may = MayTakeMark(*in, marks_.section_close) || MayTakeMark(*in, marks_.call_open);
          return may && !ended ? Outcome::kMore : Outcome::kDone;
      }
    }
  }

 private:
  enum class State : uint8_t { kFunction, kParameters, kKey, kValue, kBehind };

  void AddValue(std::string text, std::vector<MessageEvent>* out) {
    static const std::vector<std::string> kText = {"string"};
    static const std::vector<std::string> kOther = {"number", "boolean", "null", "object", "array"};
    // One line break on each side belongs to the syntax, not to the value.
    text.erase(0, StartsWith(text, "\n") ? 1 : 0);
    text.resize(text.size() - (!text.empty() && text.back() == '\n' ? 1 : 0));
    const size_t quote = key_.find('"');  // DeepSeek: k" string="true
    if (quote == std::string::npos) {
      AddParameter(key_, text, out);
    } else {
      AddTyped(key_.substr(0, quote), text, key_.find("\"true", quote) != std::string::npos ? kText : kOther,
               out);
    }
  }

  const XmlMarks& marks_;
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
  explicit PythonCallParser(std::string_view end) : end_(end) {}

  Outcome Step(std::string* in, bool ended, std::vector<MessageEvent>* out) override {
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
    if (TakeMark(in, end_)) {
      return Outcome::kDone;
    }
    return !ended && MayTakeMark(*in, end_) ? Outcome::kMore : Outcome::kDone;
  }

 private:
  const std::string_view end_;
  bool parsed_ = false;
};

// Parser of Gemma's calls: call:f{a:<|"|>x<|"|>,b:1}<tool_call|>. The object is read when it has ended.
class GemmaCallParser final : public CallParser {
 public:
  Outcome Step(std::string* in, bool ended, std::vector<MessageEvent>* out) override {
    constexpr std::string_view kEnd = "<tool_call|>";
    constexpr std::string_view kCall = "call:";
    const size_t end = in->find(kEnd);
    if (!MayTakeMark(*in, kCall) || (end == std::string::npos && ended)) {
      return Outcome::kNoCall;
    }
    if (end == std::string::npos) {
      return Outcome::kMore;
    }
    const size_t begin = SkipBlank(*in) + kCall.size();
    const size_t brace = in->find('{', begin);
    const std::optional<std::string> arguments =
        brace < end ? GemmaObject(std::string_view(*in).substr(brace, end - brace)) : std::nullopt;
    const std::string name = brace < end ? Trimmed(in->substr(begin, brace - begin)) : "";
    if (name.empty() || !arguments.has_value()) {
      return Outcome::kNoCall;
    }
    Emit(Kind::kCall, name, out);
    Emit(Kind::kArguments, *arguments, out);
    in->erase(0, end + kEnd.size());
    return Outcome::kDone;
  }
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
    case ToolStyle::kSeed:
      return {"<seed:tool_call>"};
    case ToolStyle::kMinimax:
      return {"<minimax:tool_call>"};
    case ToolStyle::kDsml:
      return {"<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"};
    case ToolStyle::kKimi:
      return {"<|tool_calls_section_begin|>"};
    case ToolStyle::kLfm:
      return {"<|tool_call_start|>"};
    case ToolStyle::kGemma:
      return {"<|tool_call>"};
    case ToolStyle::kLlama:
      return {"<|python_tag|>"};
    case ToolStyle::kApriel:
      return {"<tool_calls>"};
    case ToolStyle::kFunctools:
      return {"functools"};
    default:
      return {};
  }
}

std::unique_ptr<CallParser> MakeCallParser(ToolStyle style, const std::string& mark, const ToolTypes& types) {
  switch (style) {
    case ToolStyle::kXml:
      return std::make_unique<XmlCallParser>(kXmlMarks, types);
    case ToolStyle::kSeed:
      return std::make_unique<XmlCallParser>(kSeedMarks, types);
    case ToolStyle::kMinimax:
      return std::make_unique<XmlCallParser>(kMinimaxMarks, types);
    case ToolStyle::kDsml:
      return std::make_unique<XmlCallParser>(
          mark.find("function_calls") != std::string::npos ? kDsmlMarks : kDsmlV4Marks, types);
    case ToolStyle::kKimi:
      return MakeKimiCalls();
    case ToolStyle::kLfm:
      return std::make_unique<PythonCallParser>("<|tool_call_end|>");
    case ToolStyle::kGemma:
      return std::make_unique<GemmaCallParser>();
    case ToolStyle::kLlama:
    case ToolStyle::kFunctools:
      return MakeObjectCalls("");
    case ToolStyle::kApriel:
      return MakeObjectCalls("</tool_calls>");
    case ToolStyle::kMistral:
      return MakeMistralCalls();
    case ToolStyle::kDeepSeek:
      return MakeDeepSeekCalls();
    case ToolStyle::kPythonic:
      return std::make_unique<PythonCallParser>("<|python_end|>");
    case ToolStyle::kGlm:
      return std::make_unique<GlmCallParser>(types);
    default:
      return MakeObjectCalls("</tool_call>");
  }
}

std::string JsonOfText(const std::string& text, const std::vector<std::string>& types) {
  const Json none(Json::value_t::discarded);
  const Json json =
      types.empty() ? none : ParseOrderedJson(text, "", {.allow_duplicate_keys = true}).value_or(none);
  if (json.is_number()) {  // as it was written: a number may have more digits than a double
    const bool whole = json.is_number_integer() || json.get<double>() == std::floor(json.get<double>());
    if (Allows(types, "number") || (whole && Allows(types, "integer"))) {
      return Trimmed(text);
    }
  }
  const bool fits =
      (json.is_boolean() && Allows(types, "boolean")) || (json.is_null() && Allows(types, "null")) ||
      (json.is_object() && Allows(types, "object")) || (json.is_array() && Allows(types, "array"));
  if (fits) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  if (Allows(types, "boolean") && (text == "True" || text == "False")) {
    return text == "True" ? "true" : "false";  // Python spelling
  }
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 32;

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '-';
}

// Recursive descent parser of literals. Every method skips blanks first and returns true on a match.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  // An object as Gemma writes it: keys without quotes, texts between <|"|>.
  bool GemmaValue(Json* out, int depth = 0) {
    at_ = SkipBlank(text_, at_);
    std::string text;
    if (depth > kMaxDepth || at_ == text_.size()) {
      return false;
    }
    if (GemmaText(&text)) {
      *out = std::move(text);
      return true;
    }
    const char open = text_[at_];
    if (open != '{' && open != '[') {
      return Value(out, depth);
    }
    ++at_;
    *out = open == '{' ? Json::object() : Json::array();
    const char close = open == '{' ? '}' : ']';
    while (!Word(close)) {
      Json value;
      if ((!out->empty() && !Word(',')) || (open == '{' && (!GemmaKey(&text) || !Word(':'))) ||
          !GemmaValue(&value, depth + 1)) {
        return false;
      }
      if (open == '{') {
        (*out)[text] = std::move(value);
      } else {
        out->push_back(std::move(value));
      }
    }
    return true;
  }

  bool AtEnd() {
    at_ = SkipBlank(text_, at_);
    return at_ == text_.size();
  }
  bool Word(char c) {
    at_ = SkipBlank(text_, at_);
    if (at_ < text_.size() && text_[at_] == c) {
      ++at_;
      return true;
    }
    return false;
  }
  bool Name(std::string* out) {
    at_ = SkipBlank(text_, at_);
    const size_t begin = at_;
    while (at_ < text_.size() && IsNameByte(text_[at_])) {
      ++at_;
    }
    *out = std::string(text_.substr(begin, at_ - begin));
    return !out->empty();
  }
  bool Value(Json* out, int depth = 0) {
    at_ = SkipBlank(text_, at_);
    if (depth > kMaxDepth || at_ == text_.size()) {
      return false;
    }
    switch (text_[at_]) {
      case '"':
      case '\'':
        return Text(out);
      case '[':
      case '(':
        return List(out, depth);
      case '{':
        return Object(out, depth);
      default:
        return Plain(out);
    }
  }

 private:
  bool GemmaText(std::string* out) {
    constexpr std::string_view kQuote = "<|\"|>";
    if (text_.substr(at_, kQuote.size()) != kQuote) {
      return false;
    }
    const size_t begin = at_ + kQuote.size();
    const size_t end = text_.find(kQuote, begin);
    if (end == std::string_view::npos) {
      return false;
    }
    *out = std::string(text_.substr(begin, end - begin));
    at_ = end + kQuote.size();
    return true;
  }
  bool GemmaKey(std::string* out) {
    at_ = SkipBlank(text_, at_);
    if (GemmaText(out)) {
      return true;
    }
    const size_t end = text_.find(':', at_);
    *out = end == std::string_view::npos ? "" : Trimmed(std::string(text_.substr(at_, end - at_)));
    at_ = end == std::string_view::npos ? at_ : end;
    return !out->empty();
  }
  bool Text(Json* out) {
    const char quote = text_[at_++];
    std::string text;
    while (at_ < text_.size() && text_[at_] != quote) {
      char c = text_[at_++];
      if (c == '\\' && at_ < text_.size()) {
        c = text_[at_++];
        c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
      }
      text += c;
    }
    *out = std::move(text);
    return at_++ < text_.size();
  }
  bool List(Json* out, int depth) {
    const char close = text_[at_++] == '[' ? ']' : ')';
    *out = Json::array();
    while (!Word(close)) {
      Json item;
      if (!out->empty() && !Word(',')) {
        return false;
      }
      if (Word(close)) {
        return true;  // trailing comma
      }
      if (!Value(&item, depth + 1)) {
        return false;
      }
      out->push_back(std::move(item));
    }
    return true;
  }
  bool Object(Json* out, int depth) {
    ++at_;
    *out = Json::object();
    while (!Word('}')) {
      Json key;
      Json value;
      if ((!out->empty() && !Word(',')) || !Value(&key, depth + 1) || !key.is_string() || !Word(':') ||
          !Value(&value, depth + 1)) {
        return false;
      }
      (*out)[key.get<std::string>()] = std::move(value);
    }
    return true;
  }
  bool Plain(Json* out) {
    const size_t end = text_.find_first_of(",)]} \t\r\n", at_);
    const std::string word(text_.substr(at_, end - at_));
    at_ = end == std::string_view::npos ? text_.size() : end;
    *out = word == "True"    ? Json(true)
           : word == "False" ? Json(false)
           : word == "None"  ? Json()
                             : ParseOrderedJson(word, "").value_or(Json(Json::value_t::discarded));
    return !out->is_discarded() && !out->is_structured() && !out->is_string();
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::optional<std::string> GemmaObject(std::string_view text) {
  Reader reader(text);
  Json object;
  if (!reader.GemmaValue(&object) || !object.is_object() || !reader.AtEnd()) {
    return std::nullopt;
  }
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

size_t PythonListEnd(std::string_view text) {
  int depth = 0;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      i += c == '\\' ? 1 : 0;
      quote = c == quote ? 0 : quote;
      continue;
    }
    quote = c == '"' || c == '\'' ? c : 0;
    depth += c == '[' || c == '(' || c == '{' ? 1 : c == ']' || c == ')' || c == '}' ? -1 : 0;
    if (depth <= 0 && c == ']') {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

std::optional<std::vector<std::pair<std::string, std::string>>> ParsePythonCalls(std::string_view text) {
  Reader reader(text);
  std::vector<std::pair<std::string, std::string>> calls;
  if (!reader.Word('[')) {
    return std::nullopt;
  }
  do {
    std::string name;
    Json arguments = Json::object();
    if (!reader.Name(&name) || !reader.Word('(')) {
      return std::nullopt;
    }
    while (!reader.Word(')')) {
      std::string key;
      Json value;
      if ((!arguments.empty() && !reader.Word(',')) || !reader.Name(&key) || !reader.Word('=') ||
          !reader.Value(&value)) {
        return std::nullopt;
      }
      arguments[key] = std::move(value);
    }
    calls.emplace_back(std::move(name), arguments.dump(-1, ' ', false, Json::error_handler_t::replace));
  } while (reader.Word(','));
  if (!reader.Word(']') || !reader.AtEnd()) {
    return std::nullopt;
  }
  return calls;
}

}  // namespace sluice::inferd
