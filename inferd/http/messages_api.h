// Anthropic's /v1/messages: converts its requests to chat requests; writes its answers and streams.
//
// Thread safety: pure functions; for the writer see AnswerWriter.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/http/answer_call.h"
#include "inferd/http/answer_format.h"
#include "inferd/http/chat_writer.h"
#include "inferd/http/json_body.h"
#include "inferd/http/request_fields.h"
#include "spdlog/logger.h"

namespace sluice::inferd {

const ChatApi& MessagesApi();

// ChatApi::to_chat for count_tokens, which needs no max_tokens.
absl::StatusOr<Json> ChatOfCountTokens(const Json& body, spdlog::logger* log);

class MessagesWriter final : public AnswerWriter {
 public:
  explicit MessagesWriter(ChatWriterOptions options);

  void Add(size_t choice, AnswerPiece piece, const Usage& running, std::string* out) override;
  void Finish(size_t choice, const FinishInfo& info, std::string* out) override;
  void End(const AnswerTotals& totals, std::string* out) override;
  std::string ErrorEvent(const absl::Status& status) const override;

 private:
  using Kind = MessageEvent::Kind;
  Json Message() const;
  void Begin(std::string* out);
  void Events(const std::vector<MessageEvent>& events, std::string* out);
  void OpenBlock(Kind kind, const std::string& name, std::string* out);
  void CloseBlock(std::string* out);

  const ChatWriterOptions options_;
  ChoiceText text_;
  Usage running_;
  bool begun_ = false;
  bool open_ = false;  // a block of the stream is open
  Kind kind_ = Kind::kText;
  int block_ = -1;
  size_t calls_ = 0;  // number of calls started
  std::string stop_reason_;
  Json stop_sequence_;
};

}  // namespace sluice::inferd
