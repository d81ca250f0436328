// AnswerCall: generation for one HTTP request: several choices in the engine, one answer to the client.
//
// Each choice is one engine request. Engine output is buffered until the HTTP server's thread passes it to
// the AnswerWriter, which formats stream events or the whole answer. While the client has not accepted the
// last write, further output is merged into the next event. A disconnect cancels the requests at once.
//
// Thread safety: thread-safe; only the HTTP server's thread uses the writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "daemon/http/http_message.h"
#include "inferd/api/engine_api.h"
#include "inferd/http/answer_format.h"
#include "inferd/serving/served_call.h"

namespace sluice::inferd {

// New output of one choice. `tokens` only if the plan needs them.
struct AnswerPiece {
  std::string text;
  std::vector<TokenOut> tokens;
};

// Totals of the whole request: each prompt counts once, for any number of choices.
struct AnswerTotals {
  Usage usage;
  Timings timings;  // of the slowest choice
};

// Formats the events or the whole answer in one API's format. Belongs to one answer; one thread at a time.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // Appends events to *out, which stays unused for a whole answer.
  virtual void Add(size_t choice, AnswerPiece piece, const Usage& running, std::string* out) = 0;
  virtual void Finish(size_t choice, const FinishInfo& info, std::string* out) = 0;
  // All choices have ended: appends a stream's last events, or the whole answer's body.
  virtual void End(const AnswerTotals& totals, std::string* out) = 0;
  // Returns the event for an error within a stream.
  virtual std::string ErrorEvent(const absl::Status& status) const = 0;
};

struct AnswerPlan {
  std::vector<GenerateSpec> specs;        // by choice
  std::vector<GenerateSpec> ungenerated;  // replacement without generation: choices that end at once
  std::vector<uint32_t> first_of;  // by choice: 1 for its prompt's first choice, which counts the prompt
  bool stream = false;
  bool wants_tokens = false;
  std::string kind;        // for the log: "http_chat"
  std::string request_id;  // for the log and the response head
  std::string client;
  ErrorStyle errors = ErrorStyle::kOpenAi;
  std::vector<std::string> constraint_fields;                // for ToClientFieldNames
  std::vector<std::pair<std::string, std::string>> headers;  // response headers
};

class AnswerCall final : public ServedCall,
                         public HttpObserver,
                         public std::enable_shared_from_this<AnswerCall> {
 public:
  // Submits the plan to the engine; the answer goes to `exchange`. `context` must outlive the call.
  static void Start(const ServingContext& context, AnswerPlan plan, std::unique_ptr<AnswerWriter> writer,
                    std::shared_ptr<HttpExchange> exchange);

  AnswerCall(const ServingContext& context, AnswerPlan plan, std::unique_ptr<AnswerWriter> writer,
             std::shared_ptr<HttpExchange> exchange);

  void OnReady() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnTick(absl::Time now) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWritten() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEnded(bool disconnected) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Called by the choices' sinks.
  void Tokens(size_t choice, absl::Span<const TokenOut> tokens, std::string_view text)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Started(size_t choice, const Usage& usage) ABSL_LOCKS_EXCLUDED(mutex_);
  void Finished(size_t choice, const FinishInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  void Failed(size_t choice, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Choice {
    AnswerPiece pending;
    Usage running;                  // so far
    std::optional<FinishInfo> end;  // set until the writer gets it
    bool end_delivered = false;     // the writer got the end
  };
  // Output collected for one write.
  struct Round {
    struct Part {
      size_t choice = 0;
      AnswerPiece piece;
      Usage running;
      std::optional<FinishInfo> end;
    };
    std::vector<Part> parts;
    bool all_delivered = false;
    std::optional<absl::Status> error;
  };

  void Submit();
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Round> TakeRound() ABSL_LOCKS_EXCLUDED(mutex_);
  void WriteRound(Round round) ABSL_LOCKS_EXCLUDED(mutex_);
  void WriteError(const absl::Status& status);
  void Begin();
  AnswerTotals Totals() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AnswerPlan plan_;
  const std::shared_ptr<HttpExchange> exchange_;
  // Used by the HTTP server's thread only.
  const std::unique_ptr<AnswerWriter> writer_;
  bool begun_ = false;

  Mutex mutex_;
  std::vector<Choice> choices_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> error_ ABSL_GUARDED_BY(mutex_);
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // the client has not accepted the last write yet
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;    // the last write was issued
  bool over_ ABSL_GUARDED_BY(mutex_) = false;     // the last write was accepted, or the client gone
  absl::Time wrote_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::inferd
