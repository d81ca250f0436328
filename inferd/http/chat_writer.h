// ChatApi: one of the APIs for chats: /v1/chat/completions, /v1/messages, /v1/responses. Its requests become
// chat requests (chat_request.h), which OpenAiEndpoint::Chat serves for all of them; only the reading and the
// writing of its dialect are its own.
//
// ChatWriter: answers of /v1/chat/completions, streamed and whole. ChoiceText: a choice's output so far,
// split into thoughts, text and calls; also used by the writers of the other chat APIs.
//
// Thread safety: thread-compatible; see AnswerWriter.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/http/answer_call.h"
#include "inferd/http/answer_format.h"
#include "inferd/http/json_body.h"
#include "inferd/http/request_fields.h"
#include "inferd/serving/dialect.h"
#include "inferd/serving/message_parser.h"
#include "spdlog/logger.h"

namespace sluice::inferd {

struct ToolCallText {
  std::string id;
  std::string name;
  std::string arguments;
};

// A choice's message while it grows.
class ChoiceText {
 public:
  ChoiceText(const Dialect& dialect, const MessageParserOptions& options) : parser_(dialect, options) {}

  // Returns the events decided by `text` and `tokens` more tokens. Empty arguments of a finished call become
  // "{}".
  std::vector<MessageEvent> Push(const std::string& text, uint32_t tokens);
  std::vector<MessageEvent> Finish();

  const std::string& content() const { return content_; }
  const std::string& reasoning() const { return reasoning_; }
  const std::vector<ToolCallText>& calls() const { return calls_; }
  // Number of tokens before any output other than thoughts.
  uint32_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void Keep(const std::vector<MessageEvent>& events);

  MessageParser parser_;
  std::string content_;
  std::string reasoning_;
  std::vector<ToolCallText> calls_;
  uint32_t reasoning_tokens_ = 0;
};

// Everything about a chat that the writer of its answer may need.
struct ChatWriterOptions {
  AnswerFacts facts;
  AnswerStyle style;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  Dialect dialect;
  MessageParserOptions parsing;
  Json asked;  // the request as the client sent it
};

struct ChatApi {
  const char* kind;    // for the log: "http_chat"
  const char* prefix;  // of the answers' ids
  // Returns the equivalent chat request; null: requests are chat requests. INVALID_ARGUMENT naming a missing
  // or unsupported field; the rest is checked when the chat request is read. Tools that only their maker
  // runs, such as web_search, are left out with a line in `log`.
  absl::StatusOr<Json> (*to_chat)(const Json& body, spdlog::logger* log);
  FieldAliases aliases;  // the API's names of the chat request's fields, for errors
  std::unique_ptr<AnswerWriter> (*make_writer)(ChatWriterOptions options);
};

// Returns ChatApi::make_writer of a writer's class.
template <typename Writer>
std::unique_ptr<AnswerWriter> MakeWriter(ChatWriterOptions options) {
  return std::make_unique<Writer>(std::move(options));
}

// The API of /v1/chat/completions. The others: messages_api.h, responses_api.h.
const ChatApi& CompletionsChatApi();

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
    std::vector<TokenOut> held;  // streamed: tokens whose text is still pending
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

}  // namespace sluice::inferd
