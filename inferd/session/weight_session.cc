// Start of a WeightSession: HELLO and WELCOME on the side socket, the regions mapped and checked.

#include "inferd/session/weight_session.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unix_listener.h"
#include "common/protocol/lease.h"
#include "common/protocol/link_model.h"
#include "common/protocol/protocol_step.h"
#include "common/protocol/shared_memory.h"

namespace sluice::inferd {
namespace {

constexpr size_t kPackIndex = 0;  // one pack a session

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSession>> WeightSession::Join(const OpenedSession& opened,
                                                                   const std::vector<uint64_t>& extent_bytes,
                                                                   int wake_fd, absl::Time deadline) {
  auto side = ConnectUnix(opened.side_socket, UnixSocketType::kSeqPacket);
  if (!side.ok()) {
    return absl::UnavailableError(absl::StrCat("side channel: ", side.status().message()));
  }
  return JoinOver(*std::move(side), opened, extent_bytes, wake_fd, deadline);
}

absl::StatusOr<std::unique_ptr<WeightSession>> WeightSession::JoinOver(
    UniqueFd side, const OpenedSession& opened, const std::vector<uint64_t>& extent_bytes, int wake_fd,
    absl::Time deadline) {
  if (opened.extent_count != extent_bytes.size()) {
    return NoSense("the pack's extent count", opened.extent_count, extent_bytes.size());
  }
  std::unique_ptr<WeightSession> session(new WeightSession(opened, extent_bytes, wake_fd, std::move(side)));
  SideMessage hello;
  hello.type = SideType::kHello;
  hello.nonce = opened.nonce;
  RETURN_IF_ERROR(SendSideMessage(session->side_.get(), hello));
  RETURN_IF_ERROR(session->TakeWelcome(deadline));
  RETURN_IF_ERROR(session->WatchAll());
  RETURN_IF_ERROR(session->AwaitReady(deadline));
  // Initial segments get their pages populated at once, before the first step; later ones arrive while steps
  // run, which must not wait for that.
  session->populate_ = false;
  return session;
}

absl::Status WeightSession::TakeWelcome(absl::Time deadline) {
  absl::StatusOr<SidePacket> packet = absl::UnavailableError("");
  while (absl::IsUnavailable((packet = ReceiveSideMessage(side_.get())).status())) {
    pollfd polled{side_.get(), POLLIN, 0};
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError("weightd has not answered HELLO in time");
    }
    ProtocolPoll(&polled, 1, PollTimeoutMs(deadline));
  }
  if (absl::IsFailedPrecondition(packet.status())) {
    return absl::UnavailableError("weightd closed the side channel");
  }
  RETURN_IF_ERROR(packet.status());
  const SideMessage& message = packet->message;
  if (message.type == SideType::kReject) {
    return absl::Status(static_cast<absl::StatusCode>(message.code), "weightd rejected the side channel");
  }
  if (message.type != SideType::kWelcome) {
    return NoSense("the first message's type", static_cast<uint64_t>(message.type),
                   static_cast<uint64_t>(SideType::kWelcome));
  }
  if (message.session != opened_.session || message.boot_epoch != opened_.boot_epoch) {
    return NoSense("WELCOME's session", message.session, opened_.session);
  }
  if (packet->fds.size() != WelcomeFds::Count(1)) {
    return NoSense("the number of descriptors", packet->fds.size(), WelcomeFds::Count(1));
  }
  RETURN_IF_ERROR(MapRegions(packet->fds));
  server_bell_ = std::move(packet->fds[WelcomeFds::kServerBell]);
  client_bell_ = std::move(packet->fds[WelcomeFds::kClientBell]);
  peer_pidfd_ = std::move(packet->fds[WelcomeFds::kProcess]);
  peer_pid_ = ProcessOf(peer_pidfd_.get());
  return CheckTables();
}

// Waits until weightd has announced its segments. Only then can resident extents be leased from the first
// step on; an earlier session would request them again.
absl::Status WeightSession::AwaitReady(absl::Time deadline) {
  while (true) {
    DrainSide();
    RETURN_IF_ERROR(lost_);
    if (ready_) {
      return absl::OkStatus();
    }
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError("weightd has not announced its segments in time");
    }
    pollfd polled{side_.get(), POLLIN, 0};
    ProtocolPoll(&polled, 1, PollTimeoutMs(deadline));
  }
}

absl::Status WeightSession::MapRegions(const std::vector<UniqueFd>& fds) {
  ASSIGN_OR_RETURN(control_map_, MapSharedMemory(fds[WelcomeFds::kControl].get(), opened_.control_bytes,
                                                 /*writable=*/true, /*populate=*/true));
  ASSIGN_OR_RETURN(control_, OpenControl(control_map_.data(), control_map_.bytes()));
  ASSIGN_OR_RETURN(residency_map_, MapSharedMemory(fds[WelcomeFds::Residency(kPackIndex)].get(),
                                                   ResidencyBytes(opened_.extent_count), /*writable=*/false,
                                                   /*populate=*/true));
  ASSIGN_OR_RETURN(pins_map_,
                   MapSharedMemory(fds[WelcomeFds::Pins(kPackIndex)].get(), PinsBytes(opened_.extent_count),
                                   /*writable=*/true, /*populate=*/true));
  residency_ = reinterpret_cast<const ResidencyEntry*>(residency_map_.data() + sizeof(ResidencyHeader));
  pins_ = reinterpret_cast<PinEntry*>(pins_map_.data() + sizeof(PinsHeader));
  lists_.emplace(control_);
  submissions_.emplace(control_);
  completions_.emplace(control_);
  return absl::OkStatus();
}

// weightd made these tables for this session. A difference means another build or another life of weightd,
// and continuing would read other extents' bytes.
absl::Status WeightSession::CheckTables() const {
  ResidencyHeader residency;
  PinsHeader pins;
  std::memcpy(&residency, residency_map_.data(), sizeof(residency));
  std::memcpy(&pins, pins_map_.data(), sizeof(pins));
  const struct {
    const char* what;
    uint64_t got;
    uint64_t expected;
  } checks[] = {
      {"the residency table's magic", residency.magic, kResidencyMagic},
      {"the residency table's ABI", residency.abi_version, kAbiVersion},
      {"the residency table's entry size", residency.entry_bytes, sizeof(ResidencyEntry)},
      {"the residency table's boot epoch", residency.boot_epoch, opened_.boot_epoch},
      {"the residency table's extent count", residency.extent_count, opened_.extent_count},
      {"the pin array's magic", pins.magic, kPinsMagic},
      {"the pin array's ABI", pins.abi_version, kAbiVersion},
      {"the pin array's entry size", pins.entry_bytes, sizeof(PinEntry)},
      {"the pin array's session", pins.session, opened_.session},
      {"the pin array's extent count", pins.extent_count, opened_.extent_count},
  };
  for (const auto& check : checks) {
    if (check.got != check.expected) {
      return NoSense(check.what, check.got, check.expected);
    }
  }
  return absl::OkStatus();
}

// Side socket of a joined WeightSession: segments that come and go, offered slabs.

void WeightSession::DrainSide() {
  SendAcks();
  while (alive_) {
    auto packet = ReceiveSideMessage(side_.get());
    if (absl::IsUnavailable(packet.status())) {
      return;
    }
    if (absl::IsFailedPrecondition(packet.status())) {
      Lose(absl::UnavailableError("weightd has ended the session"));
      return;
    }
    const absl::Status status = packet.ok() ? OnSideMessage(*std::move(packet)) : packet.status();
    if (!status.ok()) {
      Lose(Annotate(status, "side channel"));
    }
  }
}

absl::Status WeightSession::OnSideMessage(SidePacket packet) {
  const SideMessage& message = packet.message;
  // A message of another session indicates a mix-up in weightd, and must be ignored.
  if (message.session != opened_.session || message.boot_epoch != opened_.boot_epoch) {
    return NoSense("a message's session", message.session, opened_.session);
  }
  switch (message.type) {
    case SideType::kSegmentAdded:
      if (packet.fds.size() != 1) {
        return NoSense("a segment's number of descriptors", packet.fds.size(), 1);
      }
      return AddSegment(message.segment, message.bytes, packet.fds[0]);
    case SideType::kSegmentRetired:
      return RetireSegment(message.segment);
    case SideType::kSlabMapped:
      slab_answer_ = message;
      return absl::OkStatus();
    case SideType::kReady:
      ready_ = true;
      return absl::OkStatus();
    default:
      return NoSense("a message's type", static_cast<uint64_t>(message.type), 0);
  }
}

absl::Status WeightSession::OfferSlab(uint32_t number, const SlabOffer& offer, absl::Time deadline) {
  RETURN_IF_ERROR(lost_);
  const LinkRate rate = MakeLinkRate(offer.link_gbps, offer.link_latency_us);
  SideMessage message;
  message.type = SideType::kSlabOffered;
  message.session = opened_.session;
  message.slab = number;
  message.bytes = offer.bytes;
  message.handle_kind = static_cast<uint8_t>(offer.kind);
  message.ipc = offer.ipc;
  message.device = offer.device;
  message.link_bytes_per_second = rate.bytes_per_second;
  message.link_latency_nanos = static_cast<uint64_t>(rate.latency_nanos);
  slab_answer_.reset();
  absl::Status sent;
  // The socket is non-blocking, and its buffer may be full of acknowledgements that weightd has not read yet.
  while (absl::IsUnavailable(
             sent = SendSideMessage(side_.get(), message, {&offer.fd, DescriptorsOf(offer.kind)})) &&
         SteadyNow() < deadline) {
    pollfd polled{side_.get(), POLLOUT, 0};
    ProtocolPoll(&polled, 1, PollTimeoutMs(deadline));
  }
  if (!sent.ok()) {
    return absl::IsFailedPrecondition(sent) ? absl::UnavailableError("weightd has ended the session") : sent;
  }
  while (true) {
    DrainSide();
    RETURN_IF_ERROR(lost_);
    if (slab_answer_.has_value() && slab_answer_->slab == number) {
      break;
    }
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError("weightd has not mapped the slab in time");
    }
    pollfd polled{side_.get(), POLLIN, 0};
    ProtocolPoll(&polled, 1, PollTimeoutMs(deadline));
  }
  return slab_answer_->code == 0 ? absl::OkStatus()
                                 : absl::Status(static_cast<absl::StatusCode>(slab_answer_->code),
                                                absl::StrCat("weightd refused a slab of ", offer.bytes,
                                                             " bytes; its log says why"));
}

absl::Status WeightSession::AddSegment(uint32_t id, uint64_t bytes, const UniqueFd& fd) {
  if (id > kMaxSegmentId || (id < segments_.size() && segments_[id].base != nullptr)) {
    return NoSense("a new segment's number", id, segments_.size());
  }
  ASSIGN_OR_RETURN(Mapping map, MapSharedMemory(fd.get(), bytes, /*writable=*/false, populate_));
  if (id >= segments_.size()) {
    segments_.resize(id + 1);
  }
  segments_[id] = {map.data(), bytes, std::move(map)};
  ++mapped_segments_;
  return observer_ == nullptr ? absl::OkStatus() : observer_->OnSegmentMapped(id, segments_[id].base, bytes);
}

absl::Status WeightSession::RetireSegment(uint32_t id) {
  if (id >= segments_.size() || segments_[id].base == nullptr) {
    return NoSense("a retired segment's number", id, 0);
  }
  if (observer_ != nullptr) {
    // The observer first: a device may have the memory registered, and must unregister it while it is mapped.
    observer_->OnSegmentUnmapped(id);
  }
  segments_[id] = {};
  --mapped_segments_;
  unsent_acks_.push_back(id);
  SendAcks();
  return absl::OkStatus();
}

void WeightSession::SendAcks() {
  while (!unsent_acks_.empty()) {
    SideMessage ack;
    ack.type = SideType::kSegmentUnmapped;
    ack.session = opened_.session;
    ack.segment = unsent_acks_.back();
    if (!SendSideMessage(side_.get(), ack).ok()) {
      return;  // its buffer is full, or weightd is gone, as the next receive reports
    }
    unsent_acks_.pop_back();
  }
}

absl::Status WeightSession::SetObserver(SegmentObserver* observer) {
  observer_ = observer;
  for (uint32_t id = 0; observer_ != nullptr && id < segments_.size(); ++id) {
    if (segments_[id].base != nullptr) {
      RETURN_IF_ERROR(observer_->OnSegmentMapped(id, segments_[id].base, segments_[id].bytes));
    }
  }
  return absl::OkStatus();
}

namespace {

// Sources that end a sleep, in the order of WatchAll().
enum SleepSource : uint32_t { kBell, kSide, kWake, kPeerExit, kSleepSources };

}  // namespace

int WeightSession::PollTimeoutMs(absl::Time deadline) {
  const absl::Duration left = deadline - SteadyNow();
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
