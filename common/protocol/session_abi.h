// The session ABI: every byte that weightd and its clients share (weightd/ and
// inferd/session/session_weight_client.h).
//
// Regions: per pack a residency table (weightd writes, clients map read-only), per session and pack a pin
// array (the client alone writes), per session a control region with the two rings.
// common/protocol/PROTOCOL.md has the protocol, lease.h and rings.h the only code that may touch these
// structs, side_channel.h the messages that carry the file descriptors. All numbers, sizes and offsets here
// are frozen by kAbiVersion.
//
// Thread safety: layouts only. A comment beside each field names the thread or process that may write it;
// every word that two sides access concurrently is a lock-free atomic, so a torn or repeated read is
// harmless.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/base/encoding.h"
#include "common/protocol/request_class.h"

namespace sluice {

inline constexpr uint32_t kAbiVersion = 6;

// Size of a side channel message, which carries this version too (side_channel.h).
inline constexpr uint32_t kSideMessageBytes = 160;

// First eight bytes of each region ("SLCERESI", "SLCEPINS", "SLCECTRL" as little-endian text).
inline constexpr uint64_t kResidencyMagic = 0x4953455245434c53ull;
inline constexpr uint64_t kPinsMagic = 0x534e495045434c53ull;
inline constexpr uint64_t kControlMagic = 0x4c52544345434c53ull;

// Every size and offset in a segment is a multiple of this, and so is an extent's offset in its file.
inline constexpr uint64_t kSegmentAlignment = 4096;

inline constexpr uint32_t kNoExtent = 0xffffffffu;
inline constexpr uint32_t kNoSlab = 0xffffffffu;
inline constexpr uint32_t kNoProgress = 0xffffffffu;

// Bounds that both sides may rely on.
inline constexpr uint32_t kMaxSessionPacks = 32;
inline constexpr uint32_t kMaxSessionSlabs = 16;
inline constexpr uint32_t kMinRingEntries = 16;  // ring sizes are powers of two between these
inline constexpr uint32_t kMaxRingEntries = 16384;
inline constexpr uint32_t kMaxListEntries = 1u << 22;  // index arena, entries of 4 bytes

// ---------------------------------------------------------------- residency table

enum class ExtentState : uint8_t {
  kAbsent = 0,
  kFilling = 1,   // a read is under way
  kResident = 2,  // may be leased
  kEvicting = 3,  // weightd is checking the pins: not leasable, may become resident again
  kBad = 4        // its bytes on disk fail their checksum; requests end DATA_LOSS
};

// One word: the state in the low 8 bits, above it a generation that increases with every fill.
inline constexpr uint64_t PackState(ExtentState state, uint64_t generation) {
  return generation << 8 | static_cast<uint64_t>(state);
}
inline constexpr ExtentState StateOf(uint64_t word) { return static_cast<ExtentState>(word & 0xff); }
inline constexpr uint64_t GenerationOf(uint64_t word) { return word >> 8; }

// One word: the segment's number in the upper 24 bits, the byte offset in it below.
inline constexpr uint32_t kMaxSegmentId = (1u << 24) - 1;
inline constexpr uint64_t PackPlace(uint32_t segment, uint64_t offset) {
  return static_cast<uint64_t>(segment) << 40 | offset;
}
inline constexpr uint32_t PlaceSegment(uint64_t place) { return static_cast<uint32_t>(place >> 40); }
inline constexpr uint64_t PlaceOffset(uint64_t place) { return place & ((uint64_t{1} << 40) - 1); }

struct ResidencyEntry {
  std::atomic<uint64_t> state;  // PackState()
  std::atomic<uint64_t> place;  // PackPlace(); may be read only under a lease
};

// The table: this header, then extent_count ResidencyEntry in the order of the pack's extent table.
struct ResidencyHeader {
  uint64_t magic;          // kResidencyMagic
  uint32_t abi_version;    // kAbiVersion
  uint32_t entry_bytes;    // sizeof(ResidencyEntry)
  uint64_t boot_epoch;     // this weightd process, never 0
  uint32_t pack;           // weightd's number of the pack
  uint32_t extent_count;   // entries that follow
  uint64_t model_id_hash;  // first 8 bytes of the pack's model_id, for a cross-check
  uint64_t reserved[3];
};
inline constexpr uint64_t ResidencyBytes(uint32_t extent_count) {
  return sizeof(ResidencyHeader) + uint64_t{extent_count} * sizeof(ResidencyEntry);
}

// ---------------------------------------------------------------- pin array

struct PinEntry {
  std::atomic<uint32_t> pins;       // leases held on the extent by this session
  std::atomic<uint32_t> uses;       // releases so far, wraps
  std::atomic<uint64_t> last_step;  // StepStamp() of the last release, 0 before the first
};

// The array: this header (written by weightd, never read back by it), then extent_count PinEntry.
struct PinsHeader {
  uint64_t magic;  // kPinsMagic
  uint32_t abi_version;
  uint32_t entry_bytes;  // sizeof(PinEntry)
  uint64_t boot_epoch;
  uint32_t pack;
  uint32_t extent_count;
  uint64_t session;
  uint64_t reserved[3];
};
inline constexpr uint64_t PinsBytes(uint32_t extent_count) {
  return sizeof(PinsHeader) + uint64_t{extent_count} * sizeof(PinEntry);
}

// Time of a use in the session's own order: the engine step, and within it the running number of the release
// (the largest value if a step has more). Steps of two sessions cannot be compared; weightd maps them to one
// axis by reading `last_stamp` whenever it decides something (weightd/store/eviction.h).
inline constexpr int kStampOrderBits = 16;
inline constexpr uint64_t StepStamp(uint64_t step, uint64_t order) {
  constexpr uint64_t kLast = (uint64_t{1} << kStampOrderBits) - 1;
  return step << kStampOrderBits | (order < kLast ? order : kLast);
}

// ---------------------------------------------------------------- requests

enum class Opcode : uint16_t {
  kNop = 0,         // completes OK; measures the ring
  kFillExpert = 1,  // make `parts` of (pack, layer, expert) resident
  kFillExtent = 2,  // make `extent` of `pack` resident
  kTransfer = 3,    // copy parts or neurons into a slab
  kCancel = 4,      // end request `target` early; it still completes, CANCELLED or OK
  // End every prefetch of `pack` that has not started, of a step < `step`, or of `step` and a layer <=
  // `layer`. Completes OK with their number in `bytes`; each of them completes CANCELLED.
  kCancelPrefetches = 5,
  kTransferExtent = 6  // copy all bytes of `extent` into a slab, to base[0]
};

// The engine step is a scan: it uses nearly every expert of every layer once, and does not predict later
// uses. Releases in such a step leave the pin's `uses` unchanged.
inline constexpr uint32_t kScanFlag = 1;

// One request. A field that its opcode does not use must hold its stated neutral value: weightd checks it,
// and ends the request INVALID_ARGUMENT or UNIMPLEMENTED naming the field (EntryField).
struct SubmissionEntry {
  uint64_t id;        // the client's, unique among its outstanding requests
  uint64_t sequence;  // this entry's number in the ring, from 0; any other value ends the session
  Opcode opcode;
  RequestClass request_class;  // fills and both transfers; else kDemand
  PartSet parts;               // fill expert and transfer: not empty; else 0
  uint32_t flags;              // kScanFlag of experts' fills and transfers; else 0
  uint64_t step;               // engine step; the generation of prefetches
  uint32_t pack;               // the session's index of the pack, in OpenSession's order
  uint32_t layer;   // fills of experts, transfers: the expert's. Prefetches: also of extents. Else 0
  uint32_t expert;  // fill expert, transfer; else 0
  uint32_t extent;  // fill extent, transfer extent; else kNoExtent
  // transfer: first neuron index in the index arena; else 0. Copied with the entry: once submission_head has
  // passed the entry, the client may reuse the list's place.
  uint32_t list_offset;
  uint32_t list_count;        // how many, ascending and distinct; 0: all neurons
  uint32_t slab;              // both transfers; else kNoSlab
  uint32_t progress;          // word of the progress array that counts arrivals, or kNoProgress
  uint64_t base[kPartCount];  // transfer: per part the first byte in the slab; an extent's in base[0]; else 0
  uint64_t stride[kPartCount];  // transfer: per part the bytes from row to row; else 0
  uint64_t target;              // cancel: the id to end; else 0
  uint32_t tile_neurons;        // transfer: rows land in tiles of so many neurons, 0: in one; else 0
  uint32_t reserved;            // 0
};

// The field that a completion's `field` names when code is INVALID_ARGUMENT or UNIMPLEMENTED.
enum class EntryField : uint16_t {
  kNone = 0,
  kId = 1,  // already outstanding
  kOpcode = 2,
  kClass = 3,
  kParts = 4,
  kFlags = 5,
  kPack = 6,
  kLayer = 7,
  kExpert = 8,
  kExtent = 9,
  kList = 10,
  kSlab = 11,
  kProgress = 12,
  kBase = 13,
  kStride = 14,
  kTarget = 15,
  kReserved = 16,
  kTile = 17
};

// Exactly one per submission, in the order in which requests end.
struct CompletionEntry {
  uint64_t id;
  uint64_t sequence;  // this entry's number in the ring, from 0
  uint16_t code;      // absl::StatusCode: OK, CANCELLED, INVALID_ARGUMENT, NOT_FOUND (cancel), DATA_LOSS,
                      // RESOURCE_EXHAUSTED (no room), UNAVAILABLE (draining), UNIMPLEMENTED, INTERNAL
  EntryField field;
  uint32_t extent;      // DATA_LOSS: the extent at fault; else kNoExtent
  uint64_t bytes;       // read from SSD for this request; 0 when it was resident or another request read it
  uint32_t queue_us;    // from the submission's consumption to the first read's start
  uint32_t io_us;       // from there to the last byte verified
  uint32_t copy_us;     // transfers: from the copy's first byte to its last one's arrival
  uint32_t extents;     // extents that this request filled or found resident
  uint64_t link_bytes;  // transfers: copied into the slab, also when the code is CANCELLED
  uint64_t reserved[9];
};

// ---------------------------------------------------------------- control region

// Start of the region, written once by weightd before the client sees it and never read back.
struct ControlHeader {
  uint64_t magic;  // kControlMagic
  uint32_t abi_version;
  uint32_t header_bytes;      // sizeof(ControlHeader)
  uint64_t region_bytes;      // of the whole region
  uint64_t boot_epoch;        // this weightd process
  uint64_t session;           // number of the session
  uint32_t ring_entries;      // of both rings, a power of two
  uint32_t submission_bytes;  // sizeof(SubmissionEntry)
  uint32_t completion_bytes;  // sizeof(CompletionEntry)
  uint32_t list_entries;      // of the index arena
  uint32_t progress_words;    // of the progress array
  uint32_t pack_count;        // packs of this session
  uint64_t submission_offset;
  uint64_t completion_offset;
  uint64_t list_offset;
  uint64_t progress_offset;
  uint64_t reserved[4];
};

// A word that one side writes, alone on its cache line.
struct alignas(64) ControlWord {
  std::atomic<uint64_t> value;
};

// At kCursorsOffset. Cursors count entries since the session's start and never wrap. Each side keeps its own
// cursors privately and checks the other's: a cursor that runs backwards or too far ends the session.
struct ControlCursors {
  ControlWord submission_tail;  // client: entries submitted
  ControlWord submission_head;  // weightd: entries consumed
  ControlWord completion_tail;  // weightd: entries completed
  ControlWord completion_head;  // client: entries reaped; their extents are held until then
  ControlWord server_sleeping;  // weightd sets 1 before it sleeps; a client that sees 1 rings the server bell
  ControlWord
      client_waiting;      // client sets 1 before it sleeps; weightd takes it back and rings the client bell
  ControlWord last_stamp;  // client: StepStamp() of its latest release (lease.h writes it)
  ControlWord reserved;
};
inline constexpr uint64_t kCursorsOffset = 1024;

// Layout of a control region of these sizes; both sides compute it, the client compares.
struct ControlLayout {
  uint32_t ring_entries = 1024;
  uint32_t list_entries = 1u << 16;
  uint32_t progress_words = 1024;

  constexpr uint64_t submission_offset() const { return 4096; }
  constexpr uint64_t completion_offset() const {
    return submission_offset() + uint64_t{ring_entries} * sizeof(SubmissionEntry);
  }
  constexpr uint64_t list_offset() const {
    return completion_offset() + uint64_t{ring_entries} * sizeof(CompletionEntry);
  }
  constexpr uint64_t progress_offset() const {
    return (list_offset() + uint64_t{list_entries} * sizeof(uint32_t) + 63) / 64 * 64;
  }
  constexpr uint64_t region_bytes() const {
    return (progress_offset() + uint64_t{progress_words} * sizeof(uint64_t) + 4095) / 4096 * 4096;
  }
  constexpr bool valid() const {
    return ring_entries >= kMinRingEntries && ring_entries <= kMaxRingEntries &&
           (ring_entries & (ring_entries - 1)) == 0 && list_entries <= kMaxListEntries &&
           progress_words <= kMaxRingEntries;
  }
};

// A progress word: the low 32 bits of the request's id in the upper half, the number of arrivals in the lower
// (extents for fills, tiles for transfers). Stored with release order after the bytes it counts.
inline constexpr uint64_t PackProgress(uint64_t id, uint32_t count) { return id << 32 | count; }

// ---------------------------------------------------------------- handshake

// Sent with OpenSession and compared there: a client built against other headers is refused, and the error
// names the difference.
struct AbiSignature {
  uint32_t version = kAbiVersion;
  uint32_t residency_header = sizeof(ResidencyHeader);
  uint32_t residency_entry = sizeof(ResidencyEntry);
  uint32_t pins_header = sizeof(PinsHeader);
  uint32_t pin_entry = sizeof(PinEntry);
  uint32_t control_header = sizeof(ControlHeader);
  uint32_t control_cursors = sizeof(ControlCursors);
  uint32_t submission_entry = sizeof(SubmissionEntry);
  uint32_t completion_entry = sizeof(CompletionEntry);
  uint32_t side_message = kSideMessageBytes;
  bool operator==(const AbiSignature&) const = default;
};

// The name of the first field in which `other` differs from this build's signature, null if it is equal.
const char* AbiMismatch(const AbiSignature& other);

static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);
static_assert(sizeof(ResidencyHeader) == 64 && sizeof(ResidencyEntry) == 16);
static_assert(offsetof(ResidencyHeader, boot_epoch) == 16 && offsetof(ResidencyHeader, extent_count) == 28);
static_assert(offsetof(ResidencyEntry, place) == 8);
static_assert(sizeof(PinsHeader) == 64 && sizeof(PinEntry) == 16);
static_assert(offsetof(PinEntry, uses) == 4 && offsetof(PinEntry, last_step) == 8);
static_assert(sizeof(SubmissionEntry) == 128 && sizeof(CompletionEntry) == 128);
static_assert(offsetof(SubmissionEntry, opcode) == 16 && offsetof(SubmissionEntry, parts) == 19);
static_assert(offsetof(SubmissionEntry, step) == 24 && offsetof(SubmissionEntry, extent) == 44);
static_assert(offsetof(SubmissionEntry, base) == 64 && offsetof(SubmissionEntry, stride) == 88);
static_assert(offsetof(SubmissionEntry, target) == 112 && offsetof(SubmissionEntry, tile_neurons) == 120);
static_assert(offsetof(CompletionEntry, code) == 16 && offsetof(CompletionEntry, extent) == 20);
static_assert(offsetof(CompletionEntry, bytes) == 24 && offsetof(CompletionEntry, queue_us) == 32);
static_assert(offsetof(CompletionEntry, link_bytes) == 48 && offsetof(CompletionEntry, reserved) == 56);
static_assert(sizeof(ControlHeader) == 128 && offsetof(ControlHeader, ring_entries) == 40);
static_assert(offsetof(ControlHeader, submission_offset) == 64);
static_assert(sizeof(ControlWord) == 64 && sizeof(ControlCursors) == 512);
static_assert(kCursorsOffset % 64 == 0 && kCursorsOffset + sizeof(ControlCursors) <= 4096);

}  // namespace sluice
