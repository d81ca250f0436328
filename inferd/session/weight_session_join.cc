// Start of a WeightSession: HELLO and WELCOME on the side socket, the regions mapped and checked.
#include <poll.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/net/unix_listener.h"
#include "common/ring/process_fd.h"
#include "common/ring/protocol_step.h"
#include "common/status.h"
#include "inferd/session/weight_session.h"

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

// Waits until weightd has announced its segments. Only then can resident extents be leased from the first
// step on; an earlier session would request them again.
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

}  // namespace sluice::inferd
