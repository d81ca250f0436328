#include "inferd/daemon/memory_tuner.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "inferd/session/weights_rpc_client.h"

namespace sluice::inferd {
namespace {

constexpr absl::Duration kWeightdTimeout = absl::Seconds(5);
// Timeout for clients of weightd to unmap released memory; memory still mapped afterwards is reported.
constexpr absl::Duration kUnmapTimeout = absl::Seconds(3);
constexpr absl::Duration kLook = absl::Milliseconds(2);

absl::Status Closed() {
  return ReasonError(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "inferd is shutting down");
}

// Sets the budget and waits until weightd's usage is within it.
absl::StatusOr<WeightsRpcClient::DramBudget> SetBudget(WeightsRpcClient* weightd, uint64_t bytes) {
  ASSIGN_OR_RETURN(WeightsRpcClient::DramBudget budget,
                   weightd->SetDramBudget(bytes, SteadyNow() + kWeightdTimeout));
  const absl::Time end = SteadyNow() + kUnmapTimeout;
  while (budget.segment_bytes > bytes && SteadyNow() < end) {
    absl::SleepFor(kLook);
    ASSIGN_OR_RETURN(const WeightsRpcClient::DramBudget now,
                     weightd->SetDramBudget(bytes, SteadyNow() + kWeightdTimeout));
    budget.segment_bytes = now.segment_bytes;
  }
  return budget;
}

}  // namespace

MemoryTuner::MemoryTuner(std::string weightd_socket, spdlog::logger* log)
    : weightd_socket_(std::move(weightd_socket)), log_(log), thread_([this] { Run(); }) {}

MemoryTuner::~MemoryTuner() { Close(); }

void MemoryTuner::Open(Engine* engine) {
  const MutexLock lock(&mutex_);
  engine_ = engine;
}

void MemoryTuner::Close() {
  {
    const MutexLock lock(&mutex_);
    closed_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void MemoryTuner::Tune(const EngineTuning& tuning, Done done) {
  absl::Status refusal;
  {
    const MutexLock lock(&mutex_);
    if (closed_) {
      refusal = Closed();
    } else if (engine_ == nullptr) {
      refusal = ReasonError(absl::StatusCode::kUnavailable, "STARTING", "the server is starting");
    } else {
      waiting_.emplace_back(tuning, std::move(done));
      changed_.SignalAll();
      return;
    }
  }
  done(refusal);
}

void MemoryTuner::Run() {
  for (;;) {
    std::optional<std::pair<EngineTuning, Done>> next;
    Engine* engine = nullptr;
    bool closed = false;
    {
      MutexLock lock(&mutex_);
      while (!closed_ && waiting_.empty()) changed_.Wait(&mutex_);
      if (waiting_.empty()) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      engine = engine_;
      closed = closed_;
    }
    const absl::StatusOr<EngineTuned> tuned =
        closed ? absl::StatusOr<EngineTuned>(Closed()) : TuneNow(engine, next->first);
    if (tuned.ok()) {
      log_->info("tuned: DRAM for weights {}, KV cache {} in {} pages, context {}; {} sequences start again",
                 tuned->dram_budget == 0 ? "as before" : FormatSize(tuned->dram_budget),
                 FormatSize(tuned->kv_bytes), tuned->kv_pages, tuned->context, tuned->restarted);
    } else {
      log_->warn("not tuned: {}", std::string(tuned.status().message()));
    }
    next->second(tuned);
  }
}

absl::StatusOr<EngineTuned> MemoryTuner::TuneNow(Engine* engine, const EngineTuning& tuning) {
  WeightsRpcClient weightd(weightd_socket_);
  const Engine::KvTuned before = engine->Kv();
  const bool kv_first = !tuning.kv_budget.has_value() || *tuning.kv_budget <= before.bytes;
  EngineTuned tuned;
  Engine::KvTuned kv;
  if (kv_first) {
    ASSIGN_OR_RETURN(kv, engine->TuneKv(tuning.kv_budget, tuning.context));
  }
  WeightsRpcClient::DramBudget dram;
  if (tuning.dram_budget.has_value()) {
    const auto set = SetBudget(&weightd, *tuning.dram_budget);
    if (!set.ok()) {
      if (kv_first) engine->TuneKv(before.bytes, before.context).status().IgnoreError();
      return set.status();
    }
    dram = *set;
    tuned.dram_budget = *tuning.dram_budget;
    tuned.segment_bytes = dram.segment_bytes;
  }
  if (!kv_first) {
    const uint64_t coming = dram.segment_bytes - std::min(dram.segment_bytes, tuned.dram_budget);
    const auto tried = engine->TuneKv(tuning.kv_budget, tuning.context, coming);
    if (!tried.ok()) {
      if (tuned.dram_budget > 0) SetBudget(&weightd, dram.previous).status().IgnoreError();
      return tried.status();
    }
    kv = *tried;
  }
  tuned.kv_bytes = kv.bytes;
  tuned.kv_pages = kv.pages;
  tuned.context = kv.context;
  tuned.restarted = kv.restarted;
  return tuned;
}

}  // namespace sluice::inferd
