#include "inferd/serving/json_calls.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/json_reader.h"

namespace sluice::inferd {
namespace {

// Matches the parts of a call's head one by one; a part missing at the end of the text may still arrive.
class Matcher {
 public:
  explicit Matcher(std::string_view text) : text_(text) {}
  bool partial() const { return partial_; }
  size_t at() const { return at_; }

  bool Word(std::string_view word) {
    at_ = SkipBlank(text_, at_);
    const std::string_view rest = text_.substr(at_, word.size());
    if (rest == word) {
      at_ += word.size();
      return true;
    }
    partial_ = rest == word.substr(0, rest.size());
    return false;
  }
  // A string without escapes: tool names contain none.
  bool Name(std::string* name) {
    if (!Word("\"")) {
      return false;
    }
    const size_t end = text_.find_first_of("\"\\", at_);
    if (end == std::string_view::npos || text_[end] == '\\') {
      partial_ = end == std::string_view::npos;
      return false;
    }
    *name = std::string(text_.substr(at_, end - at_));
    at_ = end + 1;
    return !name->empty();
  }

 private:
  const std::string_view text_;
  size_t at_ = 0;
  bool partial_ = false;
};

}  // namespace

size_t JsonEnd(std::string_view text) {
  JsonSpan span;
  for (size_t i = 0; i < text.size(); ++i) {
    if (span.Feed(text[i])) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

CallHead MatchCallHead(std::string_view text) {
  CallHead head;
  Matcher matcher(text);
  std::string key;
  bool yes = matcher.Word("{") && matcher.Word("\"name\"") && matcher.Word(":") && matcher.Name(&head.name) &&
             matcher.Word(",") && matcher.Name(&key) && (key == "arguments" || key == "parameters") &&
             matcher.Word(":");
  const size_t value = SkipBlank(text, matcher.at());
  if (yes && value == text.size()) {
    head.match = CallHead::Match::kPartial;
  } else if (yes) {
    head.match = text[value] == '{' ? CallHead::Match::kYes : CallHead::Match::kNo;
    head.bytes = value;
  } else {
    head.match = matcher.partial() ? CallHead::Match::kPartial : CallHead::Match::kNo;
  }
  return head;
}

size_t PartialMark(std::string_view text, std::string_view mark) {
  for (size_t size = std::min(text.size(), mark.size() - (mark.empty() ? 0 : 1)); size > 0; --size) {
    if (text.substr(text.size() - size) == mark.substr(0, size)) {
      return size;
    }
  }
  return 0;
}

namespace {

using Json = nlohmann::ordered_json;
using Kind = MessageEvent::Kind;
using Outcome = CallParser::Outcome;

// Parses a call object whose members are in another order than usual, or whose arguments are a string.
std::optional<std::pair<std::string, std::string>> CallOfObject(std::string_view text) {
  const Json json = ParseOrderedJson(text, "a call", {.allow_duplicate_keys = true}).value_or(Json());
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) {
    return std::nullopt;
  }
  const auto arguments = json.contains("arguments") ? json.find("arguments") : json.find("parameters");
  std::string text_of = "{}";
  if (arguments != json.end() && arguments->is_string()) {
    text_of = arguments->get<std::string>();
  } else if (arguments != json.end() && arguments->is_object()) {
    text_of = arguments->dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return std::pair(json["name"].get<std::string>(), std::move(text_of));
}

// Forwards a JSON object unchanged, piece by piece.
class ObjectStream {
 public:
  // True once the object has ended.
  bool Pass(std::string* in, std::vector<MessageEvent>* out) {
    size_t size = 0;
    bool ended = false;
    while (size < in->size() && !ended) {
      ended = span_.Feed((*in)[size++]);
    }
    Emit(Kind::kArguments, in->substr(0, size), out);
    in->erase(0, size);
    return ended;
  }

 private:
  JsonSpan span_;
};

// Parser of {"name", "arguments"} objects: one, or a list in brackets; then an optional `close`.
class JsonCallParser final : public CallParser {
 public:
  explicit JsonCallParser(std::string close) : close_(std::move(close)) {}

  Outcome Step(std::string* in, bool ended, std::vector<MessageEvent>* out) override {
    while (true) {
      switch (state_) {
        case State::kOpening: {
          const size_t at = SkipBlank(*in);
          if (at == in->size()) {
            return ended ? Outcome::kNoCall : Outcome::kMore;
          }
          list_ = (*in)[at] == '[';
          if (!list_ && (*in)[at] != '{') {
            return Outcome::kNoCall;
          }
          const std::optional<size_t> used = Head(*in, at + (list_ ? 1 : 0), ended, out);
          if (!used.has_value()) {
            return waiting_ ? Outcome::kMore : Outcome::kNoCall;
          }
          in->erase(0, *used);
          break;
        }
        case State::kNext: {  // in a list, behind a comma
          const std::optional<size_t> used = Head(*in, 0, ended, out);
          if (!used.has_value()) {
            if (waiting_) {
              return Outcome::kMore;
            }
            return Outcome::kDone;
          }
          in->erase(0, *used);
          break;
        }
        case State::kArguments:
          if (!arguments_.Pass(in, out)) {
            return Outcome::kMore;
          }
          state_ = State::kClosing;
          rest_ = JsonSpan();
          rest_.Feed('{');
          break;
        case State::kClosing:  // up to the object's own end; other members are ignored
          if (!SkipRest(in)) {
            return Outcome::kMore;
          }
          state_ = State::kBehind;
          break;
        case State::kBehind: {
          const std::optional<Outcome> outcome = Behind(in, ended);
          if (outcome.has_value()) {
            return *outcome;
          }
          break;
        }
      }
    }
  }

 private:
  enum class State : uint8_t { kOpening, kNext, kArguments, kClosing, kBehind };

  // Parses a call's head at `from`: returns the bytes up to its arguments, or to its end if it arrived whole.
  std::optional<size_t> Head(const std::string& in, size_t from, bool ended, std::vector<MessageEvent>* out) {
    const std::string_view text = std::string_view(in).substr(from);
    const CallHead head = MatchCallHead(text);
    waiting_ = false;
    if (head.match == CallHead::Match::kYes) {
      Emit(Kind::kCall, head.name, out);
      state_ = State::kArguments;
      arguments_ = ObjectStream();
      return from + head.bytes;
    }
    if (head.match == CallHead::Match::kPartial && !ended) {
      waiting_ = true;
      return std::nullopt;
    }
    const size_t begin = SkipBlank(text);
    const size_t size = begin < text.size() && text[begin] == '{' ? JsonEnd(text.substr(begin)) : 0;
    if (size == std::string_view::npos) {
      waiting_ = !ended;
      return std::nullopt;
    }
    const auto call = CallOfObject(text.substr(begin, size));
    if (!call.has_value()) {
      return std::nullopt;
    }
    Emit(Kind::kCall, call->first, out);
    Emit(Kind::kArguments, call->second, out);
    state_ = State::kBehind;
    return from + begin + size;
  }

  bool SkipRest(std::string* in) {
    for (size_t i = 0; i < in->size(); ++i) {
      if (rest_.Feed((*in)[i])) {
        in->erase(0, i + 1);
        return true;
      }
    }
    in->clear();
    return false;
  }

  std::optional<Outcome> Behind(std::string* in, bool ended) {
    const size_t at = SkipBlank(*in);
    const std::string_view rest = std::string_view(*in).substr(at);
    if (list_ && !rest.empty() && (rest[0] == ',' || rest[0] == ']')) {
      state_ = rest[0] == ',' ? State::kNext : State::kBehind;
      list_ = rest[0] == ',';
      in->erase(0, at + 1);
      return std::nullopt;
    }
    if (!list_ && !close_.empty() && !rest.empty() && rest[0] == '}') {  // one brace too many
      in->erase(0, at + 1);
      return std::nullopt;
    }
    if (!close_.empty() && StartsWith(rest, close_)) {
      in->erase(0, at + close_.size());
      return Outcome::kDone;
    }
    if (!ended && (rest.empty() || (!close_.empty() && MayStartWith(rest, close_)))) {
      return Outcome::kMore;
    }
    in->erase(0, at);
    return Outcome::kDone;
  }

  const std::string close_;
  State state_ = State::kOpening;
  bool list_ = false;
  bool waiting_ = false;
  ObjectStream arguments_;
  JsonSpan rest_;
};

// Parser of Mistral calls: the list above, or f{..}, or f[ARGS]{..}; with [CALL_ID]id between in some
// versions.
class MistralCallParser final : public CallParser {
 public:
  Outcome Step(std::string* in, bool ended, std::vector<MessageEvent>* out) override {
    if (!list_.has_value()) {
      const size_t at = SkipBlank(*in);
      if (at == in->size()) {
        return ended ? Outcome::kNoCall : Outcome::kMore;
      }
      list_ = (*in)[at] == '[';
    }
    if (*list_) {
      return objects_.Step(in, ended, out);
    }
    if (!named_) {
      const size_t object = in->find('{');
      if (object == std::string::npos) {
        return ended ? Outcome::kNoCall : Outcome::kMore;
      }
      std::string name = in->substr(SkipBlank(*in), object - SkipBlank(*in));
      name.resize(std::min({name.size(), name.find("[ARGS]"), name.find("[CALL_ID]")}));
      name.erase(name.find_last_not_of(" \t\r\n") + 1);
      if (name.empty()) {
        return Outcome::kNoCall;
      }
      Emit(Kind::kCall, std::move(name), out);
      in->erase(0, object);
      named_ = true;
    }
    return arguments_.Pass(in, out) ? Outcome::kDone : Outcome::kMore;
  }

 private:
  std::optional<bool> list_;
  bool named_ = false;
  JsonCallParser objects_{""};
  ObjectStream arguments_;
};

// Marks of a section in which every call has marks of its own around its name and its object.
struct SectionMarks {
  std::string_view call_begin;
  std::string_view separator;
  std::string_view call_end;
  std::string_view section_end;
};
constexpr SectionMarks kDeepSeekMarks = {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
                                         "<｜tool▁calls▁end｜>"};
constexpr SectionMarks kKimiMarks = {"<|tool_call_begin|>", "<|tool_call_argument_begin|>",
                                     "<|tool_call_end|>", "<|tool_calls_section_end|>"};

class MarkedCallParser final : public CallParser {
 public:
  explicit MarkedCallParser(const SectionMarks& marks) : marks_(marks) {}

  Outcome Step(std::string* in, bool ended, std::vector<MessageEvent>* out) override {
    while (true) {
      switch (state_) {
        case State::kBetween: {
          if (TakeMark(in, marks_.section_end)) {
            return Outcome::kDone;
          }
          if (const size_t at = SkipBlank(*in);
              !StartsWith(std::string_view(*in).substr(at), marks_.call_begin)) {
            const bool may = MayTakeMark(*in, marks_.call_begin) || MayTakeMark(*in, marks_.section_end);
            return may && !ended ? Outcome::kMore : any_ ? Outcome::kDone : Outcome::kNoCall;
          }
          // Consumes nothing before the whole head has arrived: without it there is no call.
          const size_t separator = in->find(marks_.separator);
          const size_t brace = separator == std::string::npos ? separator : in->find('{', separator);
          if (brace == std::string::npos) {
            return !ended ? Outcome::kMore : any_ ? Outcome::kDone : Outcome::kNoCall;
          }
          Begin(*in, separator, out);
          in->erase(0, brace);
          any_ = true;
          arguments_ = ObjectStream();
          state_ = State::kArguments;
          break;
        }
        case State::kArguments:
          if (!arguments_.Pass(in, out)) {
            return Outcome::kMore;
          }
          state_ = State::kClosing;
          break;
        case State::kClosing: {
          std::string fence;
          if (!TakeTo(in, marks_.call_end, &fence)) {
            return ended ? Outcome::kDone : Outcome::kMore;
          }
          state_ = State::kBetween;
          break;
        }
      }
    }
  }

 private:
  enum class State : uint8_t { kBetween, kArguments, kClosing };

  // Emits the call's name, which stands before the separator.
  void Begin(const std::string& in, size_t separator, std::vector<MessageEvent>* out) {
    const size_t begin = SkipBlank(in) + marks_.call_begin.size();
    std::string name = Trimmed(in.substr(begin, separator - begin));
    std::string id;
    if (name == "function") {  // DeepSeek V3 and R1: the name follows, then a fenced block
      const size_t behind = separator + marks_.separator.size();
      name = Trimmed(in.substr(behind, in.find_first_of("\n{", behind) - behind));
    } else if (const size_t colon = name.rfind(':');
               colon != std::string::npos && StartsWith(name, "functions.")) {  // Kimi's ids
      id = name;
      name =
          name.substr(std::string_view("functions.").size(), colon - std::string_view("functions.").size());
    }
    out->push_back({Kind::kCall, std::move(name), std::move(id)});
  }

  const SectionMarks& marks_;
  State state_ = State::kBetween;
  bool any_ = false;
  ObjectStream arguments_;
};

}  // namespace

std::unique_ptr<CallParser> MakeObjectCalls(const std::string& close) {
  return std::make_unique<JsonCallParser>(close);
}
std::unique_ptr<CallParser> MakeMistralCalls() { return std::make_unique<MistralCallParser>(); }
std::unique_ptr<CallParser> MakeDeepSeekCalls() { return std::make_unique<MarkedCallParser>(kDeepSeekMarks); }
std::unique_ptr<CallParser> MakeKimiCalls() { return std::make_unique<MarkedCallParser>(kKimiMarks); }

}  // namespace sluice::inferd
