#include "cli/ui/file_lock.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/size.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

// flock has no time limit of its own: how often a held lock is tried again.
constexpr int kLockRetryMs = 10;
// A wait that people begin to wonder about.
constexpr absl::Duration kNoticeAfter = absl::Seconds(1);

// Daemons write their process into the file that they lock; others leave it empty.
std::string LockHolder(int fd) {
  char text[32];
  const ssize_t n = pread(fd, text, sizeof(text), 0);
  const absl::string_view pid = absl::StripAsciiWhitespace(absl::string_view(text, n > 0 ? n : 0));
  return pid.empty() ? "another process" : absl::StrCat("process ", pid);
}

}  // namespace

absl::StatusOr<UniqueFd> LockFile(const std::string& path, absl::Duration patience,
                                  const std::atomic<bool>* cancel,
                                  const std::function<void(const std::string&)>& on_wait) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, absl::StrCat("cannot open the lock ", path));
  }
  const absl::Time start = absl::Now();
  const absl::Time deadline = start + patience;
  bool told = !on_wait;
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return ErrnoToStatus(errno, absl::StrCat("cannot lock ", path));
    }
    if (cancel != nullptr && cancel->load()) {
      return absl::CancelledError("interrupted");
    }
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(path, " is still locked by another process after ", FormatTimeSpan(patience)));
    }
    if (!told && absl::Now() - start >= kNoticeAfter) {
      told = true;
      on_wait(LockHolder(fd.get()));
    }
    poll(nullptr, 0, kLockRetryMs);
  }
  return fd;
}

}  // namespace sluice::cli
