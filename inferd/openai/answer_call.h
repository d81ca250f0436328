// AnswerCall: one HTTP request's generation: several choices in the engine, one answer to the client.
//
// Each choice is a request of the engine. What the engine says is kept until the pump's thread gives it to
// the AnswerWriter, which makes events of a stream or the whole answer of it. While the client has not taken
// what was written, what comes merges into the next event. A client that leaves takes its requests with it at
// once.
//
// Thread safety: thread-safe; the writer is used by the pump's thread alone.
#pragma once

#include <atomic>
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
#include "common/mutex.h"
#include "inferd/api/engine_api.h"
#include "inferd/http/http_message.h"
#include "inferd/openai/api_errors.h"
#include "inferd/serving/engine_request.h"
#include "inferd/serving/serving_context.h"

namespace sluice {

// What one choice has newly produced. `tokens` only if the plan wants them.
struct AnswerPiece {
  std::string text;
  std::vector<TokenOut> tokens;
};

// The whole request's numbers: prompts once each, however many choices they have.
struct AnswerTotals {
  Usage usage;
  Timings timings;  // of the choice that took longest
};

// Makes a format's events or whole answer of what the choices produce. Of one answer; one thread at a time.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // Appends events to *out, which stays unused where the answer is given whole.
  virtual void Add(size_t choice, AnswerPiece piece, const Usage& running, std::string* out) = 0;
  virtual void Finish(size_t choice, const FinishInfo& info, std::string* out) = 0;
  // All choices have ended: a stream's last events, or the whole answer's body.
  virtual void End(const AnswerTotals& totals, std::string* out) = 0;
  // A stream that ends by an error.
  virtual std::string ErrorEvent(const absl::Status& status) const = 0;
};

struct AnswerPlan {
  std::vector<GenerateSpec> specs;  // of the choices, by index
  std::vector<GenerateSpec>
      unmade;  // instead of them: choices without a token of their own, ended from the start
  std::vector<uint32_t> first_of;  // by choice: 1 where it is the first of its prompt, whose tokens it counts
  bool stream = false;
  bool wants_tokens = false;
  std::string kind;        // for the log: "http_chat"
  std::string request_id;  // for the log and the answer's head
  std::string client;
  ErrorStyle errors = ErrorStyle::kOpenAi;
  std::vector<std::string> guide_fields;                     // for InClientsTerms
  std::vector<std::pair<std::string, std::string>> headers;  // of the answer
};

class AnswerCall final : public PumpedCall,
                         public HttpWatcher,
                         public std::enable_shared_from_this<AnswerCall> {
 public:
  // Hands the plan to the engine; the answer goes to `exchange`. `context` outlives the call's life in its
  // pump.
  static void Start(const ServingContext& context, AnswerPlan plan, std::unique_ptr<AnswerWriter> writer,
                    std::shared_ptr<HttpExchange> exchange);

  AnswerCall(const ServingContext& context, AnswerPlan plan, std::unique_ptr<AnswerWriter> writer,
             std::shared_ptr<HttpExchange> exchange);

  void Pump() override ABSL_LOCKS_EXCLUDED(mutex_);
  void CheckStall(absl::Time now) override ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t unsent_bytes() const override { return unsent_.load(std::memory_order_relaxed); }

  void OnWritten() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnOver(bool gone) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Of the choices' sinks.
  void Tokens(size_t choice, absl::Span<const TokenOut> tokens, std::string_view text)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Started(size_t choice, const Usage& usage) ABSL_LOCKS_EXCLUDED(mutex_);
  void Finished(size_t choice, const FinishInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  void Failed(size_t choice, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Choice {
    AnswerPiece pending;
    Usage running;                  // so far
    std::optional<FinishInfo> end;  // until the writer has it
    bool told = false;              // the writer has the end
  };
  // What one round of the pump takes out.
  struct Round {
    struct Part {
      size_t choice = 0;
      AnswerPiece piece;
      Usage running;
      std::optional<FinishInfo> end;
    };
    std::vector<Part> parts;
    bool all_told = false;
    std::optional<absl::Status> error;
  };

  void Submit();
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelAll();
  std::optional<Round> TakeRound() ABSL_LOCKS_EXCLUDED(mutex_);
  void WriteRound(Round round) ABSL_LOCKS_EXCLUDED(mutex_);
  void WriteError(const absl::Status& status);
  void Begin();
  AnswerTotals Totals() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ServingContext& context_;
  const AnswerPlan plan_;
  const std::shared_ptr<HttpExchange> exchange_;
  std::vector<std::unique_ptr<EngineRequest>> requests_;  // constant once made; self-synchronised
  // Of the pump's thread.
  const std::unique_ptr<AnswerWriter> writer_;
  bool begun_ = false;

  std::atomic<uint64_t> unsent_{0};
  Mutex mutex_;
  std::vector<Choice> choices_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> error_ ABSL_GUARDED_BY(mutex_);
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // the client has yet to take what was written
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;    // the last of it was written
  bool over_ ABSL_GUARDED_BY(mutex_) = false;     // and taken, or there is nobody to take it
  absl::Time wrote_ ABSL_GUARDED_BY(mutex_);
  uint64_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice
