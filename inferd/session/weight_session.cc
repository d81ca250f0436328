#include "inferd/session/weight_session.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/ring/lease.h"
#include "common/ring/protocol_step.h"
#include "common/status.h"

namespace sluice::inferd {
namespace {

// Sources that end a sleep, in the order of WatchAll().
enum SleepSource : uint32_t { kBell, kSide, kWake, kPeerExit, kSleepSources };

}  // namespace

int WeightSession::PollTimeoutMs(absl::Time deadline) {
  const absl::Duration left = deadline - absl::Now();
  if (left >= absl::Hours(1)) {
    return 3'600'000;
  }
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left + absl::Milliseconds(1))));
}

absl::Status WeightSession::NoSense(const std::string& what, uint64_t got, uint64_t expected) {
  return absl::InternalError(
      absl::StrCat("weightd's session makes no sense: ", what, " is ", got, ", expected ", expected));
}

WeightSession::WeightSession(const OpenedSession& opened, const std::vector<uint64_t>& extent_bytes,
                             int wake_fd, UniqueFd side)
    : opened_(opened), extent_bytes_(extent_bytes), wake_fd_(wake_fd), side_(std::move(side)) {}

WeightSession::~WeightSession() {
  for (uint32_t id = 0; observer_ != nullptr && id < segments_.size(); ++id) {
    if (segments_[id].base != nullptr) {
      observer_->OnSegmentUnmapped(id);
    }
  }
}

// ---------------------------------------------------------------- leases

bool WeightSession::TryLease(uint32_t extent, ExtentLease* lease) {
  if (extent >= opened_.extent_count) {
    return false;
  }
  const ResidencyEntry& entry = residency_[extent];
  PinEntry& pin = pins_[extent];
  uint64_t place = 0;
  uint64_t generation = 0;
  if (pin.pins.load(std::memory_order_relaxed) != 0) {
    // An extent that this session holds already stays in place, even if weightd has just marked it EVICTING
    // (it will see the pin and revert) or has died doing so. So no handshake is needed.
    pin.pins.fetch_add(1, std::memory_order_seq_cst);
    place = entry.place.load(std::memory_order_relaxed);
  } else if (!alive_ || !sluice::TryLease(entry, pin, &place, &generation)) {
    return false;
  }
  const uint64_t bytes = extent_bytes_[extent];
  if (Locate(place, bytes, lease)) [[likely]] {
    return true;
  }
  // Resident in a segment that was announced but not mapped yet: the message waits on the side socket.
  DrainSide();
  if (Locate(place, bytes, lease)) {
    return true;
  }
  UndoLease(pin);
  return false;
}

bool WeightSession::Locate(uint64_t place, uint64_t bytes, ExtentLease* lease) const {
  const uint32_t id = PlaceSegment(place);
  const uint64_t offset = PlaceOffset(place);
  if (id >= segments_.size() || segments_[id].bytes < bytes || offset > segments_[id].bytes - bytes) {
    return false;
  }
  *lease = {segments_[id].base + offset, bytes, id, offset};
  return true;
}

void WeightSession::Release(uint32_t extent, uint64_t stamp, bool counts) {
  ReleaseLease(pins_[extent], control_.cursors->last_stamp.value, stamp, counts);
}

bool WeightSession::IsResident(uint32_t extent) const {
  return extent < opened_.extent_count && sluice::IsResident(residency_[extent]);
}

// ---------------------------------------------------------------- rings

absl::Status WeightSession::Submit(SubmissionEntry entry, absl::Span<const uint32_t> neurons) {
  RETURN_IF_ERROR(lost_);
  if (!neurons.empty()) {
    ASSIGN_OR_RETURN(entry.list_offset,
                     // List memory is free again once weightd has consumed the entries that pointed to it,
                     // because weightd copies a list as it takes the entry.
                     lists_->Lend(neurons, submissions_->tail(), submissions_->Consumed()));
    entry.list_count = static_cast<uint32_t>(neurons.size());
  }
  switch (submissions_->Push(entry)) {
    case RingResult::kOk:
      break;
    case RingResult::kNone:
      return absl::ResourceExhaustedError("submission ring is full");
    case RingResult::kCorrupt:
      Lose(absl::InternalError("weightd's submission cursor is impossible"));
      return lost_;
  }
  return absl::OkStatus();
}

bool WeightSession::WakeWeightd() {
  if (!submissions_->ClaimServerWake()) {
    return false;
  }
  ProtocolStep(ProtocolPoint::kWake, &control_.cursors->server_sleeping);
  eventfd_write(server_bell_.get(), 1);  // EAGAIN: already signalled
  return true;
}

bool WeightSession::Peek(CompletionEntry* entry) {
  if (!alive_) {
    return false;
  }
  const RingResult result = completions_->Peek(entry);
  if (result == RingResult::kCorrupt) {
    Lose(absl::InternalError("weightd's completion ring is corrupt"));
  }
  return result == RingResult::kOk;
}

absl::Status WeightSession::WatchAll() {
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  const int sources[kSleepSources] = {client_bell_.get(), side_.get(), wake_fd_, peer_pidfd_.get()};
  for (uint32_t i = 0; i < kSleepSources; ++i) {
    epoll_event event{EPOLLIN | EPOLLRDHUP, {}};
    event.data.u32 = i;
    if (sources[i] >= 0 && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, sources[i], &event) != 0) {
      return ErrnoToStatus(errno, "watching a session with weightd");
    }
  }
  return absl::OkStatus();
}

bool WeightSession::Sleep(absl::Time deadline) {
  // BeginWait() announces the sleep and checks once more, so that a completion pushed in between is not
  // missed.
  if (!alive_ || !completions_->BeginWait()) {
    return false;
  }
  epoll_event events[kSleepSources];
  const int ready = ProtocolEpollWait(epoll_.get(), events, kSleepSources, PollTimeoutMs(deadline));
  completions_->EndWait();
  bool woken = false;
  for (int i = 0; i < ready; ++i) {
    switch (events[i].data.u32) {
      case kBell: {
        char bytes[64];
        while (read(client_bell_.get(), bytes, sizeof(bytes)) == sizeof(bytes)) {
        }
        break;
      }
      case kSide:
        DrainSide();
        break;
      case kWake: {
        eventfd_t count;
        woken = eventfd_read(wake_fd_, &count) == 0;
        break;
      }
      default:
        Lose(absl::UnavailableError("weightd has died"));
    }
  }
  return woken;
}

// ---------------------------------------------------------------- ends

void WeightSession::Lose(const absl::Status& why) {
  if (alive_) {
    lost_ = why;
    alive_ = false;
  }
}

bool WeightSession::PeerGone() const {
  // Either end is enough: the socket detects a closed session, the pidfd a dead process.
  pollfd polled[2] = {{side_.get(), POLLRDHUP, 0}, {peer_pidfd_.get(), POLLIN, 0}};
  return poll(polled, 2, 0) > 0;
}

}  // namespace sluice::inferd
