#include "tests/simulation/sim_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/protocol/side_channel.h"

namespace sluice {

SimClient::SimClient(SimShared* shared, int number, uint32_t pack)
    : shared_(shared),
      name_(absl::StrCat("client", number)),
      pack_(pack),
      source_(shared->packs[pack]),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (uint32_t extent = 0; extent < source_.extent_count(); ++extent) {
    extent_bytes_.push_back(source_.extent(extent).length);
  }
  task_ = scheduler().Spawn(name_, [this] { Run(); });
}

SimClient::~SimClient() {
  scheduler().Kill(task_);
  held_.clear();
  session_.reset();  // notifies this observer, whose members still exist
}

void SimClient::Fail(const std::string& why) { scheduler().Fail(absl::StrCat(name_, ": ", why)); }

void SimClient::OnSegmentUnmapped(uint32_t segment) {
  mapped_.erase(segment);
  for (const Held& held : held_) {
    if (held.lease.segment == segment) {
      Fail(absl::StrCat("segment ", segment, " goes while extent ", held.extent, " in it is leased"));
    }
  }
}

void SimClient::Run() {
  while (true) {
    if (shared_->stopping) {
      Quiesce();
    } else if (session_ == nullptr) {
      if (!Connect()) {
        scheduler().Sleep(static_cast<int64_t>(1 + Below(20'000'000)));
      }
    } else if (Lost()) {
      DropSession(/*close=*/true);
    } else {
      Act();
    }
  }
}

// ---------------------------------------------------------------- sessions

bool SimClient::Control(std::function<void(weightd::StoreCore*)> run) {
  if (shared_->server == nullptr) {
    return false;
  }
  const uint64_t epoch = shared_->server->epoch();
  auto call = std::make_shared<SimServer::Call>();
  call->run = std::move(run);
  shared_->server->Post(call);
  scheduler().Block([this, call, epoch] {
    return call->done || shared_->server == nullptr || shared_->server->epoch() != epoch;
  });
  return call->done;
}

bool SimClient::Connect() {
  inferd::OpenedSession opened;
  // The call owns weightd's answer: this process may be gone when it arrives.
  auto answer = std::make_shared<absl::StatusOr<weightd::SessionHandle>>(absl::UnavailableError(""));
  const uint64_t quota = Chance(3) ? (20 + Below(30)) * 4096 : 0;
  if (!Control([answer, quota, pack = pack_](weightd::StoreCore* core) {
        weightd::SessionParams params;
        params.packs = {pack};
        params.quota_bytes = quota;
        params.layout = {.ring_entries = kMinRingEntries, .list_entries = 64, .progress_words = 16};
        *answer = core->OpenSession(params);
      }) ||
      !answer->ok()) {
    return false;
  }
  opened.session = (*answer)->session;
  opened.boot_epoch = (*answer)->boot_epoch;
  opened.extent_count = (*answer)->packs[0].extent_count;
  opened.control_bytes = (*answer)->control_bytes;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    Fail("socketpair");
    return false;
  }
  const int little = 1;  // the minimum: room for a few messages
  for (const int end : ends) {
    if (Chance(2)) {
      setsockopt(end, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
    }
  }
  UniqueFd mine(ends[0]);
  auto theirs = std::make_shared<UniqueFd>(ends[1]);
  SimServer* const server = shared_->server.get();
  if (server == nullptr || server->epoch() != opened.boot_epoch) {
    return false;
  }
  if (epoch_ != opened.boot_epoch) {
    joined_.clear();
  }
  epoch_ = opened.boot_epoch;
  joined_.push_back(opened.session);
  auto call = std::make_shared<SimServer::Call>();
  call->ready = [theirs] {
    pollfd polled{theirs->get(), POLLIN, 0};
    return poll(&polled, 1, 0) > 0;
  };
  call->run = [theirs, session = opened.session](weightd::StoreCore* core) {
    if (ReceiveSideMessage(theirs->get()).ok()) {
      core->AttachSideSocket(session, std::move(*theirs)).IgnoreError();
    }
    theirs->reset();
  };
  server->Post(std::move(call));
  theirs.reset();  // only the call owns it: it ends with weightd's life
  side_copy_.reset(fcntl(mine.get(), F_DUPFD_CLOEXEC, 0));
  auto session = inferd::WeightSession::JoinOver(std::move(mine), opened, extent_bytes_, wake_.get(),
                                                 absl::InfiniteFuture());
  if (!session.ok()) {
    if (!absl::IsUnavailable(session.status())) {
      Fail(session.status().ToString());
    }
    side_copy_.reset();
    return false;
  }
  session_ = *std::move(session);
  ++shared_->counters.sessions;
  if (!Chance(4)) {
    OfferSlabs();
  }
  stamp_ = 0;
  return session_->SetObserver(this).ok();
}

bool SimClient::Lost() {
  if (session_->lost().ok() && session_->PeerGone()) {
    session_->Lose(absl::UnavailableError("weightd has died"));
  }
  return !session_->lost().ok();
}

// Leases outlive the connection; the session ends after the last of them, and weightd is told if it lives.
void SimClient::DropSession(bool close) {
  ++shared_->counters.lost_sessions;
  pending_.clear();
  for (uint64_t rounds = Below(Chance(4) ? 2000 : 6); rounds > 0 && !held_.empty(); --rounds) {
    Verify(held_[Below(held_.size())]);
    scheduler().Yield();
  }
  ReleaseAll();
  slab_.reset();
  const uint64_t session = session_->opened().session;
  const uint64_t epoch = epoch_;
  session_.reset();
  side_copy_.reset();
  if (close && shared_->server != nullptr && shared_->server->epoch() == epoch) {
    Control([session](weightd::StoreCore* core) { core->CloseSession(session).IgnoreError(); });
    joined_.erase(std::remove(joined_.begin(), joined_.end(), session), joined_.end());
  }
}

void SimClient::Quiesce() {
  if (session_ != nullptr && !Lost()) {
    for (auto& [id, pending] : std::map<uint64_t, Pending>(pending_)) {
      if (Chance(2) && pending_.size() < kMinRingEntries) {
        SubmissionEntry entry = Entry(Opcode::kCancel, RequestClass::kDemand);
        entry.target = id;
        Submit(entry, {});
      }
    }
    ReleaseAll();
    AwaitAll();
  }
  if (session_ != nullptr) {
    DropSession(/*close=*/true);
  }
  paused_ = true;
  scheduler().Block([this] { return !shared_->stopping; });
  paused_ = false;
}

// ---------------------------------------------------------------- state that the world checks

std::string SimClient::LostWake() {
  if (session_ == nullptr || shared_->server->epoch() != epoch_ || !session_->lost().ok() ||
      session_->PeerGone()) {
    return "";
  }
  const auto local = shared_->server->core().Local(session_->opened().session);
  if (!local.ok()) {
    return "";
  }
  const ControlCursors& cursors = *local->control.cursors;
  const uint64_t submitted = cursors.submission_tail.value.load();
  if (!in_submit_ && submitted != cursors.submission_head.value.load()) {
    return absl::StrCat(name_, ": weightd sleeps, and submission ", submitted - 1, " lies in the ring");
  }
  if (in_sleep_ && !scheduler().IsReady(task_) &&
      cursors.completion_tail.value.load() != cursors.completion_head.value.load()) {
    return absl::StrCat(name_, " sleeps, and a completion lies in its ring");
  }
  return "";
}

int64_t SimClient::Overdue() const {
  int64_t first = INT64_MAX;
  if (!napping_ && session_ != nullptr && session_->lost().ok()) {
    for (const auto& [id, pending] : pending_) {
      first = std::min(first, pending.deadline);
    }
  }
  return first;
}

}  // namespace sluice
