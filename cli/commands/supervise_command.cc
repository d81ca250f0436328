// `sluice supervise`: runs the supervisor (supervisor.h). Internal: only `sluice` itself starts it.

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "cli/command_line.h"
#include "cli/supervisor.h"

namespace sluice::cli {

int RunSupervise(const CommandContext& context, const std::vector<std::string>& args) {
  const absl::StatusOr<SupervisorOptions> options = ParseSupervisorArguments(args);
  if (!options.ok()) {
    return Fail("sluice supervise", options.status(), false);
  }
  const UniqueFd cancel(eventfd(0, EFD_CLOEXEC));
  const ScopedInterruptCall on_interrupt(context.interrupt, [&cancel] {
    const uint64_t one = 1;
    // Cannot fail: the counter is 0.
    const ssize_t written = write(cancel.get(), &one, sizeof(one));
    static_cast<void>(written);
  });
  const absl::Status status = Supervise(*options, kInheritedFd, cancel.get());
  return status.ok() ? kExitOk : Fail("sluice supervise", status, false);
}

}  // namespace sluice::cli
