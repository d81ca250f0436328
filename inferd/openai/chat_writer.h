// ChatWriter: /v1/chat/completions' answers, streamed and whole. ChoiceText: what a choice has said so far,
// thoughts and calls told apart; the writers of the other chat APIs use it too.
//
// Thread safety: thread-compatible; see AnswerWriter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inferd/dialect/dialect.h"
#include "inferd/dialect/message_parser.h"
#include "inferd/openai/answer_call.h"
#include "inferd/openai/answer_parts.h"
#include "inferd/openai/fields/generation_fields.h"
#include "inferd/openai/fields/json_body.h"

namespace sluice {

struct ToolCallText {
  std::string id;
  std::string name;
  std::string arguments;
};

// A choice's message, as it grows.
class ChoiceText {
 public:
  ChoiceText(const Dialect& dialect, const MessageParserOptions& options) : parser_(dialect, options) {}

  // What `text` and `tokens` more tokens make clear. Empty arguments of a call that ended so become "{}".
  std::vector<MessageEvent> Push(const std::string& text, uint32_t tokens);
  std::vector<MessageEvent> Finish();

  const std::string& content() const { return content_; }
  const std::string& reasoning() const { return reasoning_; }
  const std::vector<ToolCallText>& calls() const { return calls_; }
  // Tokens that came while nothing but thoughts was said.
  uint32_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void Keep(const std::vector<MessageEvent>& events);

  MessageParser parser_;
  std::string content_;
  std::string reasoning_;
  std::vector<ToolCallText> calls_;
  uint32_t reasoning_tokens_ = 0;
};

struct ChatWriterOptions {
  AnswerFacts facts;
  AnswerStyle style;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  Dialect dialect;
  MessageParserOptions parsing;
};

class ChatWriter final : public AnswerWriter {
 public:
  explicit ChatWriter(ChatWriterOptions options);

  void Add(size_t choice, AnswerPiece piece, const Usage& running, std::string* out) override;
  void Finish(size_t choice, const FinishInfo& info, std::string* out) override;
  void End(const AnswerTotals& totals, std::string* out) override;
  std::string ErrorEvent(const absl::Status& status) const override;

 private:
  struct Choice {
    ChoiceText text;
    std::vector<TokenOut> held;  // streamed: tokens whose text has yet to come
    Json logprobs = Json::array();
    bool begun = false;
    Usage running;
    std::string finish;
    Json stop_reason;
    Json timings;
  };
  Json Chunk() const;
  void Say(size_t choice, Json delta, std::string* out);
  void Events(size_t choice, const std::vector<MessageEvent>& events, std::string* out);
  Json TakeLogprobs(Choice* choice);
  uint32_t ReasoningTokens() const;

  const ChatWriterOptions options_;
  std::vector<Choice> choices_;
};

}  // namespace sluice
