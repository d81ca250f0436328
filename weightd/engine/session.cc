#include "weightd/engine/session.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/protocol/protocol_step.h"
#include "common/protocol/shared_memory.h"
#include "weightd/store/prefaulter.h"

namespace sluice::weightd {
namespace {

absl::StatusOr<SharedMemory> CreatePins(const Session::Options& options, const SessionPackPlan& plan) {
  const uint32_t extents = plan.source->extent_count();
  ASSIGN_OR_RETURN(SharedMemory memory, CreateSharedMemory(absl::StrCat("sluice-pins-", options.id),
                                                           PinsBytes(extents), PeerAccess::kReadWrite));
  Populate(memory.map.data(), memory.map.bytes());  // leases are random accesses: no faults, few TLB misses
  PinsHeader header{};
  header.magic = kPinsMagic;
  header.abi_version = kAbiVersion;
  header.entry_bytes = sizeof(PinEntry);
  header.boot_epoch = options.boot_epoch;
  header.pack = plan.pack;
  header.extent_count = extents;
  header.session = options.id;
  std::memcpy(memory.map.data(), &header, sizeof(header));
  return memory;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Create(Options options) {
  std::unique_ptr<Session> session(new Session(std::move(options)));
  const Options& o = session->options_;
  ASSIGN_OR_RETURN(SharedMemory control, CreateSharedMemory(absl::StrCat("sluice-control-", o.id),
                                                            o.layout.region_bytes(), PeerAccess::kReadWrite));
  session->control_ = std::make_shared<SharedMemory>(std::move(control));
  session->view_ = FormatControl(session->control_->map.data(), o.layout, o.boot_epoch, o.id,
                                 static_cast<uint32_t>(o.packs.size()));
  session->submissions_ = SubmissionReader(session->view_);
  session->completions_ = CompletionWriter(session->view_);
  for (const SessionPackPlan& plan : o.packs) {
    ASSIGN_OR_RETURN(SharedMemory pins, CreatePins(o, plan));
    session->pins_.push_back(std::move(pins));
  }
  session->server_bell_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!session->server_bell_.valid()) {
    return ErrnoToStatus(errno, "eventfd of a session");
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return ErrnoToStatus(errno, "pipe of a session");
  }
  session->client_bell_read_.reset(ends[0]);
  session->client_bell_write_.reset(ends[1]);
  ASSIGN_OR_RETURN(session->process_, ProcessFdOfSelf());
  return session;
}

const PinEntry* Session::pins(size_t pack_index) const {
  return reinterpret_cast<const PinEntry*>(pins_[pack_index].map.data() + sizeof(PinsHeader));
}

std::vector<const ExtentSource*> Session::sources() const {
  std::vector<const ExtentSource*> sources;
  for (const SessionPackPlan& plan : options_.packs) {
    sources.push_back(plan.source);
  }
  return sources;
}

std::vector<SlabView> Session::MappedSlabs() const {
  std::vector<SlabView> mapped;
  for (const auto& [number, record] : slabs) {
    if (record.slab != nullptr) {
      mapped.push_back({number, record.slab->bytes()});
    }
  }
  return mapped;
}

uint64_t Session::SlabBytes(HandleKind kind) const {
  uint64_t bytes = 0;
  for (const auto& [number, record] : slabs) {
    bytes += record.slab != nullptr && record.slab->kind() == kind ? record.slab->bytes() : 0;
  }
  return bytes;
}

std::vector<int> Session::fds() const {
  std::vector<int> fds = {control_->fd.get(), server_bell_.get(), client_bell_read_.get(), process_.get()};
  for (size_t i = 0; i < pins_.size(); ++i) {
    fds.push_back(options_.packs[i].residency_fd);
    fds.push_back(pins_[i].fd.get());
  }
  return fds;
}

RingResult Session::Pop(SubmissionEntry* entry, std::vector<uint32_t>* neurons) {
  const RingResult result = submissions_.Peek(entry);
  if (result != RingResult::kOk) {
    return result;
  }
  neurons->clear();
  const uint64_t list_end = uint64_t{entry->list_offset} + entry->list_count;
  if (entry->opcode == Opcode::kTransfer && list_end <= options_.layout.list_entries) {
    for (uint64_t i = entry->list_offset; i < list_end; ++i) {
      neurons->push_back(view_.list[i].load(std::memory_order_relaxed));
    }
  }
  submissions_.Advance();
  // The client's head, read after the submission, shows how many completions it has room for.
  uint64_t reaped;
  if (completions_.Reaped(&reaped) != RingResult::kOk ||
      submissions_.head() - reaped > options_.layout.ring_entries) {
    return RingResult::kCorrupt;
  }
  ++requests;
  return RingResult::kOk;
}

void Session::Deliver(const CompletionEntry& entry, std::vector<ExtentId> held, const ExtentStore& store) {
  if (!out.empty() || !delayed_.empty()) {
    delayed_.push_back(DelayedCompletion{entry, std::move(held)});
    return;
  }
  Complete(entry, std::move(held), store);
}

void Session::CompleteDelayed(const ExtentStore& store) {
  while (!delayed_.empty()) {
    DelayedCompletion next = std::move(delayed_.front());
    delayed_.pop_front();
    Complete(next.entry, std::move(next.held), store);
  }
}

void Session::Complete(const CompletionEntry& entry, std::vector<ExtentId> held, const ExtentStore& store) {
  uint64_t bytes = 0;
  for (ExtentId extent_id : held) {
    bytes += store.length(extent_id);
  }
  const uint64_t sequence = completions_.Push(entry);
  unannounced_ = true;
  if (!held.empty()) {
    holds_.push_back(Hold{sequence, std::move(held), bytes});
    held_bytes_ += bytes;
  }
}

bool Session::ReleaseReaped(ExtentStore* store) {
  uint64_t reaped;
  if (completions_.Reaped(&reaped) != RingResult::kOk) {
    return false;
  }
  while (!holds_.empty() && holds_.front().sequence < reaped) {
    for (ExtentId extent_id : holds_.front().extents) {
      store->Unpin(extent_id);
    }
    held_bytes_ -= holds_.front().bytes;
    holds_.pop_front();
  }
  return true;
}

void Session::ReleaseAll(ExtentStore* store) {
  for (const Hold& hold : holds_) {
    for (ExtentId extent_id : hold.extents) {
      store->Unpin(extent_id);
    }
  }
  holds_.clear();
  held_bytes_ = 0;
  for (const DelayedCompletion& completion : delayed_) {
    for (ExtentId extent_id : completion.held) {
      store->Unpin(extent_id);
    }
  }
  delayed_.clear();
}

void Session::WakeClient() {
  if (!unannounced_) {
    return;
  }
  unannounced_ = false;
  if (completions_.ClaimClientWake()) {
    ProtocolStep(ProtocolPoint::kWake, &view_.cursors->client_waiting);
    const char byte = 1;
    // A full pipe is as good: the client already has wakes to read.
    [[maybe_unused]] const ssize_t written = write(client_bell_write_.get(), &byte, 1);
  }
}

void Session::SetProgress(uint32_t word, uint64_t value) {
  view_.progress[word].store(value, std::memory_order_release);
}

int64_t Session::LastSign(int64_t now) {
  const ControlCursors& cursors = *view_.cursors;
  const std::array<uint64_t, 3> seen = {cursors.submission_tail.value.load(std::memory_order_relaxed),
                                        cursors.completion_head.value.load(std::memory_order_relaxed),
                                        cursors.last_stamp.value.load(std::memory_order_relaxed)};
  if (seen != seen_ || last_sign_nanos_ == 0) {
    seen_ = seen;
    last_sign_nanos_ = now;
  }
  return last_sign_nanos_;
}

void Session::NoteStamp(uint64_t clock) {
  timeline_.Note(view_.cursors->last_stamp.value.load(std::memory_order_relaxed), clock);
}

Session* SessionTable::Add(std::unique_ptr<Session> session) {
  std::unique_ptr<Session>& place = sessions_[session->id()];
  place = std::move(session);
  return place.get();
}

Session* SessionTable::Find(uint64_t session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second.get();
}

std::set<uint32_t> SessionTable::Packs() const {
  std::set<uint32_t> packs;
  for (const auto& [id, session] : sessions_) {
    for (const SessionPackPlan& plan : session->options().packs) {
      packs.insert(plan.pack);
    }
  }
  return packs;
}

void SessionTable::MarkForClose(uint64_t session, bool misbehaved, const std::string& why) {
  if (std::any_of(marked_.begin(), marked_.end(),
                  [session](const MarkedSession& marked) { return marked.session == session; })) {
    return;
  }
  marked_.push_back(MarkedSession{session, misbehaved});
  log_->Say(misbehaved ? LogSeverity::kWarning : LogSeverity::kInfo,
            absl::StrCat("session ", session, misbehaved ? " misbehaved and is ended: " : ": ", why));
}

}  // namespace sluice::weightd
