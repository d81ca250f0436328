// The inferd program: parses its options, starts an InferdDaemon, reports progress to the service manager,
// and stops on a signal.

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/base/unix_listener.h"
#include "daemon/daemon_loop.h"
#include "daemon/grpc_server.h"
#include "inferd/daemon/daemon.h"
#include "inferd/daemon/inferd_options.h"
#include "spdlog/logger.h"

namespace sluice::inferd {
namespace {

constexpr int kFailed = 1;
// Interval of progress reports to the service manager during a long start.
constexpr absl::Duration kHeartbeat = absl::Seconds(5);
constexpr absl::Duration kStartExtension = absl::Seconds(30);
// Interval at which a second signal is checked while answers finish.
constexpr absl::Duration kSignalCheck = absl::Milliseconds(50);

std::string Explain(const absl::Status& status) {
  return absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
}

// State of inferd between its start and its end.
struct Process {
  int argc;
  const char* const* argv;
  spdlog::logger* log;
  InferdOptions options;  // in effect
  std::unique_ptr<InferdDaemon> daemon;
};

absl::StatusOr<ReloadPlan> Reload(Process* process) {
  const InferdCommand read = ParseInferdCommand(process->argc, process->argv);
  if (read.exit_code.has_value()) {
    return absl::InvalidArgumentError("the parser has printed why");
  }
  ReloadPlan plan = PlanReload(process->options, read.options);
  const std::string metrics = process->options.metrics;
  process->options = WithReloaded(process->options, read.options);
  process->log->set_level(spdlog::level::from_str(process->options.log_level));
  if (const absl::Status applied = process->daemon->Reload(process->options); !applied.ok()) {
    process->log->error("metrics stay as they were: {}", Explain(applied));
    process->options.metrics = metrics;
  }
  return plan;
}

// Waits for the end of the start and returns its result. CANCELLED: interrupted by a signal.
absl::Status AwaitStart(DaemonLoop* loop, InferdDaemon* daemon) {
  while (true) {
    switch (loop->Next(daemon->start_event())) {
      case DaemonLoop::Turn::kHeartbeat:
        loop->notifier().ExtendStart(kStartExtension);
        break;
      case DaemonLoop::Turn::kEvent:
        return daemon->StartStatus();
      case DaemonLoop::Turn::kEnd:
        return absl::CancelledError(loop->end_reason());
    }
  }
}

void AwaitEnd(DaemonLoop* loop, const InferdDaemon& daemon) {
  while (loop->Next() != DaemonLoop::Turn::kEnd) {
    // Reports only real progress: a hanging step must end in a restart.
    if (loop->has_watchdog() && !daemon.IsStuck()) {
      loop->notifier().Watchdog();
    }
  }
}

void NotifyPhase(const ServiceNotifier& notifier, spdlog::logger* log, const ServerState::View& view) {
  const std::string line = view.phase == ServerState::Phase::kServing ? "serving" : view.detail;
  log->info("{}", line);
  notifier.Status(line);
}

// Lets answers finish; a second signal cancels them.
void DrainAnswers(InferdDaemon* daemon, absl::Duration timeout, ProcessSignals* signals,
                  spdlog::logger* log) {
  const absl::Time end = SteadyNow() + timeout;
  while (!daemon->Drain(kSignalCheck) && SteadyNow() < end) {
    if (signals->Take() == SignalKind::kEnd) {
      log->info("told again: answers are cut");
      return;
    }
  }
}

absl::StatusOr<std::unique_ptr<InferdDaemon>> Prepare(const InferdCommand& command, spdlog::logger* log) {
  ASSIGN_OR_RETURN(InheritedSockets inherited, InheritedSockets::Take());
  ASSIGN_OR_RETURN(std::unique_ptr<InferdDaemon> daemon,
                   InferdDaemon::Prepare(
                       command.options, command.set, log,
                       [log, notifier = ServiceNotifier()](const ServerState::View& view) {
                         NotifyPhase(notifier, log, view);
                       },
                       &inherited));
  RETURN_IF_ERROR(inherited.CheckAllClaimed());
  return daemon;
}

int Run(const InferdCommand& command, int argc, const char* const* argv, spdlog::logger* log) {
  auto signals = ProcessSignals::Block();
  if (!signals.ok()) {
    log->error("cannot start: {}", Explain(signals.status()));
    return kFailed;
  }
  SkipGrpcShutdown();
  auto daemon = Prepare(command, log);
  if (!daemon.ok()) {
    log->error("cannot start: {}", Explain(daemon.status()));
    return kFailed;
  }
  Process process{argc, argv, log, command.options, *std::move(daemon)};
  log->info("{}", process.daemon->DescribeStart());
  process.daemon->Begin();
  DaemonLoop loop({UniqueFd(command.options.parent_lifeline), kHeartbeat,
                   [&process] { return process.options.keep; }, [&process] { return Reload(&process); }},
                  &*signals, log);
  if (const absl::Status started = AwaitStart(&loop, process.daemon.get()); !started.ok()) {
    const bool interrupted = absl::IsCancelled(started);
    log->log(interrupted ? spdlog::level::info : spdlog::level::err, "ended while starting: {}",
             Explain(started));
    process.daemon->Shutdown(absl::ZeroDuration());
    log->flush();
    if (interrupted) {
      // The start continues in its thread and cannot be cancelled; the process exit ends it.
      std::_Exit(0);
    }
    return kFailed;
  }
  loop.Ready();
  AwaitEnd(&loop, *process.daemon);
  log->info("ending: {}", loop.end_reason());
  loop.notifier().Stopping();
  DrainAnswers(process.daemon.get(), process.options.drain_timeout, &*signals, log);
  process.daemon.reset();
  log->info("ended");
  return 0;
}

}  // namespace
}  // namespace sluice::inferd

int main(int argc, char** argv) {
  const sluice::inferd::InferdCommand command = sluice::inferd::ParseInferdCommand(argc, argv);
  if (command.exit_code.has_value()) {
    return *command.exit_code;
  }
  const std::shared_ptr<spdlog::logger> log = sluice::NewDaemonLog("inferd", command.options.log_level);
  return sluice::inferd::Run(command, argc, argv, log.get());
}
