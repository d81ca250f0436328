// MemoryTuner: implements TuningApi over an engine and its weightd; each owns a part of the memory.
//
// The shrinking budget is applied first, so that the other can use the memory released; if growing fails, the
// first change is rolled back.
//
// Thread safety: thread-safe; one tuning runs at a time, on its own thread.
#pragma once

#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "inferd/api/control_api.h"
#include "inferd/engine/engine.h"
#include "spdlog/logger.h"

namespace sluice::inferd {

class MemoryTuner final : public TuningApi {
 public:
  // `weightd_socket`: a path. `log` is borrowed.
  MemoryTuner(std::string weightd_socket, spdlog::logger* log);
  // Same as Close().
  ~MemoryTuner() override;

  // Sets the engine, which must outlive Close().
  void Open(Engine* engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for the running change; queued and later changes are UNAVAILABLE. Idempotent.
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

}  // namespace sluice::inferd
