// OpenAI's /v1/responses, stateless: converts its requests to chat requests; writes its answers and streams.
//
// Thread safety: pure functions; for the writer see AnswerWriter.
#pragma once

#include <cstdint>
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

// Requests that need a stored response (previous_response_id) are refused: nothing is stored. `custom` and
// `local_shell` tools become functions, whose calls ResponsesWriter gives back in their own form.
const ChatApi& ResponsesApi();

class ResponsesWriter final : public AnswerWriter {
 public:
  // The answer repeats settings of `options.asked`.
  explicit ResponsesWriter(ChatWriterOptions options);

  void Add(size_t choice, AnswerPiece piece, const Usage& running, std::string* out) override;
  void Finish(size_t choice, const FinishInfo& info, std::string* out) override;
  void End(const AnswerTotals& totals, std::string* out) override;
  std::string ErrorEvent(const absl::Status& status) const override;

 private:
  using Kind = MessageEvent::Kind;
  Json Response(const char* status) const;
  void Say(const char* type, Json event, std::string* out);
  void Begin(std::string* out);
  void Take(const std::vector<MessageEvent>& events, std::string* out);
  void OpenItem(const MessageEvent& event, std::string* out);
  void CloseItem(const char* status, std::string* out);
  Json CallItem(const std::string& id, const std::string& name);
  void CloseCall(const Json& said, Json* item, std::string* out);
  void Grow(const MessageEvent& event, std::string* out);

  const ChatWriterOptions options_;
  ChoiceText text_;
  Usage running_;
  bool begun_ = false;
  uint64_t sequence_ = 0;  // sequence number of the next event
  Json items_ = Json::array();
  bool open_ = false;  // the last item is open
  Kind kind_ = Kind::kText;
  size_t calls_ = 0;
  bool cut_ = false;
};

}  // namespace sluice::inferd
