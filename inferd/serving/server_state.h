// ServerState: data of GetServerInfo: constants of this process, and its phase. gRPC-free.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "inferd/api/engine_api.h"

namespace sluice::inferd {

struct ReportedOption {
  std::string name;
  std::string value;
  bool is_set = false;
};

struct ServerInfo {
  std::string version;
  std::vector<std::string> libraries;
  uint32_t pid = 0;
  uint32_t uid = 0;
  absl::Time start_time;
  std::string model_id;
  std::string pack_path;
  std::string isa;
  std::string backend;
  std::string weight_transport;
  std::vector<ReportedOption> options;
};

class ServerState {
 public:
  enum class Phase : uint8_t { kStarting, kServing, kUnavailable, kDraining };
  struct View {
    Phase phase = Phase::kStarting;
    std::string detail;  // reason why no token can be made; empty in kServing
  };

  // `engine` is borrowed. `info` may lack the fields that are known only after the engine's creation.
  ServerState(EngineApi* engine, ServerInfo info) : engine_(engine), info_(std::move(info)) {}

  void SetBackend(const std::string& isa, const std::string& backend, const std::string& weight_transport)
      ABSL_LOCKS_EXCLUDED(mutex_);
  ServerInfo info() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Queries the engine.
  View Look() ABSL_LOCKS_EXCLUDED(mutex_);

  // Refuses new requests from now on.
  void StartDrain() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  EngineApi* const engine_;
  mutable Mutex mutex_;
  ServerInfo info_ ABSL_GUARDED_BY(mutex_);
  bool has_served_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::inferd
