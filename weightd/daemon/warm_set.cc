#include "weightd/daemon/warm_set.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/protocol/side_channel.h"
#include "pack/pack.h"

namespace sluice::weightd {

absl::StatusOr<std::unique_ptr<PrefetchSession>> PrefetchSession::Open(WeightStore* store, uint32_t pack,
                                                                       const std::string& name) {
  SessionParams params;
  params.packs = {pack};
  params.client_name = name;
  params.compute_threads = 0;
  ASSIGN_OR_RETURN(const SessionHandle handle, store->Control(&StoreCore::OpenSession, params));
  std::unique_ptr<PrefetchSession> session(new PrefetchSession(store, handle.session));
  session->server_bell_ = handle.fds[WelcomeFds::kServerBell];
  session->client_bell_ = handle.fds[WelcomeFds::kClientBell];
  ASSIGN_OR_RETURN(session->control_, MapSharedMemory(handle.fds[WelcomeFds::kControl], handle.control_bytes,
                                                      /*writable=*/true, /*populate=*/false));
  ASSIGN_OR_RETURN(const ControlView view, OpenControl(session->control_.data(), session->control_.bytes()));
  session->submissions_.emplace(view);
  session->completions_.emplace(view);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoToStatus(errno, "socket pair");
  }
  session->side_.reset(ends[0]);
  RETURN_IF_ERROR(store->Control(&StoreCore::AttachSideSocket, handle.session, UniqueFd(ends[1])));
  return session;
}

PrefetchSession::~PrefetchSession() {
  store_->Control(&StoreCore::CloseSession, session_).IgnoreError();  // NOT_FOUND: the store ended it before
}

bool PrefetchSession::Request(uint32_t extent, RequestClass request_class) {
  SubmissionEntry entry{};
  entry.id = next_id_;
  entry.opcode = Opcode::kFillExtent;
  entry.request_class = request_class;
  entry.extent = extent;
  entry.slab = kNoSlab;
  entry.progress = kNoProgress;
  if (submissions_->Push(entry) != RingResult::kOk) {
    return false;
  }
  ++next_id_;
  ++outstanding_;
  if (submissions_->ClaimServerWake()) {
    eventfd_write(server_bell_, 1);
  }
  return true;
}

absl::StatusOr<std::optional<CompletionEntry>> PrefetchSession::Take() {
  AnswerSide();
  CompletionEntry entry;
  const RingResult result = completions_->Peek(&entry);
  if (result == RingResult::kOk) {
    completions_->Advance();
    --outstanding_;
    return entry;
  }
  if (ended_ || result == RingResult::kCorrupt) {
    return absl::FailedPreconditionError("the session was ended");
  }
  return std::nullopt;
}

void PrefetchSession::Sleep(int event) {
  if (!completions_->BeginWait()) {
    return;
  }
  pollfd polled[3] = {{client_bell_, POLLIN, 0}, {side_.get(), POLLIN, 0}, {event, POLLIN, 0}};
  poll(polled, 3, -1);
  completions_->EndWait();
  char bytes[64];
  while ((polled[0].revents & POLLIN) != 0 && read(client_bell_, bytes, sizeof(bytes)) == sizeof(bytes)) {
  }
}

// This session maps nothing, so a retired segment is unmapped already.
void PrefetchSession::AnswerSide() {
  while (!ended_) {
    const auto packet = ReceiveSideMessage(side_.get());
    if (absl::IsUnavailable(packet.status())) {
      return;
    }
    ended_ = !packet.ok();
    if (packet.ok() && packet->message.type == SideType::kSegmentRetired) {
      SideMessage answer;
      answer.type = SideType::kSegmentUnmapped;
      answer.session = session_;
      answer.segment = packet->message.segment;
      ended_ = !SendSideMessage(side_.get(), answer).ok();
    }
  }
}

namespace {

// Maximum number of outstanding prefetches: enough to keep the reader busy, few enough to end soon.
constexpr uint32_t kWindow = 16;
// The same for a preload, so that a request finds few reads before its own.
constexpr uint32_t kIdleWindow = 2;
// Time without a read of others before a preload reads: a model that starts, or a prompt, reads with gaps,
// and is not to share the disk and the CPUs.
constexpr absl::Duration kQuiet = absl::Seconds(1);
// Pause between two looks whether reads are in flight.
constexpr int kIdleLookMs = 2;

// All of a pack's dense weights and experts, without its tables of rows.
WarmSet WholePack(const Pack& pack) {
  WarmSet set;
  set.dense = true;
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < pack.expert_count(layer); ++expert) {
      set.experts.push_back({layer, expert});
    }
  }
  return set;
}

absl::Status CheckExperts(const Pack& pack, const WarmSet& set) {
  if (set.experts.size() > pack.expert_total()) {
    return absl::InvalidArgumentError(
        absl::StrCat("experts: ", set.experts.size(), " are named, the pack has ", pack.expert_total()));
  }
  for (const WarmExpert& e : set.experts) {
    if (e.layer >= pack.config().layers.size() || e.expert >= pack.expert_count(e.layer)) {
      return absl::InvalidArgumentError(
          absl::StrCat("experts: there is no expert ", e.expert, " in layer ", e.layer));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<uint32_t> ExtentsOf(const Pack& pack, const WarmSet& set) {
  std::vector<uint32_t> extents;
  for (uint32_t i = 0; set.dense && i < pack.dense_extent_count(); ++i) {
    extents.push_back(i);
  }
  for (const WarmExpert& e : set.experts) {
    const ExtentRange range = pack.expert_extents(e.layer, e.expert);
    for (uint32_t i = 0; i < range.count; ++i) {
      extents.push_back(range.first + i);
    }
  }
  return extents;
}

absl::StatusOr<std::unique_ptr<WarmSets>> WarmSets::Create(WeightStore* store, LogFn log) {
  UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) {
    return ErrnoToStatus(errno, "eventfd");
  }
  return std::unique_ptr<WarmSets>(new WarmSets(store, std::move(log), std::move(event)));
}

WarmSets::~WarmSets() {
  std::unique_ptr<std::thread> thread;
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
    thread = std::move(thread_);
  }
  eventfd_write(event_.get(), 1);
  if (thread != nullptr) {
    thread->join();
  }
}

absl::StatusOr<uint32_t> WarmSets::Set(uint32_t number, WarmSet set) {
  const Pack& pack = *store_->Look(&StoreCore::pack, number);
  RETURN_IF_ERROR(CheckExperts(pack, set));
  if (store_->Look(&StoreCore::draining)) {
    return absl::UnavailableError("weightd is draining");
  }
  const auto extents = static_cast<uint32_t>(ExtentsOf(pack, set).size());
  const MutexLock lock(&mutex_);
  sets_[number] = std::move(set);
  Begin(number, extents);
  return extents;
}

void WarmSets::Preload() {
  std::vector<const Pack*> packs(store_->Look(&StoreCore::pack_count));
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < packs.size(); ++i) {
    packs[i] = store_->Look(&StoreCore::pack, i);
    bytes += packs[i]->dense_bytes() + packs[i]->row_bytes() + packs[i]->total_expert_bytes();
  }
  if (bytes > store_->Look(&StoreCore::Stats).dram_budget) {
    return;
  }
  const MutexLock lock(&mutex_);
  for (uint32_t i = 0; i < packs.size(); ++i) {
    if (!progress_.contains(i))
      Begin(i, static_cast<uint32_t>(ExtentsOf(*packs[i], WholePack(*packs[i])).size()));
  }
}

void WarmSets::Begin(uint32_t number, uint32_t extents) {
  progress_[number] = WarmProgress{number, extents, 0, true};
  due_.insert(number);
  if (thread_ == nullptr) {
    thread_ = std::make_unique<std::thread>([this] { Run(); });
  }
  eventfd_write(event_.get(), 1);
}

WarmSet WarmSets::Get(uint32_t pack) const {
  const MutexLock lock(&mutex_);
  const auto found = sets_.find(pack);
  return found == sets_.end() ? WarmSet{} : found->second;
}

std::vector<WarmProgress> WarmSets::Progress() const {
  const MutexLock lock(&mutex_);
  std::vector<WarmProgress> all;
  for (const auto& [pack, progress] : progress_) {
    all.push_back(progress);
  }
  return all;
}

void WarmSets::NoteDone(uint32_t pack) {
  const MutexLock lock(&mutex_);
  if (!due_.contains(pack)) {
    ++progress_[pack].done;
  }
}

bool WarmSets::Superseded(uint32_t pack) const {
  if (store_->Look(&StoreCore::draining)) {
    return true;  // weightd waits for open sessions to end
  }
  const MutexLock lock(&mutex_);
  return stopping_ || due_.contains(pack);
}

const char* WarmSets::NameOf(Pace pace) { return pace == Pace::kIdle ? "preload" : "warm set"; }

void WarmSets::Run() {
  while (true) {
    std::optional<uint32_t> next;
    std::optional<WarmSet> set;  // none: the pack is preloaded
    {
      const MutexLock lock(&mutex_);
      if (stopping_) {
        return;
      }
      if (!due_.empty()) {
        next = *due_.begin();
        due_.erase(*next);
        if (const auto found = sets_.find(*next); found != sets_.end()) set = found->second;
      }
    }
    if (next.has_value()) {
      const Pace pace = set.has_value() ? Pace::kFull : Pace::kIdle;
      Warm(*next, set.has_value() ? *set : WholePack(*store_->Look(&StoreCore::pack, *next)), pace);
      continue;
    }
    pollfd polled{event_.get(), POLLIN, 0};
    poll(&polled, 1, -1);
    eventfd_t count;
    eventfd_read(event_.get(), &count);
  }
}

void WarmSets::Warm(uint32_t number, const WarmSet& set, Pace pace) {
  const std::vector<uint32_t> extents = ExtentsOf(*store_->Look(&StoreCore::pack, number), set);
  const size_t asked = Read(number, extents, pace);
  {
    const MutexLock lock(&mutex_);
    progress_[number].reading = due_.contains(number);
  }
  log_(LogSeverity::kInfo, absl::StrCat(NameOf(pace), " of pack ", number, ": asked for ", asked, " of ",
                                        extents.size(), " extents"));
}

void WarmSets::AwaitIdle(uint32_t number, uint64_t own_bytes, absl::Time* last_read) {
  bool was_busy = false;
  while (!Superseded(number)) {
    const absl::Time now = SteadyNow();
    const bool is_busy = store_->Progress().in_flight_bytes > own_bytes;
    if (is_busy && was_busy) {
      *last_read = now;  // seen once it may be an own read, whose end is not counted yet
    } else if (!is_busy && now - *last_read >= kQuiet) {
      return;
    }
    was_busy = is_busy;
    pollfd polled{event_.get(), POLLIN, 0};
    poll(&polled, 1, kIdleLookMs);
  }
}

size_t WarmSets::Read(uint32_t number, const std::vector<uint32_t>& extents, Pace pace) {
  const Pack& pack = *store_->Look(&StoreCore::pack, number);
  auto session = PrefetchSession::Open(store_, number, NameOf(pace));
  if (!session.ok()) {
    log_(LogSeverity::kWarning,
         absl::StrCat(NameOf(pace), " of pack ", number, ": ", session.status().message()));
    return 0;
  }
  const uint64_t budget = store_->Look(&StoreCore::Stats).dram_budget;
  const uint32_t window = pace == Pace::kIdle ? kIdleWindow : kWindow;
  uint64_t bytes = 0;                  // of all requests
  uint64_t own_bytes = 0;              // of those without completion
  absl::Time last_read = SteadyNow();  // of others
  size_t next = 0;
  bool stop = false;
  while (!stop || (*session)->outstanding() > 0) {
    while (!stop && (*session)->outstanding() < window) {
      if (pace == Pace::kIdle) AwaitIdle(number, own_bytes, &last_read);
      stop = next == extents.size() || (bytes += pack.extents()[extents[next]].length) > budget ||
             Superseded(number) || !(*session)->Prefetch(extents[next]);
      if (!stop) own_bytes += pack.extents()[extents[next++]].length;
    }
    if ((*session)->outstanding() == 0) {
      break;  // nothing to wait for: an empty set
    }
    const auto completion = (*session)->Take();
    if (!completion.ok()) {
      log_(LogSeverity::kWarning,
           absl::StrCat(NameOf(pace), " of pack ", number, ": ", completion.status().message()));
      return next;
    }
    if (!completion->has_value()) {
      if (Superseded(number)) {
        return next;
      }
      (*session)->Sleep(event_.get());
      continue;
    }
    // A session numbers its requests from 1.
    own_bytes -= pack.extents()[extents[(*completion)->id - 1]].length;
    if ((*completion)->code == 0) {
      NoteDone(number);
    } else {
      stop = true;
    }
  }
  return next;
}

namespace {

// The smallest extent of each file.
std::vector<uint32_t> Candidates(const Pack& pack) {
  std::vector<uint32_t> found;
  for (uint32_t extent = 0; extent < pack.extent_count(); ++extent) {
    bool known = false;
    for (uint32_t& candidate : found) {
      if (pack.extents()[candidate].file == pack.extents()[extent].file) {
        known = true;
        candidate = pack.extents()[extent].length < pack.extents()[candidate].length ? extent : candidate;
      }
    }
    if (!known) {
      found.push_back(extent);
    }
  }
  return found;
}

absl::StatusOr<UniqueFd> Alarm(absl::Time deadline) {
  UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  itimerspec when{};
  // A time of zero would disarm the timer.
  when.it_value = absl::ToTimespec(std::max(deadline - SteadyNow(), absl::Nanoseconds(1)));
  if (!timer.valid() || timerfd_settime(timer.get(), 0, &when, nullptr) != 0) {
    return ErrnoToStatus(errno, "timer");
  }
  return timer;
}

absl::Status FetchOne(PrefetchSession* session, const Pack& pack, uint32_t extent, absl::Time deadline) {
  ASSIGN_OR_RETURN(const UniqueFd alarm, Alarm(deadline));
  if (!session->Request(extent, RequestClass::kDemand)) {
    return absl::InternalError("the ring of a fresh session is full");
  }
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<CompletionEntry> entry, session->Take());
    if (entry.has_value()) {
      const auto code = static_cast<absl::StatusCode>(entry->code);
      return absl::Status(code, code == absl::StatusCode::kOk
                                    ? ""
                                    : absl::StrCat("pack ", pack.dir(), ": a test fetch of extent ", extent,
                                                   " (", pack.extents()[extent].length, " bytes) failed"));
    }
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("pack ", pack.dir(), ": a test fetch of extent ", extent, " has not ended in time"));
    }
    session->Sleep(alarm.get());
  }
}

}  // namespace

absl::Status FetchForTest(WeightStore* store, uint32_t number, absl::Duration timeout) {
  const Pack* pack = store->Look(&StoreCore::pack, number);
  if (pack == nullptr) {
    return absl::NotFoundError(absl::StrCat("there is no pack ", number, " to fetch from"));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<PrefetchSession> session,
                   PrefetchSession::Open(store, number, "self-test"));
  const absl::Time deadline = SteadyNow() + timeout;
  absl::Status status = absl::OkStatus();
  for (const uint32_t extent : Candidates(*pack)) {
    status = FetchOne(session.get(), *pack, extent, deadline);
    if (status.ok()) {
      return status;
    }
  }
  return status;
}

}  // namespace sluice::weightd
