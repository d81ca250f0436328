// SessionNonces: one-time secrets that attach a side socket to the session that its client has just opened
// over gRPC, which cannot carry file descriptors.
//
// Thread safety: thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/ring/side_channel.h"

namespace sluice::weightd {

using SessionNonce = std::array<uint8_t, kNonceBytes>;

struct SessionNoncesOptions {
  // Lifetime of a nonce.
  absl::Duration lifetime = absl::Seconds(10);
  // Maximum number of waiting nonces; each costs 60 bytes, and its session a pin array.
  size_t limit = 256;
  std::function<absl::Time()> now = absl::Now;
};

class SessionNonces {
 public:
  explicit SessionNonces(SessionNoncesOptions options = {}) : options_(std::move(options)) {}

  // A new random nonce for `session`. RESOURCE_EXHAUSTED (reason TOO_MANY_SESSIONS): `limit` of them wait.
  absl::StatusOr<SessionNonce> Issue(uint64_t session);

  // Returns the nonce's session and consumes the nonce. NOT_FOUND: never issued, used before, or too old.
  absl::StatusOr<uint64_t> Redeem(const SessionNonce& nonce);

  // Removes the nonce of a session that was closed before it was attached.
  void Revoke(uint64_t session);

  size_t waiting() const;
  absl::Duration lifetime() const { return options_.lifetime; }

 private:
  struct Waiting {
    uint64_t session = 0;
    absl::Time expires;
  };
  void DropExpired(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionNoncesOptions options_;
  mutable Mutex mutex_;
  absl::flat_hash_map<SessionNonce, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::weightd
