// The engine: EngineApi on its own thread.
//
// Callers validate and queue; the engine thread takes queued requests between steps, runs steps, and is the
// only thread that touches the model, the caches and weightd's session. When weightd is lost it tries to
// reconnect for EngineOptions::weightd_grace, during which requests wait; then they end UNAVAILABLE, and it
// keeps trying in the background.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/protocol/copier.h"
#include "common/text/tokenizer.h"
#include "inferd/api/engine_api.h"
#include "inferd/calibrate/calibrator.h"
#include "inferd/engine/engine_core.h"
#include "inferd/engine/task_queue.h"
#include "inferd/forward/engine_options.h"
#include "inferd/forward/engine_parts.h"
#include "inferd/forward/request_registry.h"
#include "inferd/grammar/grammar_manager.h"
#include "inferd/model/weight_client.h"
#include "inferd/sim/virtual_clock.h"
#include "kernels/backend.h"

namespace sluice::inferd {

class Engine final : public EngineApi {
 public:
  // Creates everything on the engine thread, and returns when a token can be computed or an error is known.
  // `tokenizer` (may be null: token ids only) outlives the engine. `copiers` copy into the device's memory if
  // this process pulls. Errors: those of PlanEngine, of the places, of leasing the dense weights.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        std::unique_ptr<WeightClient> client,
                                                        DeviceFactory device_factory,
                                                        const Tokenizer* tokenizer,
                                                        std::vector<std::shared_ptr<Copier>> copiers = {});

  // Ends every live request UNAVAILABLE and joins the thread.
  ~Engine() override;

  absl::Status Generate(GenerateSpec spec, std::shared_ptr<RequestSink> sink) override;
  absl::Status Score(ScoreSpec spec, std::shared_ptr<ScoreSink> sink) override;
  absl::Status Calibrate(CalibrationSpec spec, std::shared_ptr<CalibrationSink> sink) override;
  absl::Status Cancel(const std::string& request_id) override;
  EngineStats Stats() const override;
  std::vector<LayerSparsity> Sparsity() const override { return core_->Sparsity(); }
  std::vector<LayerStats> Layers() const override;
  absl::Status Health() const override;
  void StartDrain() override;
  absl::Status CheckQueueSpace(const std::string& client) override {
    return Rejected(registry_.CheckQueueSpace(client));
  }
  void SetQueueLimits(const QueueLimits& limits) override { registry_.SetLimits(limits); }

  // Size of the KV cache, and the context limit of requests.
  struct KvTuned {
    uint32_t pages = 0;
    uint64_t bytes = 0;      // includes recurrent states
    uint32_t context = 0;    // maximum tokens of a request
    uint32_t restarted = 0;  // number of sequences to be recomputed
  };
  KvTuned Kv() const;
  // Changes the budget of the KV cache and the context limit between two steps; blocks until then. `coming`:
  // bytes that are about to become free. While requests are live the cache must hold one sequence of the
  // initial context, since one of them may be that long. Errors change nothing: see TuningApi.
  absl::StatusOr<KvTuned> TuneKv(std::optional<uint64_t> kv_budget, std::optional<uint32_t> context,
                                 uint64_t coming = 0);

  // Open and close the file of the prefix cache (PrefixCache::OpenFile, CloseFile) between two steps; both
  // block until then. While it is open, entries are saved when the engine is idle, and between steps in a
  // thirtieth of the time. `on_failure` is called on the engine thread, once, if that fails.
  absl::StatusOr<PrefixCache::Saved> OpenPrefixes(const std::string& path, uint64_t limit,
                                                  absl::Status* rejected,
                                                  std::function<void(const absl::Status&)> on_failure);
  absl::StatusOr<PrefixCache::Saved> ClosePrefixes();

  // Options with every default resolved.
  const EnginePlan& plan() const { return plan_; }
  // Text for the start-up log: backend, session, sizes.
  const std::string& description() const { return description_; }
  GrammarStats guide_stats() const { return grammars_ == nullptr ? GrammarStats() : grammars_->Stats(); }

 private:
  Engine(const EnginePlan& plan, std::unique_ptr<WeightClient> client, const Tokenizer* tokenizer,
         std::vector<std::shared_ptr<Copier>> copiers);

  void Main(const DeviceFactory& device_factory);
  absl::Status Setup(const DeviceFactory& device_factory);
  void Loop();
  void TakeQueued();
  std::string Describe() const;
  absl::Status StillFits(const std::string& request_id, uint64_t tokens);
  absl::Status TuneKvNow(std::optional<uint64_t> kv_budget, uint32_t context, uint64_t coming,
                         KvTuned* tuned);
  bool RunNextTask();
  void WakeLoop();
  void Idle(EngineCore::Outcome outcome);
  void HandleLoss();
  void FailRequests(const absl::Status& why);
  void SetHealth(const absl::Status& health, const absl::Status& refusal);
  void Publish();
  absl::StatusOr<SequenceId> Enter(const std::string& request_id, const std::string& client,
                                   absl::Time deadline, uint64_t tokens, uint64_t bytes);
  absl::Status Rejected(const absl::Status& status);
  absl::StatusOr<std::unique_ptr<GrammarConstraint>> StartConstraint(const GenerateSpec& spec);
  void Hand(std::unique_ptr<Sequence> sequence);

  const EnginePlan plan_;
  const std::unique_ptr<VirtualClock> clock_;  // null: real time
  const std::unique_ptr<WeightClient> client_;
  const Tokenizer* const tokenizer_;
  const ModelConfig config_;  // the served part of the pack's
  const uint64_t seed_base_;
  const std::unique_ptr<GrammarManager> grammars_;  // null without a tokenizer
  RequestRegistry registry_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> seeds_drawn_{0};
  std::atomic<uint64_t> rejected_{0};
  std::atomic<uint32_t> context_;  // maximum tokens of a request, at most the plan's

  TaskQueue tasks_;

  mutable Mutex mutex_;
  CondVar changed_;  // started_, stopping_, incoming_, cancelled_ or tasks_ changed
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status start_status_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Sequence>> incoming_ ABSL_GUARDED_BY(mutex_);
  std::vector<SequenceId> cancelled_ ABSL_GUARDED_BY(mutex_);
  EngineStats stats_ ABSL_GUARDED_BY(mutex_);
  std::vector<LayerStats> layers_ ABSL_GUARDED_BY(mutex_);
  absl::Status health_ ABSL_GUARDED_BY(mutex_);   // OK: a token can be computed now
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);  // error for new requests

  // Written by the engine thread before Create returns, then const.
  std::unique_ptr<EngineCore> core_;  // used by the engine thread only, except heartbeat_nanos()
  std::string description_;

  // Used by the engine thread only.
  std::vector<std::unique_ptr<Sequence>> taken_;
  std::vector<SequenceId> taken_cancels_;
  absl::Time lost_since_ = absl::InfiniteFuture();  // InfiniteFuture: not lost

  std::thread thread_;

  Mutex calibration_mutex_;
  std::unique_ptr<CalibrationTask> calibration_ ABSL_GUARDED_BY(calibration_mutex_);
};

}  // namespace sluice::inferd
