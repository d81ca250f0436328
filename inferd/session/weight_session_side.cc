// Side socket of a joined WeightSession: segments that come and go, offered slabs.
#include <poll.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/link/link_model.h"
#include "common/ring/protocol_step.h"
#include "common/status.h"
#include "inferd/session/weight_session.h"

namespace sluice::inferd {

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

}  // namespace sluice::inferd
