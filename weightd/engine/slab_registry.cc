#include "weightd/engine/slab_registry.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::weightd {
namespace {

// Rates beyond these belong to no real link; capped, so that times stay far from overflow.
constexpr uint64_t kMaxBytesPerSecond = 1'000'000'000'000'000;
constexpr uint64_t kMaxLatencyNanos = 10'000'000'000;

absl::Status CheckKind(uint8_t kind) {
  switch (static_cast<HandleKind>(kind)) {
    case HandleKind::kMemoryFile:
    case HandleKind::kCudaFd:
    case HandleKind::kCudaIpc:
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("slab: there is no handle kind ", kind));
}

}  // namespace

absl::Status SlabRegistry::Reserve(Session* session, uint32_t number) const {
  if (engine_ == nullptr) {
    return absl::UnimplementedError("this weightd copies into no slabs");
  }
  if (number == kNoSlab || session->slabs.contains(number)) {
    return absl::AlreadyExistsError(absl::StrCat("slab ", number, " is taken"));
  }
  if (session->slabs.size() >= kMaxSessionSlabs) {
    return absl::ResourceExhaustedError(absl::StrCat("a session has at most ", kMaxSessionSlabs, " slabs"));
  }
  session->slabs[number] = {};
  return absl::OkStatus();
}

absl::Status SlabRegistry::Add(uint64_t id, uint32_t number, std::shared_ptr<Slab> slab,
                               const LinkRate& rate) {
  Session* session = sessions_->Find(id);
  if (session == nullptr || session->state == SessionState::kLost) {
    return absl::NotFoundError(absl::StrCat("session ", id, " does not exist"));
  }
  if (!session->slabs.contains(number)) {
    RETURN_IF_ERROR(Reserve(session, number));
  } else if (session->slabs[number].slab != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("slab ", number, " is taken"));
  }
  session->slabs[number] = {std::move(slab), engine_->AddLink(rate), rate};
  return absl::OkStatus();
}

absl::Status SlabRegistry::CheckNew(const Slab& slab) const {
  if (!slab.identity().has_value()) {
    return absl::OkStatus();
  }
  for (const auto& [id, session] : sessions_->all()) {
    for (const auto& [number, record] : session->slabs) {
      if (record.slab != nullptr && record.slab->identity() == slab.identity()) {
        return absl::PermissionDeniedError(
            absl::StrCat("slab: its memory is slab ", number, " of session ", id, " already"));
      }
    }
    // Transfers into these regions would make cursors and pins lie to this client, and only to it; but no
    // honest client offers them.
    for (const int fd : session->fds()) {
      if (IdentityOf(fd) == slab.identity()) {
        return absl::PermissionDeniedError(
            absl::StrCat("slab: its memory is one of session ", id, "'s own regions"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status SlabRegistry::OnOffered(Session* session, SidePacket packet) {
  const SideMessage& message = packet.message;
  const SlabHandle handle{static_cast<HandleKind>(message.handle_kind), message.device, message.bytes,
                          message.ipc};
  const size_t descriptors = DescriptorsOf(handle.kind);
  if (packet.fds.size() != descriptors) {
    return absl::InvalidArgumentError(absl::StrCat("slab ", message.slab, " of handle kind ",
                                                   message.handle_kind, " came with ", packet.fds.size(),
                                                   " descriptors, ", descriptors, " belong to it"));
  }
  const absl::Status known = CheckKind(message.handle_kind);
  const absl::Status reserved = known.ok() ? Reserve(session, message.slab) : known;
  if (!reserved.ok()) {
    Answer(session, message.slab, reserved);
    return absl::OkStatus();
  }
  LinkRate rate;
  rate.bytes_per_second = std::min(message.link_bytes_per_second, kMaxBytesPerSecond);
  rate.latency_nanos = static_cast<int64_t>(std::min(message.link_latency_nanos, kMaxLatencyNanos));
  engine_->MapSlab(session->id(), message.slab, descriptors == 0 ? UniqueFd() : std::move(packet.fds[0]),
                   handle, rate, session->lent);
  return absl::OkStatus();
}

void SlabRegistry::OnMapped(SlabMapped mapped) {
  Session* session = sessions_->Find(mapped.session);
  if (session == nullptr || !session->side_socket.valid()) {
    return;  // gone meanwhile
  }
  absl::Status added = mapped.mapped.status();
  if (added.ok()) {
    added = CheckNew(**mapped.mapped);
  }
  if (added.ok()) {
    log_->Say(LogSeverity::kInfo, absl::StrCat("session ", mapped.session, ": slab ", mapped.slab, " of ",
                                               (*mapped.mapped)->bytes(), " bytes, shared by ",
                                               NameOf((*mapped.mapped)->kind())));
    added = Add(mapped.session, mapped.slab, *std::move(mapped.mapped), mapped.rate);
  }
  if (!added.ok()) {
    session->slabs.erase(mapped.slab);
    mapped.mapped = added;  // a refused slab is unmapped before the client learns of it
  }
  Answer(session, mapped.slab, added);
}

void SlabRegistry::Answer(Session* session, uint32_t number, const absl::Status& outcome) {
  if (!outcome.ok()) {
    log_->Say(LogSeverity::kWarning,
              absl::StrCat("session ", session->id(), ": ", std::string(outcome.message())));
  }
  SideMessage message = side_->Message(SideType::kSlabMapped, *session);
  message.slab = number;
  message.code = static_cast<uint16_t>(outcome.code());
  side_->Send(session, message, nullptr);
}

void SlabRegistry::Drop(Session* session) {
  for (const auto& [number, record] : session->slabs) {
    if (record.slab != nullptr) {
      engine_->RemoveLink(record.link);
    }
  }
  session->slabs.clear();
}

}  // namespace sluice::weightd
