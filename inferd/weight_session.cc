#include "inferd/weight_session.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/link/link_model.h"
#include "common/net/unix_listener.h"
#include "common/ring/lease.h"
#include "common/ring/process_fd.h"
#include "common/ring/protocol_step.h"
#include "common/status.h"

namespace sluice {
namespace {

constexpr size_t kPackIndex = 0;  // one pack a session

// What ends a sleep; numbers are the order in WatchAll().
enum SleepSource : uint32_t { kBell, kSide, kWake, kPeerExit, kSleepSources };

int PollTimeoutMs(absl::Time deadline) {
  const absl::Duration left = deadline - absl::Now();
  if (left >= absl::Hours(1)) {
    return 3'600'000;
  }
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left + absl::Milliseconds(1))));
}

absl::Status NoSense(const std::string& what, uint64_t got, uint64_t expected) {
  return absl::InternalError(
      absl::StrCat("weightd's session makes no sense: ", what, " is ", got, ", expected ", expected));
}

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
  session->populate_ = false;
  return session;
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

// ---------------------------------------------------------------- joining

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

absl::Status WeightSession::TakeWelcome(absl::Time deadline) {
  absl::StatusOr<SidePacket> packet = absl::UnavailableError("");
  while (absl::IsUnavailable((packet = ReceiveSideMessage(side_.get())).status())) {
    pollfd polled{side_.get(), POLLIN, 0};
    if (absl::Now() >= deadline) {
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

// What is resident can be leased from the first step on only once its segments are mapped.
absl::Status WeightSession::AwaitReady(absl::Time deadline) {
  while (true) {
    DrainSide();
    RETURN_IF_ERROR(lost_);
    if (ready_) {
      return absl::OkStatus();
    }
    if (absl::Now() >= deadline) {
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
  lists_.resize(control_.layout.ring_entries);
  submissions_.emplace(control_);
  completions_.emplace(control_);
  return absl::OkStatus();
}

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
    // Held already, so it stays, also when weightd has just marked it EVICTING or has died doing so.
    pin.pins.fetch_add(1, std::memory_order_seq_cst);
    place = entry.place.load(std::memory_order_relaxed);
  } else if (!alive_ || !sluice::TryLease(entry, pin, &place, &generation)) {
    return false;
  }
  const uint64_t bytes = extent_bytes_[extent];
  if (Locate(place, bytes, lease)) [[likely]] {
    return true;
  }
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

void WeightSession::Release(uint32_t extent, uint64_t stamp) {
  ReleaseLease(pins_[extent], control_.cursors->last_stamp.value, stamp);
}

bool WeightSession::IsResident(uint32_t extent) const {
  return extent < opened_.extent_count && sluice::IsResident(residency_[extent]);
}

// ---------------------------------------------------------------- rings

// Lists lie one behind another around the arena; weightd gives them back in the order of their entries.
absl::Status WeightSession::PutList(absl::Span<const uint32_t> neurons, uint32_t* offset) {
  const uint32_t capacity = control_.layout.list_entries;
  const auto count = static_cast<uint32_t>(neurons.size());
  if (neurons.size() >= capacity) {
    return absl::InvalidArgumentError(
        absl::StrCat("a list of ", neurons.size(), " neurons, the arena has room for ", capacity - 1));
  }
  const uint64_t consumed = submissions_->Consumed();
  while (lists_lent_ != 0 && OldestList().sequence < consumed) {
    ++lists_first_;
    --lists_lent_;
  }
  if (lists_lent_ == 0) {
    list_end_ = 0;
  } else if (lists_lent_ == lists_.size()) {
    return absl::ResourceExhaustedError("submission ring is full");
  }
  const uint32_t begin = lists_lent_ == 0 ? 0 : OldestList().offset;  // of what is lent
  bool ahead = lists_lent_ == 0 || list_end_ > begin;                 // else it has gone around
  if (ahead && begin > 0 && capacity - list_end_ <= count) {
    list_end_ = 0;
    ahead = false;
  }
  if ((ahead ? capacity : begin) - list_end_ <= count) {
    return absl::ResourceExhaustedError(absl::StrCat("the arena has no room for ", count, " neurons"));
  }
  for (uint32_t i = 0; i < count; ++i) {
    control_.list[list_end_ + i].store(neurons[i], std::memory_order_relaxed);
  }
  *offset = list_end_;
  list_end_ += count;
  return absl::OkStatus();
}

absl::Status WeightSession::Submit(SubmissionEntry entry, absl::Span<const uint32_t> neurons) {
  RETURN_IF_ERROR(lost_);
  if (!neurons.empty()) {
    RETURN_IF_ERROR(PutList(neurons, &entry.list_offset));
    entry.list_count = static_cast<uint32_t>(neurons.size());
    lists_[(lists_first_ + lists_lent_++) % lists_.size()] = {submissions_->tail(), entry.list_offset};
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
  if (submissions_->TakeServerSleep()) {
    ProtocolStep(ProtocolPoint::kWake, &control_.cursors->server_sleeping);
    eventfd_write(server_bell_.get(), 1);  // EAGAIN: the bell rings already
  }
  return absl::OkStatus();
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

bool WeightSession::Sleep(absl::Time deadline) {
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

// ---------------------------------------------------------------- side channel

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
  message.link_bytes_per_second = rate.bytes_per_second;
  message.link_latency_nanos = static_cast<uint64_t>(rate.latency_nanos);
  slab_answer_.reset();
  absl::Status sent;
  while (absl::IsUnavailable(sent = SendSideMessage(side_.get(), message, {&offer.fd, 1})) &&
         absl::Now() < deadline) {
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
    if (absl::Now() >= deadline) {
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
      return;  // its buffer is full, or weightd is gone, which the next receive reports
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

// ---------------------------------------------------------------- ends

void WeightSession::Lose(const absl::Status& why) {
  if (alive_) {
    lost_ = why;
    alive_ = false;
  }
}

bool WeightSession::PeerGone() const {
  pollfd polled[2] = {{side_.get(), POLLRDHUP, 0}, {peer_pidfd_.get(), POLLIN, 0}};
  return poll(polled, 2, 0) > 0;
}

}  // namespace sluice
