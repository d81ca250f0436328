// A small language for tests of the engine: packs made on the fly, sinks that record, engines on a fake
// weightd.
//
// Thread safety: the sinks are thread-safe (the engine thread writes, the test reads); everything else is
// thread-compatible.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "inferd/engine/engine.h"
#include "tests/support/fakes/fake_weight_client.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace sluice {

// Packs the Hugging Face folder `model_dir` into `out_dir`. `bits`, `layout`: as on the command line.
absl::Status PackFolder(const std::string& model_dir, const std::string& out_dir,
                        const std::string& bits = "bf16", const std::string& layout = "");
// Writes a random model and packs it.
absl::Status PackTiny(const TinyModelSpec& spec, const std::string& work_dir, const std::string& out_dir,
                      const std::string& bits = "bf16");

// Records the reports of a generation.
class CollectingSink final : public inferd::RequestSink {
 public:
  void OnStarted(const inferd::Usage& usage, double queue_seconds) override;
  void OnTokens(absl::Span<const inferd::TokenOut> tokens, std::string_view text) override;
  void OnFinished(const inferd::FinishInfo& info) override;
  void OnError(const absl::Status& status) override;

  // Blocks until the end; returns its status.
  absl::Status Await();
  // Blocks until at least `count` tokens have arrived or the end.
  void AwaitTokens(size_t count);

  bool started() const;
  bool ended() const;
  std::vector<int32_t> ids() const;
  std::vector<inferd::TokenOut> tokens() const;
  std::string text() const;
  std::vector<std::string> pieces() const;
  inferd::FinishInfo info() const;

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<inferd::TokenOut> tokens_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> pieces_ ABSL_GUARDED_BY(mutex_);
  inferd::FinishInfo info_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

// Records rows; is congested while set so.
class CollectingScoreSink final : public inferd::ScoreSink {
 public:
  void OnRows(uint32_t first, absl::Span<const int32_t> argmax, absl::Span<const float> target_logprobs,
              absl::Span<const float> logits) override;
  bool Congested() override;
  void OnFinished(const inferd::Usage& usage, const inferd::Timings& timings) override;
  void OnError(const absl::Status& status) override;

  absl::Status Await();
  void SetCongested(bool congested);
  // Blocks until Congested() was called.
  void AwaitQuestion();
  bool ended() const;
  std::vector<int32_t> argmax() const;
  std::vector<float> target_logprobs() const;
  std::vector<float> logits() const;

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool congested_ ABSL_GUARDED_BY(mutex_) = false;
  bool asked_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t rows_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<int32_t> argmax_ ABSL_GUARDED_BY(mutex_);
  std::vector<float> target_logprobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<float> logits_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

// An engine with the fake it runs on.
struct TestEngine {
  std::unique_ptr<inferd::Engine> engine;
  FakeWeightClient* client = nullptr;  // lives as long as the engine
};

struct TestEngineOptions {
  inferd::EngineOptions engine;
  FakeWeightOptions weights;
  uint32_t threads = 0;     // 0: the reference backend
  uint64_t delay_seed = 0;  // the device computes later; 0: at the call
  const Tokenizer* tokenizer = nullptr;
};
absl::StatusOr<TestEngine> StartEngine(const std::string& pack_dir, const TestEngineOptions& options);

// The minimum DRAM budget of a session with `threads` compute threads.
uint64_t SmallestBudget(const std::string& pack_dir, uint32_t threads);

// A greedy request without end tokens.
inferd::GenerateSpec GreedySpec(const std::string& id, std::vector<int32_t> prompt, uint32_t max_tokens);

// Runs one request to its end; returns its token ids.
absl::StatusOr<std::vector<int32_t>> GenerateIds(inferd::Engine* engine, const inferd::GenerateSpec& spec);
// The logits of all rows.
absl::StatusOr<std::vector<float>> ScoreLogits(inferd::Engine* engine, const std::string& id,
                                               std::vector<int32_t> input);

// Blocks until nothing runs, waits or is being fetched; returns the statistics.
inferd::EngineStats AwaitQuiet(const inferd::Engine& engine);

}  // namespace sluice
