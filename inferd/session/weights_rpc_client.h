// The gRPC half of a session with weightd: opening and closing it. Everything else uses shared memory
// (inferd/session/weight_session.h).
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/session_abi.h"
#include "common/protocol/side_channel.h"

namespace sluice::inferd {

// Parameters of OpenSession. One pack a session: inferd serves one model.
struct OpenSessionParams {
  AbiSignature abi;
  uint64_t expected_boot_epoch = 0;  // 0: any life of weightd
  std::string model_id;
  uint32_t compute_threads = 1;
  std::string client_name;
  ControlLayout layout;
};

// OpenSession's answer: a session that waits to be joined on the side socket.
struct OpenedSession {
  uint64_t session = 0;
  uint64_t boot_epoch = 0;
  std::array<uint8_t, kNonceBytes> nonce{};
  std::string side_socket;
  uint32_t extent_count = 0;
  uint64_t control_bytes = 0;
  uint64_t reserved_bytes = 0;
  uint64_t dram_budget_bytes = 0;
  std::string io_engine;
};

class WeightsRpcClient {
 public:
  // Client for weightd's unix socket at `socket_path`. Sends nothing yet.
  explicit WeightsRpcClient(const std::string& socket_path);
  ~WeightsRpcClient();
  WeightsRpcClient(WeightsRpcClient&&) noexcept;
  WeightsRpcClient& operator=(WeightsRpcClient&&) noexcept;

  // UNAVAILABLE at once if the socket has no listener, DEADLINE_EXCEEDED at `deadline`; weightd's own errors
  // otherwise; INTERNAL for an invalid answer.
  absl::StatusOr<OpenedSession> OpenSession(const OpenSessionParams& params, absl::Time deadline);
  // NOT_FOUND: that life of weightd is over, or the session.
  absl::Status CloseSession(uint64_t session, uint64_t boot_epoch, absl::Time deadline);
  // A new bound on weightd's memory for weights, in bytes. weightd's errors with the numbers.
  struct DramBudget {
    uint64_t previous = 0;
    uint64_t segment_bytes = 0;  // segment memory in use now
  };
  absl::StatusOr<DramBudget> SetDramBudget(uint64_t bytes, absl::Time deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::inferd
