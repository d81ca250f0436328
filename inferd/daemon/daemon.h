// InferdDaemon: the components of one inferd process in the order of their lifetimes.
//
// Prepare() does the quick part and opens the sockets; Begin() does the long part (weightd's session, dense
// weights, a first token) on its own thread, while clients can already query its progress.
//
// An unusable prefix file costs time, not answers: its prefixes are computed again. So nothing about it is an
// error of the start; the log says what happened.
//
// Thread safety: thread-compatible; main's thread owns it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/unique_fd.h"
#include "common/base/unix_listener.h"
#include "common/protocol/cuda_module.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "daemon/http/http_server.h"
#include "daemon/http/metrics_server.h"
#include "inferd/daemon/inferd_options.h"
#include "inferd/daemon/memory_tuner.h"
#include "inferd/engine/engine.h"
#include "inferd/grpc/inferd_server.h"
#include "inferd/http/openai_endpoint.h"
#include "inferd/serving/server_state.h"
#include "inferd/serving/serving_metrics.h"
#include "pack/pack.h"
#include "spdlog/logger.h"

namespace sluice::inferd {

class InferdDaemon {
 public:
  // Errors: those of the pack, of options against the model, of the sockets. `log` is borrowed; `on_phase` is
  // called as InferdServerOptions::on_phase; sockets in `inherited` whose path an option names are adopted
  // (`inherited` is borrowed during the call and may be null).
  static absl::StatusOr<std::unique_ptr<InferdDaemon>> Prepare(
      const InferdOptions& options, const SetOptions& set, spdlog::logger* log,
      std::function<void(const ServerState::View&)> on_phase, InheritedSockets* inherited = nullptr);

  // Ends the server and then the engine. REQUIRES: the start has ended (start_event() became readable).
  ~InferdDaemon();

  // Starts the engine in the background.
  void Begin();
  // Readable once the start has ended.
  int start_event() const { return start_event_.get(); }
  // Result of the start. REQUIRES: the start has ended.
  absl::Status StartStatus() ABSL_LOCKS_EXCLUDED(mutex_);

  // Refuses new requests from now on, and waits up to `timeout` for the running ones; true if they have
  // ended. May be called again.
  bool Drain(absl::Duration timeout);
  // Lets answers finish for up to `timeout`, cancels the rest, closes the sockets. Idempotent.
  void Shutdown(absl::Duration timeout);

  // Applies the changes of WithReloaded(): allowed peers, limits of calls and of the queue, the metrics port.
  // If the port cannot be opened, returns that error and keeps the old metrics endpoint; all other changes
  // apply.
  absl::Status Reload(const InferdOptions& options);

  // One line with every option and the addresses. REQUIRES: not shut down.
  std::string DescribeStart() const;
  // True if a step is stuck; for the watchdog.
  bool IsStuck() const;

 private:
  InferdDaemon(const InferdOptions& options, spdlog::logger* log);
  absl::Status Open(const SetOptions& set);
  absl::Status OpenTokenizer();
  void OpenChat();
  absl::Status Serve(std::function<void(const ServerState::View&)> on_phase, InheritedSockets* inherited);
  absl::Status OpenMetrics(const std::string& address);
  absl::Status OpenHttp(InheritedSockets* inherited);
  void WriteMemory(MetricText* text) const;
  std::string MetricsText();
  // One attempt; UNAVAILABLE, without an engine, if weightd is absent until `until` or was lost.
  absl::Status StartEngine(absl::Time until);
  absl::StatusOr<std::unique_ptr<Backend>> StartDevice(WeightClient* client, EngineOptions* options);
  absl::StatusOr<std::vector<std::shared_ptr<Copier>>> MakeCopiers() const;
  absl::Status SetUpSparsity(const BackendLimits& limits, Backend& backend);
  void OpenPrefixes();
  void ClosePrefixes();

  const InferdOptions options_;  // as given at the start
  spdlog::logger* const log_;
  // Constant after Prepare.
  std::unique_ptr<Pack> pack_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatFormatter> chat_;  // null without a chat template that can be run
  absl::Status chat_error_;              // reason for chat_ == nullptr
  const CudaModuleApi* cuda_ = nullptr;  // null except for device cuda
  bool transport_set_ = false;
  EnginePlan plan_;
  uint32_t threads_ = 0;
  std::vector<ReportedOption> reported_;
  std::unique_ptr<ServerState> state_;
  UniqueFd start_event_;

  std::atomic<uint64_t> slot_budget_{0};    // bytes of experts on the device; 0: all experts
  ServingMetrics metrics_;                  // self-synchronised
  std::unique_ptr<MemoryTuner> tuner_;      // self-synchronised; closed before the engine
  std::unique_ptr<Engine> engine_;          // owned by the starter thread, by main once the start has ended
  std::unique_ptr<OpenAiEndpoint> openai_;  // null: no HTTP
  std::unique_ptr<InferdServer> server_;
  std::unique_ptr<HttpServer> http_;                   // null: no HTTP; destroyed before the server
  std::atomic<const HttpServer*> http_view_{nullptr};  // for metrics readers, also during the start
  std::atomic<const Engine*> engine_view_{nullptr};    // likewise
  std::string metrics_address_;                        // as in the options; empty: off
  std::unique_ptr<MetricsServer> metrics_endpoint_;    // null: off; destroyed before the server
  std::thread starter_;
  absl::Mutex mutex_;
  absl::Status start_status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::inferd
