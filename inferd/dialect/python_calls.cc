#include "inferd/dialect/python_calls.h"

#include <nlohmann/json.hpp>

#include "inferd/dialect/json_calls.h"

namespace sluice::inferd {
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
                             : Json::parse(word, nullptr, /*allow_exceptions=*/false);
    return !out->is_discarded() && !out->is_structured() && !out->is_string();
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

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
