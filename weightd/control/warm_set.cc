#include "weightd/control/warm_set.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "pack/pack.h"
#include "weightd/control/prefetch_session.h"

namespace sluice::weightd {
namespace {

// Maximum number of outstanding prefetches: enough to keep the reader busy, few enough to end soon.
constexpr uint32_t kWindow = 16;

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
  {
    const MutexLock lock(&mutex_);
    sets_[number] = std::move(set);
    progress_[number] = WarmProgress{number, extents, 0, true};
    due_.insert(number);
    if (thread_ == nullptr) {
      thread_ = std::make_unique<std::thread>([this] { Run(); });
    }
  }
  eventfd_write(event_.get(), 1);
  return extents;
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
  const MutexLock lock(&mutex_);
  return stopping_ || due_.contains(pack);
}

void WarmSets::Run() {
  while (true) {
    std::optional<uint32_t> next;
    WarmSet set;
    {
      const MutexLock lock(&mutex_);
      if (stopping_) {
        return;
      }
      if (!due_.empty()) {
        next = *due_.begin();
        due_.erase(*next);
        set = sets_[*next];
      }
    }
    if (next.has_value()) {
      Warm(*next, set);
      continue;
    }
    pollfd polled{event_.get(), POLLIN, 0};
    poll(&polled, 1, -1);
    eventfd_t count;
    eventfd_read(event_.get(), &count);
  }
}

void WarmSets::Warm(uint32_t number, const WarmSet& set) {
  const std::vector<uint32_t> extents = ExtentsOf(*store_->Look(&StoreCore::pack, number), set);
  const size_t asked = Read(number, extents);
  {
    const MutexLock lock(&mutex_);
    progress_[number].reading = due_.contains(number);
  }
  log_(LogSeverity::kInfo,
       absl::StrCat("warm set of pack ", number, ": asked for ", asked, " of ", extents.size(), " extents"));
}

size_t WarmSets::Read(uint32_t number, const std::vector<uint32_t>& extents) {
  const Pack& pack = *store_->Look(&StoreCore::pack, number);
  auto session = PrefetchSession::Open(store_, number, "warm set");
  if (!session.ok()) {
    log_(LogSeverity::kWarning, absl::StrCat("warm set of pack ", number, ": ", session.status().message()));
    return 0;
  }
  const uint64_t budget = store_->Look(&StoreCore::Stats).dram_budget;
  uint64_t bytes = 0;
  size_t next = 0;
  bool stop = false;
  while (!stop || (*session)->outstanding() > 0) {
    while (!stop && (*session)->outstanding() < kWindow) {
      stop = next == extents.size() || (bytes += pack.extents()[extents[next]].length) > budget ||
             Superseded(number) || !(*session)->Prefetch(extents[next++]);
    }
    if ((*session)->outstanding() == 0) {
      break;  // nothing to wait for: an empty set
    }
    const auto completion = (*session)->Take();
    if (!completion.ok()) {
      log_(LogSeverity::kWarning,
           absl::StrCat("warm set of pack ", number, ": ", completion.status().message()));
      return next;
    }
    if (!completion->has_value()) {
      if (Superseded(number)) {
        return next;
      }
      (*session)->Sleep(event_.get());
      continue;
    }
    if ((*completion)->code == 0) {
      NoteDone(number);
    } else {
      stop = true;
    }
  }
  return next;
}

}  // namespace sluice::weightd
