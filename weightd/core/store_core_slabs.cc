// StoreCore's slabs: offers on the side socket, mapping, cancels of what copies into them.
#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "weightd/core/store_core.h"

namespace sluice {
namespace {

// Rates beyond these are no link's; held, so that times stay far from overflow.
constexpr uint64_t kMaxBytesPerSecond = 1'000'000'000'000'000;
constexpr uint64_t kMaxLatencyNanos = 10'000'000'000;

}  // namespace

void StoreCore::HandleCancel(Session* session, const SubmissionEntry& entry) {
  // Transfers first: the fetcher knows those that it fills by the same id.
  const bool found =
      transfers_.Cancel(session->id(), entry.target) || fetcher_.Cancel(session->id(), entry.target);
  Answer(session, entry,
         {found ? absl::StatusCode::kOk : absl::StatusCode::kNotFound,
          found ? EntryField::kNone : EntryField::kTarget},
         0);
}

absl::Status StoreCore::ReserveSlab(Session* session, uint32_t number) const {
  if (environment_.transfers == nullptr) {
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

absl::Status StoreCore::AddSlab(uint64_t id, uint32_t number, std::shared_ptr<Slab> slab,
                                const LinkRate& rate) {
  Session* session = Find(id);
  if (session == nullptr || session->state == SessionState::kLost) {
    return absl::NotFoundError(absl::StrCat("session ", id, " does not exist"));
  }
  if (!session->slabs.contains(number)) {
    RETURN_IF_ERROR(ReserveSlab(session, number));
  } else if (session->slabs[number].slab != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("slab ", number, " is taken"));
  }
  session->slabs[number] = {std::move(slab), environment_.transfers->AddLink(rate), rate};
  return absl::OkStatus();
}

void StoreCore::OnSlabOffered(Session* session, SidePacket packet) {
  const SideMessage& message = packet.message;
  const absl::Status reserved = ReserveSlab(session, message.slab);
  if (!reserved.ok()) {
    Log(LogSeverity::kWarning,
        absl::StrCat("session ", session->id(), ": ", std::string(reserved.message())));
    AnswerSlab(session, message.slab, reserved.code());
    return;
  }
  LinkRate rate;
  rate.bytes_per_second = std::min(message.link_bytes_per_second, kMaxBytesPerSecond);
  rate.latency_nanos = static_cast<int64_t>(std::min(message.link_latency_nanos, kMaxLatencyNanos));
  environment_.transfers->MapSlab(session->id(), message.slab, std::move(packet.fds[0]), message.bytes, rate);
}

void StoreCore::AnswerSlab(Session* session, uint32_t number, absl::StatusCode code) {
  SideMessage message = Message(SideType::kSlabMapped, *session);
  message.slab = number;
  message.code = static_cast<uint16_t>(code);
  Send(session, message, nullptr);
}

void StoreCore::OnTransferEvent(TransferEvent event) {
  if (const auto* end = std::get_if<TransferEnd>(&event)) {
    transfers_.OnEnd(*end);
    return;
  }
  SlabMapped& mapped = std::get<SlabMapped>(event);
  Session* session = Find(mapped.session);
  if (session == nullptr || !session->side_socket.valid()) {
    return;  // gone meanwhile
  }
  const absl::Status added =
      mapped.mapped.ok() ? AddSlab(mapped.session, mapped.slab, *std::move(mapped.mapped), mapped.rate)
                         : mapped.mapped.status();
  if (!added.ok()) {
    session->slabs.erase(mapped.slab);
    Log(LogSeverity::kWarning, absl::StrCat("session ", session->id(), ": ", std::string(added.message())));
  }
  AnswerSlab(session, mapped.slab, added.code());
}

void StoreCore::DropSlabs(Session* session) {
  for (const auto& [number, record] : session->slabs) {
    if (record.slab != nullptr) {
      environment_.transfers->RemoveLink(record.link);
    }
  }
  session->slabs.clear();
}

}  // namespace sluice
