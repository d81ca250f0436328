// The engine without its thread: accepts sequences, runs steps, survives the loss of weightd.
//
// A step plans the rows, runs the forward pass, gives each sequence its logits, and ends finished sequences.
// If weightd is lost in a step the step is discarded: leases are dropped, and after Recover() the next step
// computes the same rows again, to the same bits.
//
// Thread safety: thread-compatible; one thread at a time, the engine's. Stats go out through FillStats(),
// which that thread calls too.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "inferd/cache/residency.h"
#include "inferd/engine/engine_step.h"
#include "inferd/engine/policy_choice.h"
#include "inferd/engine/speculation.h"
#include "inferd/forward/engine_options.h"
#include "inferd/forward/engine_parts.h"
#include "inferd/forward/forward.h"
#include "inferd/forward/mtp_drafter.h"
#include "inferd/forward/prefix_cache.h"
#include "inferd/forward/request_registry.h"
#include "inferd/forward/scheduler.h"
#include "inferd/forward/sequence.h"
#include "inferd/model/dense_weights.h"
#include "inferd/model/fetch_queue.h"
#include "inferd/model/kv_cache.h"
#include "inferd/model/recurrent_states.h"
#include "inferd/model/row_source.h"
#include "inferd/model/weight_buffers.h"
#include "inferd/model/weight_client.h"
#include "inferd/policy/prefetcher.h"
#include "inferd/policy/router_trace.h"
#include "inferd/policy/routing.h"
#include "inferd/policy/sparsity.h"
#include "inferd/sim/virtual_clock.h"
#include "kernels/backend.h"

namespace sluice::inferd {

class EngineCore final {
 public:
  // Leases the dense weights, so the engine can compute a token when this returns. `client`, `registry` and
  // `clock` (null: real time), which times steps and answers, outlive the core.
  static absl::StatusOr<std::unique_ptr<EngineCore>> Create(const EnginePlan& plan, PolicyChoice choice,
                                                            WeightClient* client, ComputeDevices devices,
                                                            RequestRegistry* registry,
                                                            VirtualClock* clock = nullptr);
  ~EngineCore();

  enum class Outcome : uint8_t {
    kIdle,       // nothing to compute
    kCongested,  // nothing to compute until a consumer reads its output
    kRan,
    kLost,  // weightd is gone; call Recover()
  };

  void Add(std::unique_ptr<Sequence> sequence);
  // Ends one sequence; an unknown id is ignored. CANCELLED counts as cancelled, any other status as failed.
  void End(SequenceId id, const absl::Status& status);
  void EndAll(const absl::Status& status);

  // Sets the hook called after the removal of a sequence and before its sink is told; counters are up to date
  // then.
  void SetRemovalHook(std::function<void()> hook) { removal_hook_ = std::move(hook); }

  // Ends sequences past their deadline, or past their latest start.
  void EndExpired(absl::Time now);
  // Calls EndExpired(), then runs one step.
  Outcome Step(absl::Time now);

  // Changes the number of pages of the KV cache, between two steps. Running sequences release their pages and
  // are recomputed; cached prefixes are dropped. Errors of KvCache::Resize().
  absl::Status ResizeKv(uint32_t pages);
  uint32_t kv_pages() const { return kv_->pages().total(); }
  uint32_t running() const { return scheduler_->running(); }

  // Both forward to PrefixCache. FAILED_PRECONDITION if no prefixes are reused.
  absl::StatusOr<PrefixCache::Saved> OpenPrefixes(const std::string& path, uint64_t limit,
                                                  absl::Status* rejected,
                                                  std::function<void(const absl::Status&)> on_failure);
  absl::StatusOr<PrefixCache::Saved> ClosePrefixes();
  // Saves the prefix that has waited longest: at once while idle, otherwise so that saving takes a small
  // share of the time. True if one was saved.
  bool SavePrefix(bool idle);

  // Runs `work` as a step of its own. An error of weightd loses the weights, as in a step.
  absl::Status RunControlTask(const EngineWork& work);

  // Processes completions that arrived outside of a step.
  void Poll() { residency_->Poll(); }

  // Drops everything held from weightd; steps fail until Recover() succeeds.
  void LoseWeights();
  // Makes one attempt to recover a session and the dense weights. An error while the client is not connected
  // concerns the session and may pass, whatever its code.
  absl::Status Recover(absl::Time deadline);

  bool has_weights() const { return weights_->acquired(); }
  size_t live() const { return sequences_.size(); }
  absl::Time NextDeadline() const { return scheduler_->NextDeadline(); }
  const Backend& backend() const { return *backend_; }
  const Backend* cpu() const { return cpu_.get(); }  // null: the CPU does not compute beside the device
  std::string DescribeCache() const { return residency_->Describe(); }

  // A permanent error that every later step would meet again; OK if there is none.
  const absl::Status& broken() const { return broken_; }
  // Time of the running step's last progress, in nanoseconds of MonotonicClock; 0 between steps. Any thread.
  int64_t heartbeat_nanos() const { return heartbeat_.load(std::memory_order_relaxed); }

  // Reason why not every prefix is reused; empty if every one is.
  const std::string& prefix_rule() const { return prefix_rule_; }
  // Reason why nothing is speculated, or what speculation may change; empty if it keeps every token or is
  // off.
  const std::string& speculation_rule() const { return speculation_rule_; }
  // Reasons for the choice of the preset `auto`; empty for other presets.
  const std::vector<std::string>& reasons() const { return choice_.reasons; }

  void FillStats(EngineStats* stats) const;
  // Allocates only while `layers` is smaller than the model.
  void FillLayers(std::vector<LayerStats>* layers) const;
  // Any thread.
  std::vector<LayerSparsity> Sparsity() const { return sparsity_->counts(); }

 private:
  EngineCore(const EnginePlan& plan, PolicyChoice choice, WeightClient* client, ComputeDevices devices,
             RequestRegistry* registry, VirtualClock* clock);
  absl::Status Setup();
  absl::Time Now() const;
  void Beat() { heartbeat_.store(real_clock_.NowNanos(), std::memory_order_relaxed); }
  absl::Status MakeSpeculation(const Policies& policies);
  absl::Status MakeMtp();
  void MakeScheduler(const Policies& policies);
  absl::Status AcquireWeights();

  bool BlockCongested();
  void EndFailed();
  void CountTokens(SequenceId id, uint32_t tokens, const Sequence& sequence);
  Outcome RunStep(const StepPlan& plan);
  StepCost CostSince(const StepCost& before) const;
  StepCost CostNow() const;
  absl::Status CheckSession() const;
  absl::Status EndWithoutLogits();
  void CommitStep();
  void CommitRows(const StepRows::Running& running);
  bool ForgoDrafts(const absl::Status& status);
  void ProposeMtp(absl::Span<const MtpDrafter::Request> requests, absl::Span<Draft> drafts);
  absl::Status KeepHidden();
  void FailStep(const absl::Status& status);
  // Start values of a step's measurement: clocks, wait times, bytes.
  struct StepMarks {
    int64_t nanos = 0;
    int64_t real_nanos = 0;
    int64_t stall_nanos = 0;
    int64_t real_stall_nanos = 0;
    double load_seconds = 0;
    uint64_t bytes_touched = 0;
    uint64_t bytes_ssd = 0;
  };
  StepMarks MarksNow() const;
  double LoadSeconds() const;
  // Tells weightd if the step scans the model's experts like a long prompt, and if the next step continues
  // the scan.
  void ReportScan(const StepPlan& plan);
  // Returns the seconds since the last step's end, which answers wait for; the step's own after idle time.
  double CountStep(const StepPlan& plan, const StepMarks& before);
  void CountTimes(const StepMarks& before, const StepMarks& now);
  std::unique_ptr<Sequence> Remove(SequenceId id);

  const EnginePlan plan_;
  const ModelConfig config_;        // the served part of the pack's
  const ModelConfig model_config_;  // without MTP layers, which no policy and no profile knows
  const PolicyChoice choice_;
  const std::unique_ptr<Backend> backend_;  // the device's backend
  const std::unique_ptr<Backend> cpu_;      // CPU beside the device; null: the device computes everything
  SegmentBuffers segments_;
  WeightClient* const client_;
  RequestRegistry* const registry_;
  const MonotonicClock real_clock_;
  VirtualClock* const virtual_clock_;  // null: real time
  FetchQueue fetches_;
  std::unique_ptr<DenseWeights> weights_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<RecurrentStates> states_;
  std::unique_ptr<Residency> residency_;
  std::unique_ptr<RowSource> row_source_;  // null: no layer has n-grams
  std::unique_ptr<RoutingPolicy> routing_;
  std::unique_ptr<SparsityPolicy> sparsity_;
  std::unique_ptr<Prefetcher> prefetcher_;  // null: no prefetch
  std::unique_ptr<TraceRecorder> trace_;    // null: no trace is recorded
  std::unique_ptr<StepHooks> hooks_;
  std::unique_ptr<Forward> forward_;
  std::unique_ptr<PrefixCache> prefixes_;     // null: no prefix reuse
  std::unique_ptr<Speculation> speculation_;  // null: no speculation
  bool drafts_by_mtp_ = false;
  std::unique_ptr<MtpDrafter> mtp_;  // null: MTP layers do not draft
  absl::Status mtp_status_;          // error of the drafts of the step being planned
  std::unique_ptr<Scheduler> scheduler_;
  StepRows rows_;

  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  double link_gbps_ = 0;  // rate of a throttled or modelled link; 0: none
  uint64_t step_number_ = 0;
  const bool recurrent_;      // the model has recurrent states
  const uint32_t scan_rows_;  // minimum prompt rows of a scan; 0: no step is a scan
  ChunkPace chunk_;
  std::function<void(const absl::Status&)> on_save_failure_;
  absl::Time next_save_ = absl::InfinitePast();  // earliest time of the next save between two steps
  std::string prefix_rule_;
  std::string speculation_rule_;
  // End of the last step, by the clock of answers; 0: the engine was idle since.
  int64_t last_step_end_ = 0;
  absl::Status broken_;
  std::function<void()> removal_hook_;
  std::atomic<int64_t> heartbeat_{0};
  EngineStats counted_;  // counters of the core itself
};

}  // namespace sluice::inferd
