#include "cli/launcher.h"

#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cli/output_files.h"
#include "cli/pack_cache.h"
#include "cli/supervisor.h"
#include "cli/terminal.h"
#include "common/base/clock.h"
#include "common/base/json_reader.h"
#include "common/base/runtime_dir.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/base/unix_listener.h"
#include "daemon/grpc_status.h"
#include "sluice/weights/v1/weights.grpc.pb.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::vector<OptionText>> AskWeightd(const std::string& socket) {
  const auto stub = sluice::weights::v1::WeightService::NewStub(
      grpc::CreateChannel(absl::StrCat("unix:", socket), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_authority("localhost");
  context.set_wait_for_ready(true);  // weightd may be restarting
  context.set_deadline(absl::ToChronoTime(ToWallClock(SteadyNow() + kPatience)));
  sluice::weights::v1::GetStatsResponse stats;
  RETURN_IF_ERROR(Annotate(FromGrpcStatus(stub->GetStats(&context, {}, &stats)),
                           absl::StrCat("cannot ask weightd at ", socket)));
  return std::vector<OptionText>{{"dram-budget", absl::StrCat(stats.dram_budget_bytes())},
                                 {"io", absl::StartsWith(stats.io_engine(), "uring") ? "uring" : "pread"},
                                 {"direct", absl::StrContains(stats.io_engine(), "O_DIRECT") ? "on" : "off"}};
}

namespace {

// Another command may hold the lock while it starts daemons.
constexpr absl::Duration kLockPatience = absl::Seconds(30);
// For daemons whose supervisor was killed: they release their sockets last.
constexpr absl::Duration kEndPatience = absl::Seconds(5);
// Dense weights are read before inferd serves: minutes for the largest models on slow disks.
constexpr absl::Duration kStartPatience = absl::Minutes(10);
// An inferd that reports that it cannot serve may be waiting for weightd's restart.
constexpr absl::Duration kUnavailablePatience = absl::Seconds(5);
constexpr int kAskEveryMs = 10;
// The supervisor gives each daemon 5 s to end.
constexpr int kLeavePatienceMs = 15000;
constexpr int kReadyPatienceMs = 25000;
// Attempts to join daemons that were just ending: two may be chance, more is a fault.
constexpr int kJoinAttempts = 3;
constexpr int kLogLines = 10;

// Message: other users of the daemons prevent a restart with other options; names the remedies.
constexpr char kInUse[] =
    "Others use it: wait until they have ended, or take another SLUICE_RUNTIME_DIR for daemons of your own";
constexpr char kOfSomebodyElse[] =
    "It was not started for this program, which leaves it alone: give the pack and options that it has, or "
    "take another SLUICE_RUNTIME_DIR for daemons of your own";

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Options without a meaning on device host.
constexpr char kDeviceOptions[] =
    " device-budget link-gbps link-latency-us tile-neurons transport clock virtual-costs ";

std::string ValueOf(const std::vector<OptionText>& settings, const std::string& name) {
  for (const OptionText& setting : settings) {
    if (setting.name == name) {
      return setting.value;
    }
  }
  return "";
}

// Budgets are reported in bytes.
std::string ReadableValue(const std::string& name, const std::string& value) {
  uint64_t bytes = 0;
  return absl::EndsWith(name, "-budget") && absl::SimpleAtoi(value, &bytes) ? FormatSize(bytes) : value;
}

bool WaitReadable(int fd, int milliseconds) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, milliseconds) == 1;
}

}  // namespace

Launcher::Launcher(const CommandContext& context, const CommonOptions& options, bool json)
    : context_(context),
      options_(options),
      json_(json),
      progress_("starting", ProgressUnit::kItems, options.quiet || json) {}

Launcher::~Launcher() { Leave(kByeWord); }

absl::StatusOr<std::unique_ptr<Launcher>> Launcher::Launch(const CommandContext& context,
                                                           const CommonOptions& options, bool json) {
  std::unique_ptr<Launcher> launcher(new Launcher(context, options, json));
  RETURN_IF_ERROR(launcher->Run());
  return launcher;
}

absl::Status Launcher::Run() {
  if (options_.model.empty() && options_.bits.has_value()) {
    return absl::InvalidArgumentError("--bits is for a --model that is packed, not for a --pack");
  }
  RETURN_IF_ERROR(FindPack());
  const std::string address = options_.address.value_or(Environment("SLUICE_HOST"));
  if (address.empty() && options_.admin.has_value()) {
    return absl::InvalidArgumentError(
        "--admin is for an inferd of --address or SLUICE_HOST, and neither is set");
  }
  RETURN_IF_ERROR(address.empty() ? UseRuntimeDir() : UseAddress(address));
  progress_.Finish();
  ShowOptions();
  return absl::OkStatus();
}

absl::Status Launcher::FindPack() {
  std::error_code error;
  if (options_.takes_served_name && !options_.model.empty() && !absl::StrContains(options_.model, '/') &&
      !std::filesystem::exists(options_.model, error)) {
    return absl::OkStatus();
  }
  if (!options_.model.empty()) {
    ASSIGN_OR_RETURN(options_.pack,
                     PackOf(context_, {options_.model, options_.bits, options_.quiet || json_}));
  }
  ASSIGN_OR_RETURN(pack_, Pack::Open(options_.pack));
  return absl::OkStatus();
}

absl::Status Launcher::UseAddress(const std::string& address) {
  if (options_.keep.has_value()) {
    return absl::InvalidArgumentError("--keep is for daemons that this command starts, not for --address");
  }
  std::string admin = AdminAddressOf(address);
  if (options_.admin.has_value()) {
    ASSIGN_OR_RETURN(admin, AdminAddressFrom(*options_.admin));
  }
  const absl::Status reached =
      ConnectUnix(std::string(absl::StripPrefix(admin, "unix:")), UnixSocketType::kStream).status();
  if (options_.admin.has_value()) {
    RETURN_IF_ERROR(reached);
  }
  // A user of inferd may lack operator rights, and a server of several models has no such socket; then
  // options are not compared.
  if (!reached.ok()) {
    admin.clear();
  }
  client_ = std::make_unique<Client>(address, admin, context_.interrupt);
  RETURN_IF_ERROR(client_->CheckServing(kUnavailablePatience));
  RETURN_IF_ERROR(NameModel());
  std::vector<std::string> differences;
  RETURN_IF_ERROR(Compare(&differences));
  return Mismatch(differences, kOfSomebodyElse);
}

absl::Status Launcher::NameModel() {
  ASSIGN_OR_RETURN(const api::ListModelsResponse served, client_->ListModels());
  if (pack_ != nullptr && served.models_size() == 1) {
    return absl::OkStatus();  // Compare() tells another model
  }
  std::vector<std::string> names;
  for (const api::Model& model : served.models()) {
    if (pack_ != nullptr ? model.id() == pack_->model_id() : model.name() == options_.model) {
      client_->UseModel(model.id());
      return absl::OkStatus();
    }
    names.push_back(model.name());
  }
  return absl::NotFoundError(absl::StrCat("the server at ", client_->address(), " does not have ",
                                          pack_ != nullptr ? options_.pack : options_.model,
                                          "; its models are ", absl::StrJoin(names, ", ")));
}

absl::Status Launcher::UseModelServer() {
  if (options_.keep.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--keep is for daemons that this command starts, and a server of several models runs in ",
        paths_.dir));
  }
  client_ = std::make_unique<Client>(absl::StrCat("unix:", paths_.inferd_socket), "", context_.interrupt);
  RETURN_IF_ERROR(client_->CheckServing(kUnavailablePatience));
  RETURN_IF_ERROR(NameModel());
  std::vector<std::string> differences;
  RETURN_IF_ERROR(Compare(&differences));
  return Mismatch(differences, kOfSomebodyElse);
}

absl::Status Launcher::UseRuntimeDir() {
  ASSIGN_OR_RETURN(const std::string dir, EnsureRuntimeDir());
  paths_ = RuntimePaths(dir);
  if (HasModelServer()) {
    return UseModelServer();
  }
  if (pack_ == nullptr) {
    return absl::NotFoundError(absl::StrCat("--model ", options_.model,
                                            ": there is no such file or folder, and no server of several "
                                            "models runs in ",
                                            dir));
  }
  for (int attempt = 1;; ++attempt) {
    RETURN_IF_ERROR(JoinOrStart());
    const std::string admin = absl::StrCat("unix:", paths_.inferd_admin_socket);
    client_ =
        std::make_unique<Client>(absl::StrCat("unix:", paths_.inferd_socket), admin, context_.interrupt);
    std::vector<std::string> differences;
    absl::Status compared = WaitUntilServing();
    if (compared.ok()) {
      compared = supervisor_.valid() ? Compare(&differences) : CompareFound(&differences);
    }
    // ABORTED: the daemons were just ending.
    if (!compared.ok() && !(absl::IsAborted(compared) && attempt < kJoinAttempts)) {
      return compared;
    }
    if (compared.ok()) {
      if (!supervisor_.valid()) {
        return Mismatch(differences, kOfSomebodyElse);
      }
      // Daemons without other users end when this process leaves them, and can then be started with the right
      // options.
      const bool replaceable = !differences.empty() && !started_ && attempt < kJoinAttempts && !HasCalls();
      if (!replaceable || !Leave(kYieldWord)) {
        return Mismatch(differences, kInUse);
      }
      if (!json_ && !options_.quiet) {
        std::fprintf(stderr,
                     "sluice: the daemons that were there were used by nobody and are started anew: %s\n",
                     absl::StrJoin(differences, "; ").c_str());
      }
    }
    supervisor_.reset();
  }
}

absl::Status Launcher::JoinOrStart() {
  ASSIGN_OR_RETURN(
      const UniqueFd lock,
      LockFile(paths_.start_lock, kLockPatience, context_.interrupt->flag(), [this](const std::string&) {
        SayWait(absl::StrCat("another command, which is starting daemons in ", paths_.dir), kLockPatience);
      }));
  absl::StatusOr<UniqueFd> joined = ConnectUnix(paths_.supervisor_socket, UnixSocketType::kSeqPacket);
  if (joined.ok()) {
    supervisor_ = *std::move(joined);
    started_ = false;
    Say(absl::StrCat("joined the daemons in ", paths_.dir));
  } else if (ConnectUnix(paths_.inferd_socket, UnixSocketType::kStream).ok()) {
    started_ = false;
    Say(absl::StrCat("found inferd at ", paths_.inferd_socket));
    return absl::OkStatus();
  } else {
    RETURN_IF_ERROR(AwaitLastDaemons());
    RETURN_IF_ERROR(StartSupervisor());
    started_ = true;
  }
  if (options_.keep.has_value()) {
    SendPacket(supervisor_.get(), absl::StrCat(kKeepWord, absl::ToInt64Milliseconds(*options_.keep)));
  }
  return absl::OkStatus();
}

bool Launcher::HasModelServer() const {
  std::error_code error;
  return std::filesystem::exists(paths_.models_lock, error) &&
         absl::IsDeadlineExceeded(
             LockFile(paths_.models_lock, absl::ZeroDuration(), context_.interrupt->flag()).status());
}

absl::Status Launcher::AwaitLastDaemons() {
  for (const std::string& socket : {paths_.inferd_admin_socket, paths_.inferd_socket, paths_.weightd_socket,
                                    absl::StrCat(paths_.weightd_socket, ".side")}) {
    const std::string lock = absl::StrCat(socket, ".lock");
    std::error_code error;
    if (!std::filesystem::exists(lock, error)) {
      continue;
    }
    const auto say = [this, &socket](const std::string& holder) {
      SayWait(absl::StrCat(holder, ", which has not let go of ", socket), kEndPatience);
    };
    const absl::Status freed = LockFile(lock, kEndPatience, context_.interrupt->flag(), say).status();
    if (absl::IsCancelled(freed)) {
      return freed;
    }
    if (!freed.ok()) {
      break;  // starting the daemons will report the process that serves it
    }
  }
  return absl::OkStatus();
}

absl::Status Launcher::StartSupervisor() {
  std::error_code error;
  const std::string pack_dir = std::filesystem::canonical(options_.pack, error);
  if (error) {
    return ErrnoToStatus(error.value(), absl::StrCat("cannot resolve ", options_.pack));
  }
  std::vector<std::string> argv = {absl::StrCat(context_.binary_dir, "/sluice"), "supervise"};
  for (std::string& argument :
       SupervisorArguments(DaemonsOf(paths_, context_.binary_dir, pack_dir, options_))) {
    argv.push_back(std::move(argument));
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return ErrnoToStatus(errno, "cannot make a pipe");
  }
  const UniqueFd ready(ends[0]);
  UniqueFd supervisors_end(ends[1]);
  ASSIGN_OR_RETURN(const pid_t pid, SpawnProcess(argv, paths_.supervisor_log, /*append=*/false,
                                                 supervisors_end.get(), /*new_session=*/true));
  supervisors_end.reset();
  Say(absl::StrCat("started supervisor ", pid, "; logs: ", paths_.weightd_log, ", ", paths_.inferd_log));
  char byte = 0;
  if (!WaitReadable(ready.get(), kReadyPatienceMs) || read(ready.get(), &byte, 1) != 1) {
    return absl::UnavailableError(absl::StrCat("the supervisor of the daemons did not start; ",
                                               paths_.supervisor_log,
                                               " ends with:", LogTail(paths_.supervisor_log, kLogLines)));
  }
  ASSIGN_OR_RETURN(supervisor_, ConnectUnix(paths_.supervisor_socket, UnixSocketType::kSeqPacket));
  return absl::OkStatus();
}

absl::Status Launcher::WaitUntilServing() {
  const absl::Time deadline = SteadyNow() + kStartPatience;
  absl::Time unavailable_since = absl::InfiniteFuture();
  while (true) {
    RETURN_IF_ERROR(context_.interrupt->Check());
    RETURN_IF_ERROR(HearSupervisor());
    // Without the socket gRPC would back off for longer than the start takes.
    if (ConnectUnix(paths_.inferd_admin_socket, UnixSocketType::kStream).ok()) {
      const absl::Status state = AskState(&unavailable_since);
      if (state.ok() || !absl::IsUnavailable(state)) {
        return state;
      }
      progress_.Note(std::string(state.message()));
    } else if (!supervisor_.valid()) {
      return absl::AbortedError(absl::StrCat("inferd at ", paths_.inferd_socket, " has gone"));
    }
    if (SteadyNow() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("inferd is not serving after ", FormatTimeSpan(kStartPatience),
                       "; its log ends with:", LogTail(paths_.inferd_log, kLogLines)));
    }
    poll(nullptr, 0, kAskEveryMs);
  }
}

absl::Status Launcher::AskState(absl::Time* unavailable_since) {
  const absl::StatusOr<api::GetServerInfoResponse> info = client_->GetServerInfo();
  if (!info.ok()) {
    return absl::IsCancelled(info.status()) ? info.status()
                                            : absl::UnavailableError(std::string(info.status().message()));
  }
  switch (info->state()) {
    case api::SERVER_STATE_SERVING:
      return absl::OkStatus();
    case api::SERVER_STATE_UNAVAILABLE:
      *unavailable_since = std::min(*unavailable_since, SteadyNow());
      if (SteadyNow() - *unavailable_since > kUnavailablePatience) {
        return CodeFromText(info->state_detail(), absl::StatusCode::kFailedPrecondition,
                            absl::StrCat("inferd cannot serve: ", info->state_detail()));
      }
      break;
    default:
      *unavailable_since = absl::InfiniteFuture();
  }
  return absl::UnavailableError(info->state_detail().empty() ? "waiting for inferd" : info->state_detail());
}

absl::Status Launcher::Compare(std::vector<std::string>* differences) {
  ASSIGN_OR_RETURN(model_, client_->GetModel());
  if (pack_ != nullptr && model_.id() != pack_->model_id()) {
    differences->push_back(absl::StrCat("it serves model ", model_.id(), " (", model_.name(), "), and ",
                                        options_.pack, " is model ", pack_->model_id()));
  }
  RETURN_IF_ERROR(LearnServerOptions());
  for (const OptionText& setting : options_.InferdSettings()) {
    const std::string value = ValueOf(server_options_, setting.name);
    if (!client_->has_admin()) {
      differences->push_back(absl::StrCat(
          "--", setting.name, " cannot be compared without its operators' socket, which --admin names"));
    } else if (IsListOption(setting.name) ? !HoldsPolicies(value, setting.value)
                                          : !SameOptionValue(value, setting.value)) {
      differences->push_back(absl::StrCat("it has --", setting.name, " ", value.empty() ? "(unknown)" : value,
                                          ", not ", setting.value));
    }
  }
  for (const OptionText& setting : options_.WeightdSettings()) {
    const std::string value = ValueOf(weightd_options_, setting.name);
    if (paths_.dir.empty()) {
      differences->push_back(
          absl::StrCat("--", setting.name, " is weightd's, which --address does not reach"));
    } else if (!started_ && !SameOptionValue(value, setting.value)) {
      differences->push_back(
          absl::StrCat("weightd has --", setting.name, " ", value, ", not ", setting.value));
    }
  }
  return absl::OkStatus();
}

absl::Status Launcher::CompareFound(std::vector<std::string>* differences) {
  const absl::Status gone = absl::AbortedError(absl::StrCat("inferd at ", paths_.inferd_socket, " has gone"));
  const absl::Status compared = Compare(differences);
  if (!compared.ok()) {
    return absl::IsUnavailable(compared) ? gone : compared;
  }
  const absl::Time deadline = SteadyNow() + absl::Milliseconds(kLeavePatienceMs);
  const bool abandoned =
      ValueOf(server_options_, "parent-lifeline") != "-1" && ValueOf(server_options_, "keep") == "0ms";
  while (abandoned && SteadyNow() < deadline) {
    RETURN_IF_ERROR(context_.interrupt->Check());
    if (!ConnectUnix(paths_.inferd_socket, UnixSocketType::kStream).ok()) {
      return gone;
    }
    poll(nullptr, 0, kAskEveryMs);
  }
  return absl::OkStatus();
}

absl::Status Launcher::LearnServerOptions() {
  server_options_.clear();
  if (client_->has_admin()) {
    ASSIGN_OR_RETURN(const api::GetServerInfoResponse info, client_->GetServerInfo());
    for (const api::OptionValue& option : info.options()) {
      server_options_.push_back({option.name(), option.value()});
    }
    backend_ = info.backend();
  }
  if (!paths_.dir.empty()) {
    ASSIGN_OR_RETURN(weightd_options_, AskWeightd(paths_.weightd_socket));
  }
  return absl::OkStatus();
}

bool Launcher::HasCalls() {
  const absl::StatusOr<api::GetStatsResponse> stats = client_->GetStats();
  return stats.ok() && stats->gauges().calls_active() > 0;
}

absl::Status Launcher::Mismatch(const std::vector<std::string>& differences, const std::string& who) const {
  if (differences.empty()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the inferd at ", client_->address(),
                   " differs from what was asked for: ", absl::StrJoin(differences, "; "), ". ", who));
}

std::string Launcher::server_option(const std::string& name) const {
  const std::string value = ValueOf(server_options_, name);
  return value.empty() ? ValueOf(weightd_options_, name) : value;
}

// Prints the common options in their order; those of the simulated link only if there is one.
void Launcher::ShowOptions() const {
  if (json_ || options_.quiet) {
    return;
  }
  std::vector<std::string> words = {model_.name()};
  for (const char* name : {"preset",
                           "sparsity",
                           "sparsity-target",
                           "sparsity-threshold",
                           "sparsity-scope",
                           "device",
                           "device-budget",
                           "dram-budget",
                           "context",
                           "parallel",
                           "kv",
                           "kv-budget",
                           "prefill-chunk",
                           "threads",
                           "io",
                           "direct",
                           "link-gbps",
                           "link-latency-us",
                           "tile-neurons",
                           "transport",
                           "clock",
                           "virtual-costs"}) {
    const std::string value = server_option(name);
    const bool of_device = absl::StrContains(kDeviceOptions, absl::StrCat(" ", name, " "));
    if (!value.empty() && !(of_device && server_option("device") == "host")) {
      words.push_back(absl::StrCat(name, " ", ReadableValue(name, value)));
    }
  }
  const std::string line = absl::StrCat("sluice: ", absl::StrJoin(words, ", "));
  std::fprintf(stderr, "%s\n", Styled(line, Style::kDim, StderrIsTerminal()).c_str());
}

absl::Status Launcher::HearSupervisor() {
  std::string packet;
  while (supervisor_.valid()) {
    switch (ReceivePacket(supervisor_.get(), &packet)) {
      case Receive::kNothing:
        return absl::OkStatus();
      case Receive::kClosed:
        return absl::AbortedError(absl::StrCat("the supervisor of the daemons has ended; ",
                                               paths_.supervisor_log,
                                               " ends with:", LogTail(paths_.supervisor_log, kLogLines)));
      case Receive::kPacket:
        if (absl::StartsWith(packet, kFailedWord)) {
          return DaemonFailure(packet);
        }
        Say(packet);
    }
  }
  return absl::OkStatus();
}

absl::Status Launcher::DaemonFailure(const std::string& packet) const {
  const std::string text = packet.substr(sizeof(kFailedWord) - 1);
  const std::string name = text.substr(0, text.find(' '));
  const std::string& log = name == "weightd" ? paths_.weightd_log : paths_.inferd_log;
  const std::string tail = LogTail(log, kLogLines);
  // A daemon reports a usage error by the same exit code as this program.
  const absl::StatusCode otherwise = absl::EndsWith(text, absl::StrCat("exit code ", kExitUsage))
                                         ? absl::StatusCode::kInvalidArgument
                                         : absl::StatusCode::kUnavailable;
  return CodeFromText(tail, otherwise,
                      absl::StrCat(name, " ended: ", absl::StripPrefix(text.substr(name.size()), " "), "; ",
                                   LastWords(log, kLogLines)));
}

bool Launcher::Leave(const char* word) {
  if (!supervisor_.valid() || !SendPacket(supervisor_.get(), word)) {
    return true;
  }
  std::string packet;
  Receive received = Receive::kPacket;
  while (received != Receive::kClosed && WaitReadable(supervisor_.get(), kLeavePatienceMs)) {
    received = ReceivePacket(supervisor_.get(), &packet);
  }
  supervisor_.reset();
  return !ConnectUnix(paths_.supervisor_socket, UnixSocketType::kSeqPacket).ok();
}

void Launcher::SayWait(const std::string& what, absl::Duration patience) {
  progress_.Finish();
  if (!json_ && !options_.quiet) {
    std::fprintf(stderr, "sluice: waiting for %s (up to %s)\n", what.c_str(),
                 FormatTimeSpan(patience).c_str());
  }
}

void Launcher::Say(const std::string& text) const {
  if (options_.verbose) {
    std::fprintf(stderr, "sluice: %s\n", text.c_str());
  }
}

}  // namespace sluice::cli

extern char** environ;

namespace sluice::cli {
namespace {

absl::StatusOr<std::string> ReadToEnd(int fd) {
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n == 0) {
      return text;
    }
    if (n < 0 && errno != EINTR) {
      return ErrnoToStatus(errno, "reading a command's output");
    }
    if (n > 0) {
      text.append(buffer, static_cast<size_t>(n));
    }
  }
}

// The interrupt thread keeps SIGINT and SIGTERM blocked in this process; a child must get them.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv, int output) {
  std::vector<char*> words;
  for (const std::string& word : argv) {
    words.push_back(const_cast<char*>(word.c_str()));
  }
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, words[0], &actions, &attributes, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error == 0 ? absl::StatusOr<pid_t>(pid)
                    : ErrnoToStatus(error, absl::StrCat("cannot start ", argv[0]));
}

// Returns the command's error, with the code in its JSON if there is one.
absl::Status FailureOf(const std::string& command, int result, const absl::StatusOr<std::string>& output) {
  if (WIFSIGNALED(result)) {
    return absl::InternalError(absl::StrCat(command, " was ended by signal ", WTERMSIG(result)));
  }
  const nlohmann::json json = ParseJson(output.value_or(""), "output").value_or(nlohmann::json());
  const auto error = json.is_object() ? json.find("error") : json.end();
  if (!json.is_object() || error == json.end() || !error->is_object()) {
    return absl::InternalError(absl::StrCat(command, " failed with exit code ", WEXITSTATUS(result)));
  }
  return CodeFromText(absl::StrCat(error->value("code", ""), ": "), absl::StatusCode::kInternal,
                      absl::StrCat(command, " failed: ", error->value("message", "")));
}

}  // namespace

absl::StatusOr<std::string> RunSluice(const CommandContext& context, const std::vector<std::string>& args) {
  RETURN_IF_ERROR(context.interrupt->Check());
  std::vector<std::string> argv = {absl::StrCat(context.binary_dir, "/sluice")};
  argv.insert(argv.end(), args.begin(), args.end());
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return ErrnoToStatus(errno, "cannot make a pipe");
  }
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  ASSIGN_OR_RETURN(const pid_t pid, Spawn(argv, writing.get()));
  writing.reset();
  absl::StatusOr<std::string> output = ReadToEnd(reading.get());
  int result = 0;
  while (waitpid(pid, &result, 0) < 0 && errno == EINTR) {
  }
  RETURN_IF_ERROR(context.interrupt->Check());
  if (!WIFEXITED(result) || WEXITSTATUS(result) != kExitOk) {
    return FailureOf(absl::StrCat("`sluice ", absl::StrJoin(args, " "), "`"), result, output);
  }
  return output;
}

}  // namespace sluice::cli
