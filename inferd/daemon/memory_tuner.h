// MemoryTuner: TuningApi over an engine and its weightd, which each own a part of the memory.
//
// What takes less goes first, so that the other finds what it gave back; if the second refuses, the first is
// undone.
//
// Thread safety: thread-safe; one tuning runs at a time, on a thread of its own.
#pragma once

#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "inferd/api/tuning_api.h"
#include "inferd/engine/engine.h"
#include "spdlog/logger.h"

namespace sluice {

class MemoryTuner final : public TuningApi {
 public:
  // `weightd_socket`: a path. `log` is borrowed.
  MemoryTuner(std::string weightd_socket, spdlog::logger* log);
  // As Close().
  ~MemoryTuner() override;

  // There is an engine, which outlives Close().
  void Open(Engine* engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends once what runs has ended; what waits is UNAVAILABLE, as is all that comes. Idempotent.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  void Tune(const EngineTuning& tuning, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<EngineTuned> TuneNow(Engine* engine, const EngineTuning& tuning);

  const std::string weightd_socket_;
  spdlog::logger* const log_;
  Mutex mutex_;
  CondVar changed_;
  Engine* engine_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::pair<EngineTuning, Done>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // set by the constructor, joined by the first Close()
};

}  // namespace sluice
