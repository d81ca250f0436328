// The weightd program: reads its options, starts a WeightdServer, and ends it when told to.
#include <poll.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/net/inherited_sockets.h"
#include "common/process_signals.h"
#include "common/ring/unique_fd.h"
#include "common/service_notifier.h"
#include "common/status.h"
#include "weightd/progress_watch.h"
#include "weightd/stop_guard.h"
#include "weightd/weightd_options.h"
#include "weightd/weightd_server.h"

namespace sluice {
namespace {

constexpr int kFailed = 1;
constexpr absl::Duration kSessionCheck = absl::Milliseconds(20);
// However short the drain time: what ends in order takes a moment.
constexpr absl::Duration kLeastStop = absl::Seconds(1);
// One phase of the start takes less: opening a pack, waiting for memory, a first fetch from a slow disk.
constexpr absl::Duration kPhaseLimit = absl::Seconds(90);

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

// A segment of 256 MiB is a descriptor, and so is a session's every region: the usual soft limit of 1024
// would end a large store. Best effort: the hard limit is the administrator's.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

// The loop of main's thread: what may end the process, reloads, and what the service manager wants to hear.
class Lifetime {
 public:
  Lifetime(const WeightdOptions& options, int argc, const char* const* argv, ProcessSignals* signals,
           spdlog::logger* logger)
      : options_(options),
        argc_(argc),
        argv_(argv),
        signals_(signals),
        logger_(logger),
        lifeline_(options.parent_lifeline),
        beat_(notifier_.watchdog() / 3) {}

  const ServiceNotifier& notifier() const { return notifier_; }
  absl::Duration drain_timeout() const { return options_.drain_timeout; }

  // Returns when it is time to end, with the reason.
  std::string AwaitEnd(WeightdServer* server) {
    absl::Time next_beat = absl::Now();
    while (true) {
      if (absl::Now() >= next_beat) {
        Beat(&server->store());
        next_beat = absl::Now() + beat_;
      }
      pollfd polled[2] = {{signals_->fd(), POLLIN, 0}, {lifeline_.get(), POLLIN, 0}};
      if (poll(polled, 2, PollMs(next_beat)) < 0) {
        continue;  // EINTR
      }
      switch (polled[0].revents != 0 ? signals_->Take() : SignalKind::kNone) {
        case SignalKind::kEnd:
          return "told by a signal";
        case SignalKind::kReload:
          Reload(server);
          break;
        case SignalKind::kNone:
          break;
      }
      if (polled[1].revents != 0 && LifelineEnded()) {
        lifeline_.reset();
        end_at_ = absl::Now() + options_.keep;
      }
      if (absl::Now() >= end_at_) {
        return "the parent has gone";
      }
    }
  }

 private:
  int PollMs(absl::Time next_beat) const {
    const absl::Duration left = std::min(next_beat, end_at_) - absl::Now();
    return left > absl::Hours(1)
               ? 3'600'000
               : static_cast<int>(absl::ToInt64Milliseconds(std::max(left, absl::ZeroDuration()))) + 1;
  }

  bool LifelineEnded() {
    char byte;
    return read(lifeline_.get(), &byte, 1) <= 0;
  }

  // Only progress is reported: a pump or a disk that hangs must end in a restart.
  void Beat(WeightStore* store) {
    if (notifier_.watchdog() == absl::InfiniteDuration()) {
      return;
    }
    const std::string stuck = watch_.Look(store->Progress(), MonotonicClock().NowNanos());
    store->Nudge();
    if (stuck.empty()) {
      notifier_.Watchdog();
    } else {
      logger_->error("nothing moves: {}", stuck);
    }
  }

  void Reload(WeightdServer* server) {
    notifier_.Reloading();
    const WeightdCommand read = ParseWeightdCommand(argc_, argv_);
    if (read.exit_code.has_value()) {
      logger_->error("the options that were read anew are wrong; those in effect stay");
    } else {
      const ReloadPlan plan =
          PlanReload(OptionTextsOf(options_), OptionTextsOf(read.options), ReloadableWeightdOptions());
      const std::string metrics = options_.metrics;
      options_ = WithReloaded(std::move(options_), read.options);
      logger_->set_level(spdlog::level::from_str(options_.log_level));
      const absl::Status applied = server->Reload(options_);
      logger_->log(plan.needs_restart.empty() ? spdlog::level::info : spdlog::level::warn,
                   "options read anew: {}", plan.Describe());
      if (!applied.ok()) {
        logger_->error("metrics stay as they were: {}", applied.ToString());
        options_.metrics = metrics;
      }
    }
    notifier_.Ready();
  }

  WeightdOptions options_;  // in effect
  const int argc_;
  const char* const* const argv_;
  ProcessSignals* const signals_;
  spdlog::logger* const logger_;
  const ServiceNotifier notifier_;
  UniqueFd lifeline_;
  const absl::Duration beat_;
  ProgressWatch watch_;
  absl::Time end_at_ = absl::InfiniteFuture();
};

// Lets sessions end; a second signal cuts the wait.
void DrainSessions(WeightdServer* server, absl::Duration patience, ProcessSignals* signals,
                   spdlog::logger* logger) {
  server->Drain();
  const absl::Time end = absl::Now() + patience;
  while (server->open_sessions() > 0 && absl::Now() < end && !signals->AwaitEnd(kSessionCheck)) {
  }
  if (const size_t left = server->open_sessions(); left > 0) {
    logger->warn("{} sessions are still open", left);
  }
}

int Serve(const WeightdOptions& options, int argc, const char* const* argv, spdlog::logger* logger,
          const LogFn& log) {
  auto signals = ProcessSignals::Block();
  auto inherited = InheritedSockets::Take();
  for (const absl::Status& status : {signals.status(), inherited.status()}) {
    if (!status.ok()) {
      logger->error("cannot start: {}", status.ToString());
      return kFailed;
    }
  }
  RaiseFileLimit();
  Lifetime lifetime(options, argc, argv, &*signals, logger);
  const ServiceNotifier& notifier = lifetime.notifier();
  WeightdServer::Extras extras;
  extras.inherited = &*inherited;
  extras.self_test = true;
  extras.on_phase = [&](const std::string& what) {
    notifier.Status(what);
    notifier.ExtendStart(kPhaseLimit + options.budget_wait);
  };
  auto server = WeightdServer::Start(options, log, std::move(extras));
  if (const absl::Status status = server.ok() ? inherited->CheckAllClaimed() : server.status();
      !status.ok()) {
    logger->error("cannot start: {}", status.ToString());
    return kFailed;
  }
  logger->info("{}", (*server)->Describe());
  notifier.Status(absl::StrCat("serving ", options.packs.size(), " packs on ", options.socket));
  notifier.Ready();
  const std::string reason = lifetime.AwaitEnd(server->get());
  logger->info("ending: {}", reason);
  notifier.Stopping();
  notifier.Status(absl::StrCat("ending: ", reason));
  DrainSessions(server->get(), lifetime.drain_timeout(), &*signals, logger);
  {
    const StopGuard guard(std::max(lifetime.drain_timeout(), kLeastStop), [logger] {
      logger->error("ended with reads that the disk has not answered");
      logger->flush();
      _exit(0);
    });
    server->reset();
  }
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
  return sluice::Serve(command.options, argc, argv, logger.get(), sluice::LogTo(logger));
}
