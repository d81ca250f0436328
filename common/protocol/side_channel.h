// The side channel: a unix SOCK_SEQPACKET socket beside gRPC that carries the session's file descriptors. A
// one-time nonce links it to the session, and it stays open for the session's life. Its end tells each side
// that the other has gone.
//
// Every message is one SideMessage; the descriptors it announces come with it. The order of a session:
//   client  HELLO{nonce}            within the time that OpenSession's response states
//   weightd WELCOME{fd_count}       descriptors in the order of WelcomeFds, or REJECT{code} and the end
//   weightd SEGMENT_ADDED...        the segments there are now, then READY, once
//   weightd SEGMENT_ADDED{segment, bytes} + fd      any time, before an extent in it is published
//   weightd SEGMENT_RETIRED{segment}                no extent in it is resident; the client unmaps it
//   client  SEGMENT_UNMAPPED{segment}               until then its memory counts as used
//   client  SLAB_OFFERED{slab, bytes, handle_kind, device, link_*} + fd
//                                                   memory of its device; of a kind without
//                                                   descriptor: {.., ipc}, and no fd
//   weightd SLAB_MAPPED{slab, code}                 0: transfers may name it; else the reason of the refusal
//
// Thread safety: free functions; calls on one descriptor must not overlap in the same direction.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"
#include "common/protocol/memory_handle.h"
#include "common/protocol/session_abi.h"

namespace sluice {

inline constexpr uint32_t kSideMagic = 0x45444953;  // "SIDE"
inline constexpr size_t kNonceBytes = 16;
// The kernel passes at most 253 descriptors at a time; WELCOME of kMaxSessionPacks needs 68.
inline constexpr size_t kMaxSideFds = 128;

enum class SideType : uint16_t {
  kHello = 1,
  kWelcome = 2,
  kReject = 3,
  kSegmentAdded = 4,
  kSegmentRetired = 5,
  kSegmentUnmapped = 6,
  kReady = 7,
  kSlabOffered = 8,
  kSlabMapped = 9
};

// Frozen by kAbiVersion. Fields that a type does not use are 0.
struct SideMessage {
  uint32_t magic = kSideMagic;
  uint16_t version = kAbiVersion;
  SideType type = SideType::kHello;
  uint64_t session = 0;                      // all but HELLO, which has the nonce
  uint64_t boot_epoch = 0;                   // weightd's messages
  uint64_t bytes = 0;                        // SEGMENT_ADDED, SLAB_OFFERED: of the whole memory
  uint32_t segment = 0;                      // SEGMENT_*
  uint16_t fd_count = 0;                     // descriptors that come with the message
  uint16_t code = 0;                         // REJECT, SLAB_MAPPED: absl::StatusCode
  std::array<uint8_t, kNonceBytes> nonce{};  // HELLO
  uint32_t slab = 0;                         // SLAB_*: the client's number for it, not kNoSlab
  uint8_t handle_kind = 0;                   // SLAB_OFFERED: a HandleKind
  std::array<uint8_t, 3> reserved{};
  uint64_t link_bytes_per_second = 0;  // SLAB_OFFERED: the modelled link's rate, 0: none
  uint64_t link_latency_nanos = 0;     // and a copy's time before its first byte
  DeviceUuid device = {};              // SLAB_OFFERED: device of the memory; zeros: the host
  HandleBytes ipc = {};                // SLAB_OFFERED of a kind without a descriptor: the handle
};
static_assert(sizeof(SideMessage) == kSideMessageBytes);

// WELCOME's descriptors: four, then two per pack in OpenSession's order.
struct WelcomeFds {
  static constexpr size_t kControl = 0;     // control region, mapped read-write by the client
  static constexpr size_t kServerBell = 1;  // eventfd; the client writes 8 bytes to wake weightd
  static constexpr size_t kClientBell = 2;  // read end of a pipe, non-blocking; weightd writes a byte to wake
  static constexpr size_t kProcess =
      3;  // of weightd (common/protocol/shared_memory.h), readable once it has exited
  static constexpr size_t kFirstPack = 4;
  static constexpr size_t Residency(size_t pack) { return kFirstPack + 2 * pack; }  // mapped read-only
  static constexpr size_t Pins(size_t pack) { return kFirstPack + 2 * pack + 1; }   // mapped read-write
  static constexpr size_t Count(size_t packs) { return kFirstPack + 2 * packs; }
};

// A received message and the descriptors that came with it.
struct SidePacket {
  SideMessage message;
  std::vector<UniqueFd> fds;
};

// Sends one message with `fds` (borrowed; message.fd_count is set from them). Never blocks: UNAVAILABLE when
// the socket's buffer is full (try again when writable), FAILED_PRECONDITION when the peer is gone.
absl::Status SendSideMessage(int socket, SideMessage message, std::span<const int> fds = {});

// Receives one message without blocking. UNAVAILABLE: none there now; FAILED_PRECONDITION: the peer is gone;
// INVALID_ARGUMENT: not a whole SideMessage of this ABI, or its descriptors were cut or miscounted.
absl::StatusOr<SidePacket> ReceiveSideMessage(int socket);

}  // namespace sluice
