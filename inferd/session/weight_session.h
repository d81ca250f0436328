// WeightSession: one joined session with one life of weightd: the side socket, the shared regions, the mapped
// segments and the client's ends of the rings. common/protocol/PROTOCOL.md is the protocol.
//
// Thread safety: thread-compatible; the engine thread's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/unique_fd.h"
#include "common/protocol/rings.h"
#include "common/protocol/session_abi.h"
#include "common/protocol/shared_memory.h"
#include "common/protocol/side_channel.h"
#include "inferd/model/request_table.h"
#include "inferd/model/weight_client.h"
#include "inferd/session/weights_rpc_client.h"

namespace sluice::inferd {

class WeightSession {
 public:
  // Joins `opened` on its side socket and maps the shared regions. `extent_bytes` (by extent) and `wake_fd`
  // (an eventfd that ends Sleep()) are borrowed and outlive the session. UNAVAILABLE: weightd went away
  // meanwhile; DEADLINE_EXCEEDED; the REJECT's code; INTERNAL: regions that don't fit each other or this
  // pack.
  static absl::StatusOr<std::unique_ptr<WeightSession>> Join(const OpenedSession& opened,
                                                             const std::vector<uint64_t>& extent_bytes,
                                                             int wake_fd, absl::Time deadline);
  // Join() over a connected side socket.
  static absl::StatusOr<std::unique_ptr<WeightSession>> JoinOver(UniqueFd side, const OpenedSession& opened,
                                                                 const std::vector<uint64_t>& extent_bytes,
                                                                 int wake_fd, absl::Time deadline);
  // Unmaps every segment and calls the observer.
  ~WeightSession();

  // Reports every segment to the observer, mapped ones at once.
  absl::Status SetObserver(SegmentObserver* observer);

  // Contracts are in weight_client.h. These functions access only shared memory, except that a lease in a
  // segment that is not mapped yet reads the side socket.
  bool TryLease(uint32_t extent, ExtentLease* lease);
  // `counts`: false for a scan's use (ReleaseLease).
  void Release(uint32_t extent, uint64_t stamp, bool counts);
  bool IsResident(uint32_t extent) const;

  // Queues the entry, with its list of neurons. RESOURCE_EXHAUSTED: the ring or the index arena is full;
  // INVALID_ARGUMENT: a list longer than the arena.
  absl::Status Submit(SubmissionEntry entry, absl::Span<const uint32_t> neurons = {});
  // Wakes weightd if it sleeps; it may not see earlier entries otherwise. Returns true if it slept.
  bool WakeWeightd();
  // The oldest completion, left in the ring until Advance(). False: none, or the session is lost.
  bool Peek(CompletionEntry* entry);
  void Advance() { completions_->Advance(); }

  // Lends slab `number` to weightd and waits for the answer. The answer's code; UNAVAILABLE: the session is
  // lost; DEADLINE_EXCEEDED.
  absl::Status OfferSlab(uint32_t number, const SlabOffer& offer, absl::Time deadline);
  // Progress words of transfers: cleared before a transfer is submitted, then stored by weightd.
  void ClearProgress(size_t word) { control_.progress[word].store(0, std::memory_order_relaxed); }
  uint64_t Progress(size_t word) const { return control_.progress[word].load(std::memory_order_acquire); }
  size_t progress_words() const { return control_.layout.progress_words; }

  // Processes messages on the side socket: segments, or its end.
  void DrainSide();

  // Sleeps until a completion may be there, the session is lost, the wake's eventfd is readable, or
  // `deadline`. Returns true if it was the wake's, which has been read.
  bool Sleep(absl::Time deadline);

  // Reason of the session's end; OK while it lives. Sticky.
  const absl::Status& lost() const { return lost_; }
  // Ends the session from this side, with the reason.
  void Lose(const absl::Status& why);
  // True if weightd has closed the side socket or died: one poll(2).
  bool PeerGone() const;
  // Descriptors that outlive this session: `side` hangs up when weightd has unmapped our slabs, `process` is
  // readable once weightd's process has exited.
  struct Ends {
    UniqueFd side;
    UniqueFd process;
  };
  Ends TakeEnds() { return {std::move(side_), std::move(peer_pidfd_)}; }
  int side() const { return side_.get(); }
  int peer_pidfd() const { return peer_pidfd_.get(); }

  const OpenedSession& opened() const { return opened_; }
  uint32_t ring_entries() const { return control_.layout.ring_entries; }
  // weightd's process; 0: it is in another PID namespace.
  pid_t peer_pid() const { return peer_pid_; }
  size_t mapped_segments() const { return mapped_segments_; }

 private:
  struct Segment {
    const std::byte* base = nullptr;  // null: not mapped
    uint64_t bytes = 0;
    Mapping map;
  };

  WeightSession(const OpenedSession& opened, const std::vector<uint64_t>& extent_bytes, int wake_fd,
                UniqueFd side);
  static absl::Status NoSense(const std::string& what, uint64_t got, uint64_t expected);
  static int PollTimeoutMs(absl::Time deadline);
  absl::Status TakeWelcome(absl::Time deadline);
  absl::Status AwaitReady(absl::Time deadline);
  absl::Status MapRegions(const std::vector<UniqueFd>& fds);
  absl::Status CheckTables() const;
  absl::Status WatchAll();
  absl::Status OnSideMessage(SidePacket packet);
  absl::Status AddSegment(uint32_t id, uint64_t bytes, const UniqueFd& fd);
  absl::Status RetireSegment(uint32_t id);
  bool Locate(uint64_t place, uint64_t bytes, ExtentLease* lease) const;
  void SendAcks();

  const OpenedSession opened_;
  const std::vector<uint64_t>& extent_bytes_;
  const int wake_fd_;
  UniqueFd side_;
  UniqueFd epoll_;  // over all of Sleep()'s sources: cheaper than poll(2) of four
  UniqueFd server_bell_;
  UniqueFd client_bell_;
  UniqueFd peer_pidfd_;
  pid_t peer_pid_ = 0;
  Mapping control_map_;
  Mapping residency_map_;
  Mapping pins_map_;
  ControlView control_;
  const ResidencyEntry* residency_ = nullptr;    // [extent_count]
  PinEntry* pins_ = nullptr;                     // [extent_count]
  std::optional<SubmissionWriter> submissions_;  // set once the regions are mapped, as is the next
  std::optional<CompletionReader> completions_;
  std::optional<ListArena> lists_;
  std::vector<Segment> segments_;  // by id; ids are never reused in one life of weightd
  size_t mapped_segments_ = 0;
  std::vector<uint32_t> unsent_acks_;  // retired segments, unmapped but not yet acknowledged
  bool populate_ = true;               // segments announced now are filled already: map all their pages
  bool ready_ = false;                 // all initial segments have been announced
  bool alive_ = true;                  // lost_.ok(), as a flag for TryLease
  std::optional<SideMessage> slab_answer_;
  SegmentObserver* observer_ = nullptr;
  absl::Status lost_;
};

}  // namespace sluice::inferd
