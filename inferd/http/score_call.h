// ScoreCall: scores prompts' own tokens, for echo with logprobs; then calls a continuation.
//
// Thread safety: thread-safe; `then` runs on the HTTP server's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "daemon/http/http_message.h"
#include "inferd/api/engine_api.h"
#include "inferd/serving/served_call.h"

namespace sluice::inferd {

struct ScoreWork {
  std::string request_id;
  std::string client;
  absl::Time deadline;
  std::vector<std::vector<int32_t>> prompts;
  uint32_t candidates = 0;  // number of candidates per token
};

class ScoreCall final : public ServedCall,
                        public HttpObserver,
                        public std::enable_shared_from_this<ScoreCall> {
 public:
  // Receives the tokens of each prompt with log probabilities (none for the first token), or an error. Not
  // called after a disconnect.
  using Then = std::function<void(absl::Status, std::vector<std::vector<TokenOut>>)>;

  static void Start(const ServingContext& context, ScoreWork work,
                    const std::shared_ptr<HttpExchange>& exchange, Then then);
  ScoreCall(const ServingContext& context, ScoreWork work, std::shared_ptr<HttpExchange> exchange, Then then);

  void OnReady() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEnded(bool disconnected) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Called by the sinks.
  void Rows(size_t prompt, uint32_t first, absl::Span<const float> logits) ABSL_LOCKS_EXCLUDED(mutex_);
  void Ended(size_t prompt, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Submit();
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ScoreWork work_;
  const std::shared_ptr<HttpExchange> exchange_;
  const Then then_;
  Mutex mutex_;
  std::vector<std::vector<TokenOut>> scores_ ABSL_GUARDED_BY(mutex_);
  size_t left_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::inferd
