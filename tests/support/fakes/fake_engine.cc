#include "tests/support/fakes/fake_engine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/status.h"

namespace sluice {

FakeEngine::FakeEngine() {
  thread_ = std::thread([this] { Run(); });
}

FakeEngine::~FakeEngine() {
  {
    const MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void FakeEngine::Run() {
  while (true) {
    std::function<void()> work;
    {
      const MutexLock lock(&mutex_);
      while (!stop_ && work_.empty()) {
        changed_.Wait(&mutex_);
      }
      if (stop_) {
        return;
      }
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
  }
}

void FakeEngine::Post(std::function<void()> work) {
  const MutexLock lock(&mutex_);
  work_.push_back(std::move(work));
  changed_.SignalAll();
}

FakeEngine::Sinks FakeEngine::Find(const std::string& id, bool remove) {
  const MutexLock lock(&mutex_);
  const auto it = live_.find(id);
  if (it == live_.end()) {
    return {};
  }
  Sinks sinks = it->second;
  if (remove) {
    live_.erase(it);
  }
  return sinks;
}

void FakeEngine::RefuseWith(absl::Status status) {
  const MutexLock lock(&mutex_);
  refusal_ = std::move(status);
}

void FakeEngine::SetHealth(absl::Status status) {
  const MutexLock lock(&mutex_);
  health_ = std::move(status);
}

void FakeEngine::SetStats(const inferd::EngineStats& stats) {
  const MutexLock lock(&mutex_);
  stats_ = stats;
}

void FakeEngine::AnswerWith(uint32_t tokens) {
  const MutexLock lock(&mutex_);
  answer_tokens_ = tokens;
}

inferd::GenerateSpec FakeEngine::NextGenerate() {
  const MutexLock lock(&mutex_);
  while (generates_.empty()) {
    changed_.Wait(&mutex_);
  }
  inferd::GenerateSpec spec = std::move(generates_.front());
  generates_.pop_front();
  return spec;
}

inferd::ScoreSpec FakeEngine::NextScore() {
  const MutexLock lock(&mutex_);
  while (scores_.empty()) {
    changed_.Wait(&mutex_);
  }
  inferd::ScoreSpec spec = std::move(scores_.front());
  scores_.pop_front();
  return spec;
}

void FakeEngine::Start(const std::string& id, const inferd::Usage& usage, double queue_seconds) {
  Post([=, this] {
    if (const Sinks sinks = Find(id, false); sinks.request != nullptr) {
      sinks.request->OnStarted(usage, queue_seconds);
    }
  });
}

void FakeEngine::Emit(const std::string& id, std::vector<inferd::TokenOut> tokens, const std::string& text) {
  Post([=, this] {
    if (const Sinks sinks = Find(id, false); sinks.request != nullptr) {
      sinks.request->OnTokens(tokens, text);
    }
  });
}

void FakeEngine::Finish(const std::string& id, const inferd::FinishInfo& info) {
  Post([=, this] {
    if (const Sinks sinks = Find(id, true); sinks.request != nullptr) {
      sinks.request->OnFinished(info);
    }
  });
}

void FakeEngine::Fail(const std::string& id, const absl::Status& status) {
  Post([=, this] {
    const Sinks sinks = Find(id, true);
    if (sinks.request != nullptr) {
      sinks.request->OnError(status);
    }
    if (sinks.score != nullptr) {
      sinks.score->OnError(status);
    }
  });
}

void FakeEngine::EmitRows(const std::string& id, uint32_t first, std::vector<int32_t> argmax,
                          std::vector<float> target_logprobs, std::vector<float> logits) {
  Post([=, this] {
    if (const Sinks sinks = Find(id, false); sinks.score != nullptr) {
      sinks.score->OnRows(first, argmax, target_logprobs, logits);
    }
  });
}

void FakeEngine::FinishScore(const std::string& id, const inferd::Usage& usage,
                             const inferd::Timings& timings) {
  Post([=, this] {
    if (const Sinks sinks = Find(id, true); sinks.score != nullptr) {
      sinks.score->OnFinished(usage, timings);
    }
  });
}

void FakeEngine::Flush() {
  absl::Notification done;
  Post([&done] { done.Notify(); });
  done.WaitForNotification();
}

void FakeEngine::WaitForCancel(const std::string& id) {
  const MutexLock lock(&mutex_);
  while (std::find(cancelled_.begin(), cancelled_.end(), id) == cancelled_.end()) {
    changed_.Wait(&mutex_);
  }
}

bool FakeEngine::IsCongested(const std::string& id) {
  const Sinks sinks = Find(id, false);
  return sinks.score != nullptr && sinks.score->Congested();
}

size_t FakeEngine::live() const {
  const MutexLock lock(&mutex_);
  return live_.size();
}

bool FakeEngine::draining() const {
  const MutexLock lock(&mutex_);
  return draining_;
}

absl::Status FakeEngine::Take(const std::string& id, Sinks sinks) {
  RETURN_IF_ERROR(refusal_);
  if (draining_) {
    return ReasonError(absl::StatusCode::kUnavailable, "DRAINING", "draining");
  }
  if (!live_.emplace(id, std::move(sinks)).second) {
    return ReasonError(absl::StatusCode::kAlreadyExists, "REQUEST_EXISTS",
                       absl::StrCat("request ", id, " lives"));
  }
  return absl::OkStatus();
}

absl::Status FakeEngine::Generate(inferd::GenerateSpec spec, std::shared_ptr<inferd::RequestSink> sink) {
  uint32_t answer = 0;
  {
    const MutexLock lock(&mutex_);
    RETURN_IF_ERROR(Take(spec.request_id, {std::move(sink), nullptr}));
    answer = answer_tokens_;
    if (answer == 0) {
      generates_.push_back(spec);
      changed_.SignalAll();
    }
  }
  if (answer > 0) {
    inferd::FinishInfo info;
    info.reason = inferd::FinishReason::kLength;
    info.usage.prompt_tokens = static_cast<uint32_t>(spec.prompt.size());
    info.usage.completion_tokens = answer;
    Start(spec.request_id, info.usage, 0);
    for (uint32_t i = 0; i < answer; ++i) {
      Emit(spec.request_id, {{static_cast<int32_t>(i), -1.0f, {}}}, "x");
    }
    Finish(spec.request_id, info);
  }
  return absl::OkStatus();
}

absl::Status FakeEngine::Score(inferd::ScoreSpec spec, std::shared_ptr<inferd::ScoreSink> sink) {
  const MutexLock lock(&mutex_);
  RETURN_IF_ERROR(Take(spec.request_id, {nullptr, std::move(sink)}));
  scores_.push_back(std::move(spec));
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::Status FakeEngine::Calibrate(inferd::CalibrationSpec spec,
                                   std::shared_ptr<inferd::CalibrationSink> sink) {
  const MutexLock lock(&mutex_);
  RETURN_IF_ERROR(refusal_);
  calibration_ = std::move(spec);
  calibration_sink_ = std::move(sink);
  changed_.SignalAll();
  return absl::OkStatus();
}

inferd::CalibrationSpec FakeEngine::AwaitCalibration(std::shared_ptr<inferd::CalibrationSink>* sink) {
  const MutexLock lock(&mutex_);
  while (calibration_sink_ == nullptr) {
    changed_.Wait(&mutex_);
  }
  *sink = calibration_sink_;
  return calibration_;
}

absl::Status FakeEngine::Cancel(const std::string& request_id) {
  {
    const MutexLock lock(&mutex_);
    if (live_.count(request_id) == 0) {
      return ReasonError(absl::StatusCode::kNotFound, "REQUEST_NOT_FOUND",
                         absl::StrCat("no request ", request_id, " lives"));
    }
  }
  Fail(request_id, absl::CancelledError("cancelled"));
  // Called after the failure is posted, so that Flush() waits for that too.
  const MutexLock lock(&mutex_);
  cancelled_.push_back(request_id);
  changed_.SignalAll();
  return absl::OkStatus();
}

std::vector<inferd::LayerStats> FakeEngine::Layers() const {
  std::vector<inferd::LayerStats> layers(2);
  std::array<uint64_t, sizeof(inferd::LayerStats) / sizeof(uint64_t)> values;
  static_assert(sizeof(values) == sizeof(inferd::LayerStats));
  std::iota(values.begin(), values.end(), 101);
  std::memcpy(static_cast<void*>(&layers[1]), values.data(), sizeof(values));
  return layers;
}

inferd::EngineStats FakeEngine::Stats() const {
  const MutexLock lock(&mutex_);
  inferd::EngineStats stats = stats_;
  stats.sequences_running += live_.size();
  return stats;
}

absl::Status FakeEngine::Health() const {
  const MutexLock lock(&mutex_);
  return health_;
}

void FakeEngine::StartDrain() {
  const MutexLock lock(&mutex_);
  draining_ = true;
}

}  // namespace sluice
