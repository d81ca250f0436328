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
#include "common/base/unix_listener.h"
#include "weightd/daemon/weightd_options.h"
#include "weightd/engine/weight_store.h"

namespace sluice::weightd {

class WeightdServer {
 public:
  struct Extras {
    // Sockets of the options' paths in here are reused. Borrowed during Start; may be null.
    InheritedSockets* inherited = nullptr;
    // Fetches an extent of each pack, as a client would, before any client may connect.
    bool self_test = false;
    // Receives the name of each phase of the start. May be empty.
    std::function<void(const std::string&)> on_phase;
  };

  // Opens the sockets first, so that a second instance fails at once, then allocates the memory, then serves.
  // ALREADY_EXISTS: another process serves the socket.
  static absl::StatusOr<std::unique_ptr<WeightdServer>> Start(const WeightdOptions& options, LogFn log,
                                                              Extras extras);
  static absl::StatusOr<std::unique_ptr<WeightdServer>> Start(const WeightdOptions& options, LogFn log) {
    return Start(options, std::move(log), Extras());
  }
  // Ends every session and removes the sockets. Waits for reads that the disk does not answer.
  ~WeightdServer();

  // Applies the changes of WithReloaded(): the peers that may connect, scrub rate, read timeout, the quota of
  // sessions that open from then on, and the metrics' port. If a port cannot be opened, returns its error,
  // and the metrics stay at the old port; all else has changed.
  absl::Status Reload(const WeightdOptions& options);

  // Refuses new sessions; health turns NOT_SERVING.
  void Drain();
  size_t open_sessions() const;

  // One line: the served packs, the address, and the I/O engine.
  std::string Describe() const;

  WeightStore& store();

 private:
  struct Impl;
  explicit WeightdServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::weightd
