// FakeEngine: an EngineApi under a test's control. Nothing happens to a request until the test reports it;
// the reports reach the sinks on a thread of the fake's own, in order, as the engine's would.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "inferd/api/engine_api.h"

namespace sluice {

class FakeEngine final : public inferd::EngineApi {
 public:
  FakeEngine();
  // Drops its sinks without a report, like an engine that is destroyed.
  ~FakeEngine() override;

  // From now on Generate and Score return this instead of accepting the request; OK: accept it again.
  void RefuseWith(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetHealth(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetStats(const inferd::EngineStats& stats) ABSL_LOCKS_EXCLUDED(mutex_);
  // From now on every generation is answered at once: `tokens` tokens of the text "x", then the end.
  void AnswerWith(uint32_t tokens) ABSL_LOCKS_EXCLUDED(mutex_);

  // The oldest request not returned before; waits for it.
  inferd::GenerateSpec NextGenerate() ABSL_LOCKS_EXCLUDED(mutex_);
  inferd::ScoreSpec NextScore() ABSL_LOCKS_EXCLUDED(mutex_);

  // Reports to a request's sink, as the engine's thread would. Requests that have ended get nothing.
  void Start(const std::string& id, const inferd::Usage& usage, double queue_seconds);
  void Emit(const std::string& id, std::vector<inferd::TokenOut> tokens, const std::string& text);
  void Finish(const std::string& id, const inferd::FinishInfo& info);
  void Fail(const std::string& id, const absl::Status& status);
  void EmitRows(const std::string& id, uint32_t first, std::vector<int32_t> argmax,
                std::vector<float> target_logprobs, std::vector<float> logits);
  void FinishScore(const std::string& id, const inferd::Usage& usage, const inferd::Timings& timings);
  // Returns once everything reported before has reached its sink.
  void Flush();

  // The calibration requested last; waits for it. A fake keeps its sink until it is destroyed.
  inferd::CalibrationSpec AwaitCalibration(std::shared_ptr<inferd::CalibrationSink>* sink)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until Cancel(id) was called.
  void WaitForCancel(const std::string& id) ABSL_LOCKS_EXCLUDED(mutex_);
  // True if the sink of a live request of Score is congested.
  bool IsCongested(const std::string& id) ABSL_LOCKS_EXCLUDED(mutex_);
  size_t live() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool draining() const ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status Generate(inferd::GenerateSpec spec, std::shared_ptr<inferd::RequestSink> sink) override;
  absl::Status Score(inferd::ScoreSpec spec, std::shared_ptr<inferd::ScoreSink> sink) override;
  absl::Status Calibrate(inferd::CalibrationSpec spec,
                         std::shared_ptr<inferd::CalibrationSink> sink) override;
  absl::Status Cancel(const std::string& request_id) override;
  inferd::EngineStats Stats() const override;
  std::vector<inferd::LayerSparsity> Sparsity() const override { return {{100, 25}, {50, 50}}; }
  // Two layers; the second one's fields are 101, 102, .. in the order of their declaration.
  std::vector<inferd::LayerStats> Layers() const override;
  absl::Status Health() const override;
  void StartDrain() override;
  absl::Status CheckQueueSpace(const std::string&) override { return place_; }
  // Sets the status that it reports from now on.
  void SetPlace(absl::Status status) { place_ = std::move(status); }
  void SetQueueLimits(const inferd::QueueLimits& limits) override { queue_limits_ = limits; }
  // The limits that were set last.
  const inferd::QueueLimits& queue_limits() const { return queue_limits_; }

 private:
  inferd::QueueLimits queue_limits_;
  absl::Status place_;
  struct Sinks {
    std::shared_ptr<inferd::RequestSink> request;  // exactly one of the two is set
    std::shared_ptr<inferd::ScoreSink> score;
  };
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Post(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);
  Sinks Find(const std::string& id, bool remove) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Take(const std::string& id, Sinks sinks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;  // self-synchronised: any change of the members below
  std::map<std::string, Sinks> live_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  std::deque<inferd::GenerateSpec> generates_ ABSL_GUARDED_BY(mutex_);
  std::deque<inferd::ScoreSpec> scores_ ABSL_GUARDED_BY(mutex_);
  inferd::CalibrationSpec calibration_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<inferd::CalibrationSink> calibration_sink_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> cancelled_ ABSL_GUARDED_BY(mutex_);
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  inferd::EngineStats stats_ ABSL_GUARDED_BY(mutex_);
  uint32_t answer_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // the constructor's and the destructor's
};

}  // namespace sluice
