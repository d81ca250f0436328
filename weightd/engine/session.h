// One client process, seen from weightd: its parameters, shared regions, ring ends and pins; the table of all
// sessions; and the core's log.
//
// Thread safety: parameters are plain values; the rest is thread-compatible, the core's lock guards it. A
// session's regions are shared with its client.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/copier.h"
#include "common/protocol/link_model.h"
#include "common/protocol/rings.h"
#include "common/protocol/session_abi.h"
#include "common/protocol/shared_memory.h"
#include "common/protocol/side_channel.h"
#include "weightd/engine/entry_check.h"
#include "weightd/store/eviction.h"
#include "weightd/store/extent_source.h"
#include "weightd/store/extent_store.h"

namespace sluice::weightd {

// Parameters of a new session, and the resources that it gets.
//
// Thread safety: plain values. A LocalSession's regions are shared with weightd.

// Parameters from OpenSession's caller.
struct SessionParams {
  AbiSignature abi;
  std::vector<uint32_t> packs;  // weightd's pack numbers; their order is the session's pack index
  // Compute threads: the session's reserved minimum is 2 x the largest expert of its packs x this. 0: the
  // session leases nothing (PrefetchSession).
  uint32_t compute_threads = 1;
  // Maximum number of bytes that the session may fill: beyond it, its own coldest extents are evicted first.
  // 0: the store's session_quota. Extents filled by other sessions are not charged.
  uint64_t quota_bytes = 0;
  ControlLayout layout;  // sizes of rings, index arena and progress array
  // For logs and Stats only.
  std::string client_name;
};

struct SessionPack {
  uint32_t pack = 0;  // weightd's number
  uint32_t extent_count = 0;
};

// An open session. Descriptors are the store's and stay open until the session ends; a client in another
// process gets copies by AttachSideSocket, one in this process may map them at once.
struct SessionHandle {
  uint64_t session = 0;
  uint64_t boot_epoch = 0;
  std::vector<SessionPack> packs;
  std::vector<int> fds;  // in the order of WelcomeFds
  uint64_t control_bytes = 0;
  uint64_t reserved_bytes = 0;  // the reserved minimum
};

// A session's regions as weightd itself has them mapped: for clients in this process (tests, benchmarks).
// Borrowed; valid until the session ends.
struct LocalSession {
  struct PackRegions {
    const ResidencyEntry* residency = nullptr;
    PinEntry* pins = nullptr;
    uint32_t extent_count = 0;
  };
  ControlView control;
  std::vector<PackRegions> packs;  // in the session's order
  int server_bell = -1;
  int client_bell = -1;
};

// One client process, seen from weightd: its shared regions, its ends of the rings, and the pins held for it.
//
// Thread safety: thread-compatible; the core's lock guards it. The regions are shared with the client.
enum class SessionState {
  kOpened,  // not attached to its side socket yet
  kActive,
  kLost  // the connection is gone, the process perhaps not: no new work, pins hold
};

// A session's view of a pack.
struct SessionPackPlan {
  uint32_t pack = 0;  // weightd's number
  const ExtentSource* source = nullptr;
  int residency_fd = -1;  // borrowed
};

class Session {
 public:
  struct Options {
    uint64_t id = 0;
    uint64_t boot_epoch = 0;
    ControlLayout layout;
    std::vector<SessionPackPlan> packs;
    uint64_t reserved_bytes = 0;
    uint64_t quota_bytes = 0;  // 0: none
    std::string client_name;
    int64_t opened_nanos = 0;
  };
  static absl::StatusOr<std::unique_ptr<Session>> Create(Options options);

  const Options& options() const { return options_; }
  uint64_t id() const { return options_.id; }
  SessionState state = SessionState::kOpened;

  const PinEntry* pins(size_t pack_index) const;
  // The client's side of the regions, for a client in this process.
  PinEntry* mutable_pins(size_t pack_index) { return const_cast<PinEntry*>(pins(pack_index)); }
  const ControlView& view() const { return view_; }
  std::vector<const ExtentSource*> sources() const;
  // Descriptors, borrowed, in the order of WelcomeFds.
  std::vector<int> fds() const;
  int server_bell() const { return server_bell_.get(); }

  // Copies the next submission once, and with it the neurons that it lists (of transfers whose list lies
  // within the arena; else none). kCorrupt: the session must be lost.
  RingResult Pop(SubmissionEntry* entry, std::vector<uint32_t>* neurons);
  // Publishes a completion, or delays it while side messages wait: the client must know the segment of an
  // extent first. `held` are extents with an internal pin that is dropped when the completion has been
  // reaped.
  void Deliver(const CompletionEntry& entry, std::vector<ExtentId> held, const ExtentStore& store);
  // Publishes delayed completions. REQUIRES: no side message waits.
  void CompleteDelayed(const ExtentStore& store);
  // Drops the pins of completions that the client has reaped. False: its cursor is impossible.
  bool ReleaseReaped(ExtentStore* store);
  // Drops all of them, reaped or not.
  void ReleaseAll(ExtentStore* store);
  // Wakes the client if it sleeps and something was completed since the last call.
  void WakeClient();

  // The progress word, for a copy to store to; it stays valid as long as the copy keeps the owner.
  std::shared_ptr<std::atomic<uint64_t>> ProgressWord(uint32_t word) const {
    return {control_, &view_.progress[word]};
  }

  bool BeginSleep() { return submissions_.BeginSleep(); }
  void EndSleep() { submissions_.EndSleep(); }
  void SetProgress(uint32_t word, uint64_t value);
  // Notes the client's latest stamp at decision `clock`.
  void NoteStamp(uint64_t clock);
  const StepTimeline& timeline() const { return timeline_; }

  uint64_t outstanding() const { return submissions_.head() - completions_.tail(); }
  // Bytes of extents held for completions that the client has not reaped.
  uint64_t held_bytes() const { return held_bytes_; }

  // Slabs that transfers may name, by the client's number; null while its memory is being mapped.
  struct SlabRecord {
    std::shared_ptr<Slab> slab;
    uint32_t link = 0;  // the engine's number
    LinkRate rate;
  };
  std::map<uint32_t, SlabRecord> slabs;
  std::vector<SlabView> MappedSlabs() const;
  uint64_t SlabBytes(HandleKind kind) const;  // mapped ones only

  // Time when the client last moved a cursor or noted a step, as seen by the rounds so far; `now` if it just
  // has.
  int64_t LastSign(int64_t now);

  // Counters for Stats.
  uint64_t requests = 0;
  uint64_t bytes_read = 0;

  // The side socket; -1 for a client in this process.
  UniqueFd side_socket;
  UniqueFd pidfd;
  bool side_writable_wanted = false;
  // Reference that every slab of the session holds until it is unmapped. At the session's end the side socket
  // moves here, and so closes with the last of them.
  std::shared_ptr<UniqueFd> lent = std::make_shared<UniqueFd>();
  // Messages that did not fit into the socket, with the descriptor of an announced segment kept alive.
  struct OutMessage {
    SideMessage message;
    std::shared_ptr<const SharedMemory> memory;
  };
  std::deque<OutMessage> out;

 private:
  explicit Session(Options options) : options_(std::move(options)) {}

  struct Hold {
    uint64_t sequence;
    std::vector<ExtentId> extents;
    uint64_t bytes;
  };
  struct DelayedCompletion {
    CompletionEntry entry;
    std::vector<ExtentId> held;
  };

  void Complete(const CompletionEntry& entry, std::vector<ExtentId> held, const ExtentStore& store);

  const Options options_;
  std::shared_ptr<SharedMemory> control_;  // shared with copies that report progress into it
  std::vector<SharedMemory> pins_;
  UniqueFd server_bell_;
  UniqueFd client_bell_read_;
  UniqueFd client_bell_write_;
  UniqueFd process_;
  ControlView view_;
  SubmissionReader submissions_{ControlView{}};
  CompletionWriter completions_{ControlView{}};
  StepTimeline timeline_;
  std::deque<Hold> holds_;
  std::deque<DelayedCompletion> delayed_;
  uint64_t held_bytes_ = 0;
  std::array<uint64_t, 3> seen_ = {};  // cursors and stamp at the last sign
  int64_t last_sign_nanos_ = 0;
  bool unannounced_ = false;  // completions were pushed since the last WakeClient
};

// Log messages of weightd's core, kept in order until a caller without locks passes them to the log.
//
// Thread safety: StoreLog is thread-compatible; the core's lock guards it.
enum class LogSeverity { kInfo, kWarning, kError };
using LogFn = std::function<void(LogSeverity, const std::string&)>;

class StoreLog {
 public:
  using Messages = std::vector<std::pair<LogSeverity, std::string>>;

  void Say(LogSeverity severity, std::string message) {
    messages_.emplace_back(severity, std::move(message));
  }
  // Messages since the last call.
  Messages Take() { return std::exchange(messages_, {}); }

 private:
  Messages messages_;
};

// All sessions by number, and those that end after this round.
//
// A fault of a session may be found in the middle of its work, so the session is only marked here; the core
// ends it when the round is over.
//
// Thread safety: thread-compatible; the core's lock guards it.
class SessionTable {
 public:
  struct MarkedSession {
    uint64_t session = 0;
    bool misbehaved = false;  // false: its connection has gone, the process perhaps not
  };

  explicit SessionTable(StoreLog* log) : log_(log) {}

  // A number that no session has had, from 1 on.
  uint64_t NewId() { return next_id_++; }
  // Adds the session under its id() and owns it.
  Session* Add(std::unique_ptr<Session> session);
  void Erase(uint64_t session) { sessions_.erase(session); }
  // Null if there is none.
  Session* Find(uint64_t session) const;

  const std::map<uint64_t, std::unique_ptr<Session>>& all() const { return sessions_; }
  size_t size() const { return sessions_.size(); }
  // The packs that any session uses.
  std::set<uint32_t> Packs() const;

  // Marks the session to end after this round; the first reason is logged, later ones are not.
  void MarkForClose(uint64_t session, bool misbehaved, const std::string& why);
  // Sessions marked since the last call.
  std::vector<MarkedSession> TakeMarked() { return std::exchange(marked_, {}); }

 private:
  StoreLog* const log_;
  std::map<uint64_t, std::unique_ptr<Session>> sessions_;
  std::vector<MarkedSession> marked_;
  uint64_t next_id_ = 1;
};

}  // namespace sluice::weightd
