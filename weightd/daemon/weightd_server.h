// WeightdServer: the parts of a weightd process put together: sockets, store, side channel, gRPC.
//
// Several may live in one process, as tests do; each has its own sockets.
//
// Thread safety: thread-compatible; Drain() may also come over gRPC.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/net/inherited_sockets.h"
#include "weightd/core/weight_store.h"
#include "weightd/daemon/weightd_options.h"

namespace sluice {

class WeightdServer {
 public:
  struct Extras {
    // Sockets of the options' paths in here are taken over. Borrowed during Start; may be null.
    InheritedSockets* inherited = nullptr;
    // Fetches an extent of each pack, as a client would, before any client is let in.
    bool self_test = false;
    // Hears what the start is doing. May be empty.
    std::function<void(const std::string&)> on_phase;
  };

  // Takes the sockets first, so that a second instance fails at once, then the memory, then serves.
  // ALREADY_EXISTS: another process serves the socket.
  static absl::StatusOr<std::unique_ptr<WeightdServer>> Start(const WeightdOptions& options, LogFn log,
                                                              Extras extras);
  static absl::StatusOr<std::unique_ptr<WeightdServer>> Start(const WeightdOptions& options, LogFn log) {
    return Start(options, std::move(log), Extras());
  }
  // Ends every session and removes the sockets. Reads that the disk does not answer are waited for.
  ~WeightdServer();

  // Takes over what WithReloaded() changed: who may connect, scrub rate, read deadline, the quota of sessions
  // that open from then on, and the metrics' port. A port that cannot be opened: its error, and the metrics
  // stay where they were; all else has changed.
  absl::Status Reload(const WeightdOptions& options);

  // Refuses new sessions; health turns NOT_SERVING.
  void Drain();
  size_t open_sessions() const;

  // One line: what is served, where, and how.
  std::string Describe() const;

  WeightStore& store();

 private:
  struct Impl;
  explicit WeightdServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
