// `sluice top`: shows a live view of both daemons.

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "cli/command_line.h"
#include "cli/commands/top_report.h"
#include "cli/runtime_paths.h"
#include "cli/terminal.h"
#include "common/base/clock.h"
#include "common/base/runtime_dir.h"
#include "common/base/size.h"
#include "daemon/grpc_status.h"
#include "sluice/inference/v1/admin.grpc.pb.h"
#include "sluice/weights/v1/weights.grpc.pb.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kAnswerPatience = absl::Seconds(1);
constexpr absl::Duration kShortestInterval = absl::Milliseconds(10);
constexpr int kReconnectMs = 500;  // a restarted daemon is found again at the next sample
constexpr char kClearScreen[] = "\033[H\033[J";

namespace inference = ::sluice::inference::v1;
namespace weights = ::sluice::weights::v1;

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& socket) {
  grpc::ChannelArguments arguments;
  for (const char* name : {GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                           GRPC_ARG_MAX_RECONNECT_BACKOFF_MS}) {
    arguments.SetInt(name, kReconnectMs);
  }
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  return grpc::CreateCustomChannel(absl::StrCat("unix:", socket), grpc::InsecureChannelCredentials(),
                                   arguments);
}

WeightdFacts FactsOf(const weights::GetStatsResponse& stats) {
  WeightdFacts facts;
  facts.life = stats.boot_epoch();
  facts.io_engine = stats.io_engine();
  facts.dram_budget = stats.dram_budget_bytes();
  facts.segment_bytes = stats.segment_bytes();
  facts.resident_bytes = stats.resident_bytes();
  facts.in_flight_bytes = stats.in_flight_bytes();
  facts.errors = stats.checksum_failures() + stats.io_errors();
  facts.slow_reads = stats.slow_reads();
  facts.hedged_reads = stats.second_reads();
  facts.hedged_reads_won = stats.second_reads_won();
  facts.timed_out = stats.timed_out();
  facts.sessions_lost = stats.sessions_lost();
  facts.sessions_stopped = stats.sessions_stopped();
  facts.ssd_bytes = stats.bytes_read();
  facts.evictions = stats.evictions();
  for (const weights::ClassStats& of_class : stats.classes()) {
    facts.queued += of_class.queued();
    facts.resident_requests += of_class.resident_requests();
    facts.joined_requests += of_class.joined_requests();
    facts.ssd_requests += of_class.ssd_requests();
  }
  for (const weights::SessionStats& session : stats.sessions()) {
    facts.sessions.push_back(
        {session.client_name(), session.state(), session.held_bytes(), session.outstanding()});
  }
  return facts;
}

InferdFacts FactsOf(const inference::GetStatsResponse& stats) {
  InferdFacts facts;
  facts.running = stats.gauges().sequences_running();
  facts.waiting = stats.gauges().sequences_waiting();
  facts.kv_used = stats.gauges().kv_pages_used();
  facts.kv_kept = stats.resources().kv_pages_kept();
  facts.kv_total = stats.resources().kv_pages_total();
  facts.steps = stats.counters().steps();
  facts.generated_tokens = stats.counters().generated_tokens();
  facts.prompt_tokens = stats.counters().prompt_tokens();
  facts.cached_prompt_tokens = stats.counters().cached_prompt_tokens();
  facts.finished = stats.counters().requests_finished();
  facts.failed = stats.counters().requests_failed();
  facts.expert_requests = stats.counters().expert_requests();
  facts.expert_hits = stats.counters().expert_hits();
  facts.link_bytes = stats.counters().bytes_link();
  facts.stall_seconds = stats.counters().stall_seconds();
  return facts;
}

class Watcher {
 public:
  Watcher(const std::string& weightd, const std::string& inferd_admin)
      : weightd_(weights::WeightService::NewStub(ChannelTo(weightd))),
        inferd_(inference::AdminService::NewStub(ChannelTo(inferd_admin))) {}

  TopSample Look() {
    TopSample sample;
    sample.weightd = Ask<WeightdFacts, weights::GetStatsResponse>(
        [this](auto* context, auto* response) { return weightd_->GetStats(context, {}, response); },
        &sample.weightd_why);
    sample.inferd = Ask<InferdFacts, inference::GetStatsResponse>(
        [this](auto* context, auto* response) { return inferd_->GetStats(context, {}, response); },
        &sample.inferd_why);
    sample.at = SteadyNow();
    return sample;
  }

 private:
  template <typename Facts, typename Response, typename Question>
  static std::optional<Facts> Ask(const Question& question, std::string* why) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(ToWallClock(SteadyNow() + kAnswerPatience)));
    Response response;
    const absl::Status status = FromGrpcStatus(question(&context, &response));
    if (!status.ok()) {
      *why = std::string(status.message());
      return std::nullopt;
    }
    return FactsOf(response);
  }

  const std::unique_ptr<weights::WeightService::Stub> weightd_;
  const std::unique_ptr<inference::AdminService::Stub> inferd_;
};

struct TopOptions {
  std::string weightd;
  std::string admin;
  std::optional<uint64_t> iterations;
  std::optional<absl::Duration> interval;
  bool json = false;
};

// Ctrl-C is the normal end of a live view: success, not a failure.
int Watch(const CommandContext& context, const TopOptions& options) {
  Watcher watcher(options.weightd, options.admin);
  absl::Notification interrupted;
  const ScopedInterruptCall call(context.interrupt, [&interrupted] { interrupted.Notify(); });
  const bool live = StdoutIsTerminal() && !options.json;
  const uint64_t rounds = options.iterations.value_or(options.json ? 1 : UINT64_MAX);
  const TopSample first = watcher.Look();
  TopSample before = first;
  TopSample now = first;
  for (uint64_t round = 0; round < rounds; ++round) {
    if (interrupted.WaitForNotificationWithTimeout(options.interval.value_or(absl::Seconds(1)))) {
      break;
    }
    before = std::exchange(now, watcher.Look());
    if (options.json) {
      continue;
    }
    const std::string text = TopText(before, now, live);
    if (!WriteStdout(live ? absl::StrCat(kClearScreen, text) : absl::StrCat(text, "\n")).ok()) {
      return kExitFailed;
    }
  }
  return options.json ? PrintJson(TopJson(first, now)) : kExitOk;
}

}  // namespace

int RunTop(const CommandContext& context, const std::vector<std::string>& args) {
  const RuntimePaths paths(RuntimeDirPath());
  TopOptions options{paths.weightd_socket, paths.inferd_admin_socket, std::nullopt, std::nullopt, false};
  ArgParser parser("sluice top", "Shows what both daemons are doing, once a second, until Ctrl-C.");
  parser.Text("--weightd", &options.weightd, "SOCKET of weightd (default: in the runtime directory)")
      .Text("--admin", &options.admin, "SOCKET of inferd's operators (default: in the runtime directory)")
      .Number("-n,--iterations", &options.iterations, "ends after so many looks (with --json: 1)", 1)
      .TimeSpan("--interval", &options.interval, "time between two looks (default: 1s)")
      .Flag("--json", &options.json, "prints one JSON object: rates over all the looks");
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  if (options.interval.has_value() && *options.interval < kShortestInterval) {
    return Fail("sluice top",
                absl::InvalidArgumentError(absl::StrCat("--interval is ", FormatTimeSpan(*options.interval),
                                                        "; at least ", FormatTimeSpan(kShortestInterval),
                                                        " is expected")),
                options.json);
  }
  return Watch(context, options);
}

}  // namespace sluice::cli
