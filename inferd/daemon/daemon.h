// InferdDaemon: the parts of one inferd process in the order of their lives.
//
// Prepare() opens what is quick and the sockets; Begin() does the long part (weightd's session, dense
// weights, a first token) on a thread of its own, while clients can already ask how the start goes.
//
// Thread safety: thread-compatible; main's thread owns it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/cuda/cuda_module.h"
#include "common/net/inherited_sockets.h"
#include "common/ring/unique_fd.h"
#include "common/text/chat/chat_formatter.h"
#include "common/text/tokenizer.h"
#include "daemon/metrics_door.h"
#include "inferd/daemon/inferd_options.h"
#include "inferd/daemon/memory_tuner.h"
#include "inferd/daemon/prefix_file.h"
#include "inferd/engine/engine.h"
#include "inferd/http/http_server.h"
#include "inferd/openai/openai_door.h"
#include "inferd/service/server.h"
#include "inferd/serving/engine_gate.h"
#include "inferd/serving/server_state.h"
#include "inferd/serving/serving_metrics.h"
#include "pack/pack.h"
#include "spdlog/logger.h"

namespace sluice {

class InferdDaemon {
 public:
  // Errors: of the pack, of options against the model, of the sockets. `log` is borrowed; `on_phase` is
  // called as InferdServerOptions::on_phase; sockets of the options' paths in `inherited` (borrowed during
  // the call; may be null) are taken over.
  static absl::StatusOr<std::unique_ptr<InferdDaemon>> Prepare(
      const InferdOptions& options, const SetOptions& set, spdlog::logger* log,
      std::function<void(const ServerState::View&)> on_phase, InheritedSockets* inherited = nullptr);

  // Ends the server and then the engine. REQUIRES: the start has ended (start_event() became readable).
  ~InferdDaemon();

  // Starts the engine in the background.
  void Begin();
  // Readable once the start has ended.
  int start_event() const { return start_event_.get(); }
  // How it ended. REQUIRES: it has.
  absl::Status StartStatus() ABSL_LOCKS_EXCLUDED(mutex_);

  // Refuses new requests from now on, and waits until the running ones have ended, up to `patience`; whether
  // they have. May be called again.
  bool Drain(absl::Duration patience);
  // Lets answers end for up to `patience`, cuts the rest, closes the sockets. Idempotent.
  void Shutdown(absl::Duration patience);

  // Takes over what WithReloaded() changed: who may connect, limits of calls and of the queue, the metrics'
  // port. A port that cannot be opened: its error, and the metrics stay where they were; all else has
  // changed.
  absl::Status Reload(const InferdOptions& options);

  // One line with every option and the addresses. REQUIRES: not shut down.
  std::string DescribeStart() const;
  // Whether a step is stuck, for the watchdog.
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
  // One attempt; UNAVAILABLE, without an engine: weightd is not there by `until`, or was lost.
  absl::Status StartEngine(absl::Time until);
  absl::StatusOr<std::unique_ptr<Backend>> StartDevice(WeightClient* client, EngineOptions* options);
  absl::StatusOr<std::vector<std::shared_ptr<Copier>>> MakeCopiers() const;
  absl::Status SetUpSparsity(const BackendLimits& limits, Backend& backend);

  const InferdOptions options_;  // of the start
  spdlog::logger* const log_;
  // Constant after Prepare.
  std::unique_ptr<Pack> pack_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatFormatter> chat_;  // null without a chat template that can be run
  absl::Status chat_error_;              // why it cannot
  const CudaModuleApi* cuda_ = nullptr;  // null but for device cuda
  bool transport_set_ = false;
  EnginePlan plan_;
  uint32_t threads_ = 0;
  std::vector<ReportedOption> reported_;
  std::unique_ptr<ServerState> state_;
  UniqueFd start_event_;

  std::atomic<uint64_t> slot_budget_{0};  // bytes of experts on the device; 0: all of them
  EngineGate gate_;                       // self-synchronised
  ServingMetrics metrics_;                // self-synchronised
  std::unique_ptr<MemoryTuner> tuner_;    // self-synchronised; before the engine it is closed
  std::optional<PrefixFile> prefixes_;    // none: past texts are not kept over restarts
  std::unique_ptr<Engine> engine_;        // the starter's, main's once the start has ended
  std::unique_ptr<OpenAiDoor> openai_;    // null: no HTTP; the server's pump may be in it until that has gone
  std::unique_ptr<InferdServer> server_;
  std::unique_ptr<HttpServer> http_;                   // null: no HTTP; before the server it goes
  std::atomic<const HttpServer*> http_view_{nullptr};  // of whoever asks for metrics, also while it starts
  std::atomic<const Engine*> engine_view_{nullptr};    // likewise
  std::string metrics_address_;                        // as the options have it; empty: off
  std::unique_ptr<MetricsDoor> door_;                  // null: off; before the server it goes
  std::thread starter_;
  absl::Mutex mutex_;
  absl::Status start_status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice
