#include "inferd/serving/message_parser.h"

#include <algorithm>
#include <utility>

#include "inferd/serving/call_parsers.h"
#include "inferd/serving/json_calls.h"

namespace sluice::inferd {
namespace {

using Kind = MessageEvent::Kind;

constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kRecipient = "to=functions.";

// Finds the first of `marks` in `text`, the longest of several at one position; npos: none.
size_t FindFirst(std::string_view text, const std::vector<std::string>& marks, std::string_view* found) {
  size_t best = std::string_view::npos;
  for (const std::string& mark : marks) {
    const size_t at = mark.empty() ? std::string_view::npos : text.find(mark);
    if (at < best) {
      best = at;
      *found = mark;
    }
  }
  return best;
}

size_t LongestPartial(std::string_view text, const std::vector<std::string>& marks) {
  size_t longest = 0;
  for (const std::string& mark : marks) {
    longest = std::max(longest, PartialMark(text, mark));
  }
  return longest;
}

}  // namespace

class MessageParser::State {
 public:
  State(const Dialect& dialect, MessageParserOptions options)
      : dialect_(dialect), options_(std::move(options)), call_marks_(CallMarks(dialect.tools)) {
    in_ = options_.opening;
    options_.split_thoughts = options_.split_thoughts && !dialect_.think_open.empty();
    if (!options_.tools) {
      call_marks_.clear();
    }
    if (dialect_.tools == ToolStyle::kHarmony) {
      mode_ = Mode::kHeader;
    } else if (options_.split_thoughts && options_.begins_in_thought) {
      mode_ = Mode::kThought;
    }
  }

  void Run(std::string_view text, bool ended, std::vector<MessageEvent>* out) {
    in_.append(text);
    while (Step(ended, out)) {
    }
  }
  uint32_t calls() const { return calls_; }

 private:
  enum class Mode : uint8_t { kText, kThought, kCall, kHeader, kBody };

  // False if the rest needs more input.
  bool Step(bool ended, std::vector<MessageEvent>* out) {
    switch (mode_) {
      case Mode::kText:
        return StepText(ended, out);
      case Mode::kThought:
        return StepThought(ended, out);
      case Mode::kCall:
        return StepCall(ended, out);
      case Mode::kHeader:
        return StepHeader(ended, out);
      case Mode::kBody:
        return StepBody(ended, out);
    }
    return false;
  }

  void Give(Kind kind, size_t size, std::vector<MessageEvent>* out) {
    if (size > 0) {
      Pass({kind, in_.substr(0, size), ""}, out);
      in_.erase(0, size);
    }
  }

  // All events go through here: counts calls, drops calls beyond the limit, merges adjacent events.
  void Pass(MessageEvent event, std::vector<MessageEvent>* out) {
    if (event.kind == Kind::kCall) {
      dropping_ = calls_ == options_.max_calls;
      calls_ += dropping_ ? 0 : 1;
    }
    if (dropping_ && (event.kind == Kind::kCall || event.kind == Kind::kArguments)) {
      return;
    }
    if (event.kind == Kind::kCall) {
      blank_.clear();
    }
    if (event.kind == Kind::kText) {
      if (calls_ > 0) {  // line breaks between calls, and behind the last, are dropped
        event.text.insert(0, std::exchange(blank_, {}));
        const size_t end = event.text.find_last_not_of(" \t\r\n") + 1;
        blank_ = event.text.substr(end);
        event.text.resize(end);
        if (end == 0) {
          return;
        }
      }
      text_begun_ = true;
    }
    if (event.kind != Kind::kCall && !out->empty() && out->back().kind == event.kind) {
      out->back().text += event.text;
      return;
    }
    out->push_back(std::move(event));
  }

  bool StepText(bool ended, std::vector<MessageEvent>* out) {
    std::vector<std::string> marks = call_marks_;
    const bool may_think = options_.split_thoughts && !text_begun_;
    if (may_think) {
      marks.push_back(dialect_.think_open);
    }
    if (behind_thought_) {  // line breaks behind a thought are dropped
      in_.erase(0, SkipBlank(in_));
      behind_thought_ = in_.empty();
    }
    // Some families' calls have no mark except their bracket, and are the whole message.
    const char bare = dialect_.tools == ToolStyle::kPythonic ? '['
                      : dialect_.tools == ToolStyle::kLlama  ? '{'
                                                             : 0;
    if (options_.tools && bare != 0 && !text_begun_ && !tried_bare_ && SkipBlank(in_) < in_.size()) {
      tried_bare_ = true;
      if (in_[SkipBlank(in_)] == bare) {
        BeginCalls("");
        return true;
      }
    }
    std::string_view mark;
    const size_t at = FindFirst(in_, marks, &mark);
    if (at != std::string::npos) {
      const bool thought = may_think && mark == dialect_.think_open && SkipBlank(in_) == at;
      const bool call = std::find(call_marks_.begin(), call_marks_.end(), mark) != call_marks_.end();
      if (!thought && !call) {
        Give(Kind::kText, at + mark.size(), out);
        return true;
      }
      const size_t solid = at == 0 ? std::string::npos : in_.find_last_not_of(" \t\r\n", at - 1);
      const size_t kept = call && solid != std::string::npos ? solid + 1 : 0;
      Give(Kind::kText, kept, out);
      // White space before a mark is removed with it, and restored if the mark opens no call.
      std::string opening = in_.substr(0, at - kept + mark.size());
      in_.erase(0, opening.size());
      if (thought) {
        mode_ = Mode::kThought;
      } else {
        BeginCalls(std::move(opening));
      }
      return true;
    }
    size_t held = ended ? 0 : LongestPartial(in_, marks);
    // White space before a mark that is still to arrive is held back, since it would be no text then.
    while (!ended && !marks.empty() && held < in_.size() &&
           SkipBlank(std::string_view(in_).substr(in_.size() - held - 1, 1)) == 1) {
      ++held;
    }
    Give(Kind::kText, in_.size() - held, out);
    return false;
  }

  bool StepThought(bool ended, std::vector<MessageEvent>* out) {
    if (thought_empty_) {  // line break behind the opening mark
      in_.erase(0, SkipBlank(in_));
      thought_empty_ = in_.empty();
    }
    const size_t end = in_.find(dialect_.think_close);
    const size_t limit =
        end == std::string::npos ? in_.size() - (ended ? 0 : PartialMark(in_, dialect_.think_close)) : end;
    // White space before the closing mark is dropped; it is held back until this is decided.
    const size_t solid = in_.find_last_not_of(" \t\r\n", limit == 0 ? 0 : limit - 1);
    const size_t kept = limit == 0 || solid == std::string::npos ? 0 : std::min(solid + 1, limit);
    Give(Kind::kReasoning, ended && end == std::string::npos ? limit : kept, out);
    if (end == std::string::npos) {
      return false;
    }
    in_.erase(0, in_.find(dialect_.think_close) + dialect_.think_close.size());
    mode_ = Mode::kText;
    options_.split_thoughts = false;  // one thought a message
    behind_thought_ = true;
    return true;
  }

  void BeginCalls(std::string mark) {
    mode_ = Mode::kCall;
    call_mark_ = std::move(mark);
    parser_ = MakeCallParser(dialect_.tools, call_mark_, options_.types);
  }

  bool StepCall(bool ended, std::vector<MessageEvent>* out) {
    std::vector<MessageEvent> events;
    const CallParser::Outcome outcome = parser_->Step(&in_, ended, &events);
    for (MessageEvent& event : events) {
      Pass(std::move(event), out);
    }
    if (outcome == CallParser::Outcome::kMore) {
      return false;
    }
    mode_ = Mode::kText;
    if (outcome == CallParser::Outcome::kNoCall && !call_mark_.empty()) {
      Pass({Kind::kText, call_mark_, ""}, out);
    }
    return true;
  }

  // Parses a harmony header: "assistant<|channel|>analysis<|message|>".
  bool StepHeader(bool ended, std::vector<MessageEvent>* out) {
    // Text in place of the first header is accepted as the answer.
    const std::string_view rest = std::string_view(in_).substr(SkipBlank(in_));
    const std::string_view to_whom = kRecipient.substr(0, rest.size());
    if (first_header_ && !rest.empty() && rest[0] != '<' && rest.substr(0, kRecipient.size()) != to_whom) {
      channel_ = Kind::kText;
      mode_ = Mode::kBody;
      return true;
    }
    const size_t end = in_.find(kMessage);
    if (end == std::string::npos) {
      if (ended) {
        in_.clear();
      }
      return false;
    }
    first_header_ = false;
    const std::string header = in_.substr(0, end);
    in_.erase(0, end + kMessage.size());
    mode_ = Mode::kBody;
    const size_t to = header.find(kRecipient);
    if (to != std::string::npos && options_.tools) {
      const size_t begin = to + kRecipient.size();
      channel_ = Kind::kArguments;
      Pass({Kind::kCall, header.substr(begin, header.find_first_of(" <\n", begin) - begin), ""}, out);
      return true;
    }
    const size_t at = header.find(kChannel);
    const bool analysis = at != std::string::npos && header.compare(at + kChannel.size(), 8, "analysis") == 0;
    channel_ = analysis ? Kind::kReasoning : Kind::kText;
    return true;
  }

  bool StepBody(bool ended, std::vector<MessageEvent>* out) {
    static const std::vector<std::string> kEnds = {"<|end|>", "<|call|>", "<|return|>", "<|start|>"};
    std::string_view mark;
    const size_t at = FindFirst(in_, kEnds, &mark);
    if (at == std::string::npos) {
      Give(channel_, in_.size() - (ended ? 0 : LongestPartial(in_, kEnds)), out);
      return false;
    }
    Give(channel_, at, out);
    in_.erase(0, mark.size());
    mode_ = Mode::kHeader;
    return true;
  }

  const Dialect dialect_;
  MessageParserOptions options_;
  std::vector<std::string> call_marks_;
  Mode mode_ = Mode::kText;
  std::string in_;  // input not parsed yet
  bool text_begun_ = false;
  std::string blank_;  // white space behind a call, kept in case text follows
  bool thought_empty_ = true;
  bool behind_thought_ = false;
  bool tried_bare_ = false;
  bool dropping_ = false;
  bool first_header_ = true;
  uint32_t calls_ = 0;
  std::string call_mark_;  // opening mark of the current section
  std::unique_ptr<CallParser> parser_;
  Kind channel_ = Kind::kText;
};

MessageParser::MessageParser(const Dialect& dialect, MessageParserOptions options)
    : state_(std::make_unique<State>(dialect, std::move(options))) {}
MessageParser::~MessageParser() = default;
MessageParser::MessageParser(MessageParser&&) noexcept = default;

void MessageParser::Push(std::string_view text, std::vector<MessageEvent>* out) {
  state_->Run(text, /*ended=*/false, out);
}
void MessageParser::Finish(std::vector<MessageEvent>* out) { state_->Run("", /*ended=*/true, out); }
uint32_t MessageParser::calls() const { return state_->calls(); }

}  // namespace sluice::inferd
