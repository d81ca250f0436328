#include "weightd/engine/side_listener.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"

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

absl::StatusOr<std::unique_ptr<SideListener>> SideListener::Start(int listener, SessionNonces* nonces,
                                                                  SideListenerOptions options) {
  UniqueFd stop_event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event.valid()) {
    return ErrnoToStatus(errno, "side channel");
  }
  if (!options.on_refused) {
    options.on_refused = [](const std::string&) {};
  }
  std::unique_ptr<SideListener> side(
      new SideListener(listener, nonces, std::move(options), std::move(stop_event)));
  side->thread_ = std::thread([raw = side.get()] { raw->Run(); });
  return side;
}

SideListener::SideListener(int listener, SessionNonces* nonces, SideListenerOptions options,
                           UniqueFd stop_event)
    : nonces_(nonces),
      options_(std::move(options)),
      stop_event_(std::move(stop_event)),
      accepter_(listener, options_.policy, options_.on_refused) {}

SideListener::~SideListener() { Stop(); }

void SideListener::Stop() {
  if (thread_.joinable()) {
    eventfd_write(stop_event_.get(), 1);
    thread_.join();
  }
}

void SideListener::Run() {
  std::vector<pollfd> polled;
  while (true) {
    polled = {{stop_event_.get(), POLLIN, 0}, {accepter_.listener(), POLLIN, 0}};
    for (const Pending& pending : pending_) {
      polled.push_back({pending.peer.socket.get(), POLLIN, 0});
    }
    if (poll(polled.data(), polled.size(), TimeoutMs()) < 0) {
      continue;  // EINTR
    }
    if (polled[0].revents != 0) {
      pending_.clear();
      return;
    }
    size_t next = 2;
    for (auto pending = pending_.begin(); pending != pending_.end();) {
      const bool readable = polled[next++].revents != 0;
      pending = readable && !OnReadable(&*pending) ? pending_.erase(pending) : std::next(pending);
    }
    DropLate();
    if (polled[1].revents != 0) {
      TakeNewcomer();
    }
  }
}

void SideListener::TakeNewcomer() {
  std::optional<AcceptedPeer> peer = accepter_.Accept();
  if (!peer.has_value()) {
    return;
  }
  if (pending_.size() >= options_.max_pending) {
    const AcceptedPeer& oldest = pending_.front().peer;
    Refuse(oldest, oldest.socket.get(), absl::ResourceExhaustedError("too many connections without HELLO"));
    pending_.pop_front();
  }
  pending_.push_back({*std::move(peer), SteadyNow() + options_.hello_timeout});
}

bool SideListener::OnReadable(Pending* pending) {
  const auto packet = ReceiveSideMessage(pending->peer.socket.get());
  if (absl::IsUnavailable(packet.status())) {
    return true;
  }
  if (absl::IsFailedPrecondition(packet.status())) {
    return false;  // closed without a message
  }
  if (!packet.ok()) {
    Refuse(pending->peer, pending->peer.socket.get(), packet.status());
    return false;
  }
  if (packet->message.type != SideType::kHello || !packet->fds.empty()) {
    Refuse(pending->peer, pending->peer.socket.get(), absl::InvalidArgumentError("no HELLO"));
    return false;
  }
  Join(pending, packet->message.nonce);
  return false;
}

void SideListener::Join(Pending* pending, const SessionNonce& nonce) {
  const auto session = nonces_->Redeem(nonce);
  if (!session.ok()) {
    Refuse(pending->peer, pending->peer.socket.get(), session.status());
    return;
  }
  // attach() owns the socket even when it fails; the reply is sent by this duplicate descriptor.
  const UniqueFd answer(fcntl(pending->peer.socket.get(), F_DUPFD_CLOEXEC, 0));
  const absl::Status attached = options_.attach(*session, std::move(pending->peer.socket));
  if (!attached.ok()) {
    Refuse(pending->peer, answer.get(), Annotate(attached, absl::StrCat("session ", *session)));
  }
}

void SideListener::DropLate() {
  const absl::Time now = SteadyNow();
  while (!pending_.empty() && pending_.front().deadline <= now) {
    const AcceptedPeer& late = pending_.front().peer;
    Refuse(late, late.socket.get(), absl::DeadlineExceededError("no HELLO in time"));
    pending_.pop_front();
  }
}

int SideListener::TimeoutMs() const {
  if (pending_.empty()) {
    return -1;
  }
  const int64_t left = absl::ToInt64Milliseconds(pending_.front().deadline - SteadyNow());
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 60'000));
}

void SideListener::Refuse(const AcceptedPeer& peer, int socket, const absl::Status& why) const {
  SideMessage reject;
  reject.type = SideType::kReject;
  reject.code = static_cast<uint16_t>(why.code());
  // Delivery does not matter: the connection ends either way.
  const absl::Status sent = SendSideMessage(socket, reject);
  options_.on_refused(absl::StrCat("side connection of process ", peer.credentials.pid, " refused: ",
                                   why.message(), sent.ok() ? "" : " (and it does not listen)"));
}

}  // namespace sluice::weightd
