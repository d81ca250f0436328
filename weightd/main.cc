// The weightd program: reads its options, starts a WeightdServer, and ends it on a signal.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/base/unix_listener.h"
#include "daemon/daemon_loop.h"
#include "daemon/grpc_server.h"
#include "spdlog/logger.h"
#include "weightd/daemon/weightd_options.h"
#include "weightd/daemon/weightd_server.h"
#include "weightd/engine/watchdog.h"

namespace sluice::weightd {
namespace {

constexpr int kFailed = 1;
constexpr absl::Duration kSessionCheck = absl::Milliseconds(20);
// Lower bound of the stop time, however short the drain time: an orderly end needs a moment.
constexpr absl::Duration kMinStopTime = absl::Seconds(1);
// Upper bound of one phase of the start: opening a pack, waiting for memory, a first fetch from a slow disk.
constexpr absl::Duration kPhaseLimit = absl::Seconds(90);

LogFn LogTo(std::shared_ptr<spdlog::logger> logger) {
  return [logger = std::move(logger)](LogSeverity severity, const std::string& text) {
    logger->log(severity == LogSeverity::kInfo      ? spdlog::level::info
                : severity == LogSeverity::kWarning ? spdlog::level::warn
                                                    : spdlog::level::err,
                text);
  };
}

// Each segment of 256 MiB and each region of a session is a descriptor: the usual soft limit of 1024 would
// end a large store. Best effort: the hard limit is the administrator's.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

// weightd between its start and its end.
struct Process {
  int argc;
  const char* const* argv;
  spdlog::logger* log;
  WeightdOptions options;  // in effect
  std::unique_ptr<WeightdServer> server;
  ProgressWatch watch;
};

absl::StatusOr<ReloadPlan> Reload(Process* process) {
  const WeightdCommand read = ParseWeightdCommand(process->argc, process->argv);
  if (read.exit_code.has_value()) {
    return absl::InvalidArgumentError("the parser has printed why");
  }
  ReloadPlan plan = PlanReload(process->options, read.options);
  const std::string metrics = process->options.metrics;
  process->options = WithReloaded(process->options, read.options);
  process->log->set_level(spdlog::level::from_str(process->options.log_level));
  if (const absl::Status applied = process->server->Reload(process->options); !applied.ok()) {
    process->log->error("metrics stay as they were: {}", applied.ToString());
    process->options.metrics = metrics;
  }
  return plan;
}

void AwaitEnd(DaemonLoop* loop, Process* process) {
  while (loop->Next() != DaemonLoop::Turn::kEnd) {
    if (!loop->has_watchdog()) {
      continue;
    }
    // Only progress counts as alive: a pump or a disk that hangs must end in a restart.
    WeightStore& store = process->server->store();
    const std::string stuck = process->watch.Look(store.Progress(), MonotonicClock().NowNanos());
    store.Nudge();
    if (stuck.empty()) {
      loop->notifier().Watchdog();
    } else {
      process->log->error("nothing moves: {}", stuck);
    }
  }
}

// Lets sessions end; a second signal cuts the wait short.
void DrainSessions(WeightdServer* server, absl::Duration timeout, ProcessSignals* signals,
                   spdlog::logger* logger) {
  server->Drain();
  const absl::Time end = SteadyNow() + timeout;
  while (server->open_sessions() > 0 && SteadyNow() < end && !signals->AwaitEnd(kSessionCheck)) {
  }
  if (const size_t left = server->open_sessions(); left > 0) {
    logger->warn("{} sessions are still open", left);
  }
}

void Stop(Process* process, ProcessSignals* signals) {
  const absl::Duration timeout = process->options.drain_timeout;
  DrainSessions(process->server.get(), timeout, signals, process->log);
  const StopGuard guard(std::max(timeout, kMinStopTime), [log = process->log] {
    log->error("ended with reads that the disk has not answered");
    log->flush();
    _exit(0);
  });
  process->server.reset();
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
  SkipGrpcShutdown();
  RaiseFileLimit();
  Process process{argc, argv, logger, options, nullptr, {}};
  DaemonLoop loop({UniqueFd(options.parent_lifeline), absl::InfiniteDuration(),
                   [&process] { return process.options.keep; }, [&process] { return Reload(&process); }},
                  &*signals, logger);
  WeightdServer::Extras extras;
  extras.inherited = &*inherited;
  extras.self_test = true;
  extras.on_phase = [&](const std::string& what) {
    loop.notifier().Status(what);
    loop.notifier().ExtendStart(kPhaseLimit + options.budget_wait);
  };
  auto server = WeightdServer::Start(options, log, std::move(extras));
  if (const absl::Status status = server.ok() ? inherited->CheckAllClaimed() : server.status();
      !status.ok()) {
    logger->error("cannot start: {}", status.ToString());
    return kFailed;
  }
  process.server = *std::move(server);
  logger->info("{}", process.server->Describe());
  const uint32_t packs = process.server->store().Look(&StoreCore::pack_count);
  loop.notifier().Status(
      absl::StrCat("serving ", packs, packs == 1 ? " pack" : " packs", " on ", options.socket));
  loop.Ready();
  AwaitEnd(&loop, &process);
  logger->info("ending: {}", loop.end_reason());
  loop.notifier().Stopping();
  loop.notifier().Status(absl::StrCat("ending: ", loop.end_reason()));
  Stop(&process, &*signals);
  logger->info("ended");
  return 0;
}

}  // namespace
}  // namespace sluice::weightd

int main(int argc, char** argv) {
  const sluice::weightd::WeightdCommand command = sluice::weightd::ParseWeightdCommand(argc, argv);
  if (command.exit_code.has_value()) {
    return *command.exit_code;
  }
  const std::shared_ptr<spdlog::logger> logger = sluice::NewDaemonLog("weightd", command.options.log_level);
  return sluice::weightd::Serve(command.options, argc, argv, logger.get(), sluice::weightd::LogTo(logger));
}
