// The weightd program: reads its options, starts a WeightdServer, and ends it when told to.
#include <poll.h>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/ring/unique_fd.h"
#include "common/status.h"
#include "weightd/weightd_options.h"
#include "weightd/weightd_server.h"

namespace sluice {
namespace {

constexpr int kFailed = 1;
constexpr absl::Duration kSessionCheck = absl::Milliseconds(20);

std::shared_ptr<spdlog::logger> NewLogger(const std::string& level) {
  auto logger =
      std::make_shared<spdlog::logger>("weightd", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(spdlog::level::from_str(level));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  logger->flush_on(spdlog::level::info);
  return logger;
}

LogFn LogTo(std::shared_ptr<spdlog::logger> logger) {
  return [logger = std::move(logger)](LogSeverity severity, const std::string& text) {
    logger->log(severity == LogSeverity::kInfo      ? spdlog::level::info
                : severity == LogSeverity::kWarning ? spdlog::level::warn
                                                    : spdlog::level::err,
                text);
  };
}

// SIGTERM and SIGINT as a readable descriptor. Before any thread starts: they all inherit the mask.
absl::StatusOr<UniqueFd> TakeSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (sigprocmask(SIG_BLOCK, &signals, nullptr) != 0 || signal(SIGPIPE, SIG_IGN) == SIG_ERR) {
    return ErrnoToStatus(errno, "signals");
  }
  UniqueFd fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  return fd.valid() ? absl::StatusOr<UniqueFd>(std::move(fd)) : ErrnoToStatus(errno, "signalfd");
}

// A segment of 256 MiB is a descriptor, and so is a session's every region: the usual soft limit of 1024
// would end a large store. Best effort: the hard limit is the administrator's.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

// Whether a signal came within `timeout`.
bool AwaitSignal(int signals, absl::Duration timeout) {
  pollfd polled{signals, POLLIN, 0};
  const int ms =
      timeout == absl::InfiniteDuration() ? -1 : static_cast<int>(absl::ToInt64Milliseconds(timeout));
  signalfd_siginfo info;
  return poll(&polled, 1, ms) > 0 && read(signals, &info, sizeof(info)) == sizeof(info);
}

// Returns when it is time to end, with the reason.
std::string AwaitEnd(const WeightdOptions& options, int signals) {
  UniqueFd lifeline(options.parent_lifeline);
  while (true) {
    pollfd polled[2] = {{signals, POLLIN, 0}, {lifeline.get(), POLLIN, 0}};
    if (poll(polled, 2, -1) < 0) {
      continue;  // EINTR
    }
    if (polled[0].revents != 0 && AwaitSignal(signals, absl::ZeroDuration())) {
      return "told by a signal";
    }
    if (polled[1].revents != 0) {
      char byte;
      if (read(lifeline.get(), &byte, 1) <= 0) {
        return AwaitSignal(signals, options.keep) ? "told by a signal" : "the parent has gone";
      }
    }
  }
}

int Serve(const WeightdOptions& options, spdlog::logger* logger, const LogFn& log) {
  auto signals = TakeSignals();
  if (!signals.ok()) {
    logger->error("{}", signals.status().ToString());
    return kFailed;
  }
  RaiseFileLimit();
  auto server = WeightdServer::Start(options, log);
  if (!server.ok()) {
    logger->error("cannot start: {}", server.status().ToString());
    return kFailed;
  }
  logger->info("{}", (*server)->Describe());
  sd_notify(0, "READY=1");
  logger->info("ending: {}", AwaitEnd(options, signals->get()));
  sd_notify(0, "STOPPING=1");
  (*server)->Drain();
  const absl::Time patience = absl::Now() + options.drain_timeout;
  while ((*server)->open_sessions() > 0 && absl::Now() < patience &&
         !AwaitSignal(signals->get(), kSessionCheck)) {
  }
  if (const size_t left = (*server)->open_sessions(); left > 0) {
    logger->warn("{} sessions are still open", left);
  }
  server->reset();
  logger->info("ended");
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const sluice::WeightdCommand command = sluice::ParseWeightdCommand(argc, argv);
  if (command.exit_code.has_value()) {
    return *command.exit_code;
  }
  const std::shared_ptr<spdlog::logger> logger = sluice::NewLogger(command.options.log_level);
  return sluice::Serve(command.options, logger.get(), sluice::LogTo(logger));
}
