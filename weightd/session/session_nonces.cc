#include "weightd/session/session_nonces.h"

#include <sys/random.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/error_detail.h"
#include "common/status.h"

namespace sluice::weightd {
namespace {

absl::StatusOr<SessionNonce> RandomNonce() {
  SessionNonce nonce;
  // Requests of up to 256 bytes are complete once the kernel's generator is ready, which it is when daemons
  // start.
  const ssize_t got = getrandom(nonce.data(), nonce.size(), 0);
  if (got != static_cast<ssize_t>(nonce.size())) {
    return ErrnoToStatus(got < 0 ? errno : EIO, "random bytes of a nonce");
  }
  return nonce;
}

}  // namespace

absl::StatusOr<SessionNonce> SessionNonces::Issue(uint64_t session) {
  ASSIGN_OR_RETURN(const SessionNonce nonce, RandomNonce());
  const absl::Time now = options_.now();
  const MutexLock lock(&mutex_);
  DropExpired(now);
  if (waiting_.size() >= options_.limit) {
    return ReasonError(absl::StatusCode::kResourceExhausted, "TOO_MANY_SESSIONS",
                       absl::StrCat(waiting_.size(), " sessions wait for their side socket"));
  }
  waiting_[nonce] = Waiting{session, now + options_.lifetime};
  return nonce;
}

absl::StatusOr<uint64_t> SessionNonces::Redeem(const SessionNonce& nonce) {
  const absl::Time now = options_.now();
  const MutexLock lock(&mutex_);
  DropExpired(now);
  const auto found = waiting_.find(nonce);
  if (found == waiting_.end()) {
    return absl::NotFoundError("nonce is unknown, used or too old");
  }
  const uint64_t session = found->second.session;
  waiting_.erase(found);
  return session;
}

void SessionNonces::Revoke(uint64_t session) {
  const MutexLock lock(&mutex_);
  absl::erase_if(waiting_, [session](const auto& entry) { return entry.second.session == session; });
}

size_t SessionNonces::waiting() const {
  const absl::Time now = options_.now();
  const MutexLock lock(&mutex_);
  size_t count = 0;
  for (const auto& entry : waiting_) {
    count += entry.second.expires > now ? 1 : 0;
  }
  return count;
}

void SessionNonces::DropExpired(absl::Time now) {
  absl::erase_if(waiting_, [now](const auto& entry) { return entry.second.expires <= now; });
}

}  // namespace sluice::weightd
