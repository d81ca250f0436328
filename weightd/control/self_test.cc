#include "weightd/control/self_test.h"

#include <sys/timerfd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/ring/unique_fd.h"
#include "common/status.h"
#include "pack/pack.h"
#include "weightd/control/prefetch_session.h"

namespace sluice::weightd {
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
  UniqueFd timer(timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC | TFD_NONBLOCK));
  itimerspec when{};
  when.it_value = absl::ToTimespec(deadline);
  if (!timer.valid() || timerfd_settime(timer.get(), TFD_TIMER_ABSTIME, &when, nullptr) != 0) {
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
    if (absl::Now() >= deadline) {
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
  const absl::Time deadline = absl::Now() + timeout;
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
