// The way from a command to a serving inferd (Launcher), the options of a running weightd, and commands of
// `sluice` that another command runs.
//
// Thread safety: stated at each part; AskWeightd() may be called from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/command_line.h"
#include "cli/daemon_options.h"
#include "cli/runtime_paths.h"
#include "cli/terminal.h"
#include "common/base/unique_fd.h"
#include "pack/pack.h"

namespace sluice::cli {

// The options of weightd that `sluice` knows, with the values in effect, by asking the one at `socket`.
absl::StatusOr<std::vector<OptionText>> AskWeightd(const std::string& socket);

// Launcher: the way from a command to a serving inferd. Finds one, or starts both daemons through a
// supervisor (supervisor.h), and checks that it has the pack and the options asked for. cli/README.md tells
// the story.
//
// Thread safety: Launch and the destructor belong to the main thread; client() may be used from any thread.

class Launcher {
 public:
  // Opens the pack, finds or starts the daemons, waits until tokens can be made. Daemons with other options
  // that are kept and that nobody uses are ended first. `json`: no line of options.
  // Errors: of the pack; FailedPrecondition naming each difference to an inferd in use; a daemon's own
  // reason, with the last lines of its log, when it could not start; Cancelled.
  static absl::StatusOr<std::unique_ptr<Launcher>> Launch(const CommandContext& context,
                                                          const CommonOptions& options, bool json);

  // Leaves the daemons; if nobody else uses them and they are not kept, waits until they have ended.
  ~Launcher();

  Client& client() { return *client_; }
  const Pack& pack() const { return *pack_; }
  const api::Model& model() const { return model_; }
  // The value in effect of one of the daemons' options, "" if it is not known (without the admin socket).
  std::string server_option(const std::string& name) const;
  const std::string& backend() const { return backend_; }

 private:
  Launcher(const CommandContext& context, const CommonOptions& options, bool json);

  absl::Status Run();
  absl::Status UseAddress(const std::string& address);
  absl::Status UseRuntimeDir();
  absl::Status JoinOrStart();
  // Waits for daemons without a supervisor that are just ending: a start would find their sockets served.
  absl::Status AwaitLastDaemons();
  absl::Status StartSupervisor();
  absl::Status WaitUntilServing();
  absl::Status AskState(absl::Time* unavailable_since);
  // Learns model and options, and what differs from the ones asked for.
  absl::Status Compare(std::vector<std::string>* differences);
  // The same of an inferd without a supervisor. One whose supervisor was killed may still serve, but not for
  // long: it is let end. Aborted: it has gone.
  absl::Status CompareFound(std::vector<std::string>* differences);
  absl::Status LearnServerOptions();
  // `who`: what keeps the daemons from being replaced.
  absl::Status Mismatch(const std::vector<std::string>& differences, const std::string& who) const;
  // Returns true if a client other than this command waits for a response of inferd.
  bool HasCalls();
  void ShowOptions() const;

  // Reads the supervisor's news. A daemon's failure is an error; Unavailable if the supervisor has gone.
  absl::Status HearSupervisor();
  absl::Status DaemonFailure(const std::string& packet) const;
  // Says goodbye with a word of supervisor.h; true if the daemons have ended with it.
  bool Leave(const char* word);
  // One line on what keeps the command waiting.
  void SayWait(const std::string& what, absl::Duration patience);
  void Say(const std::string& text) const;

  const CommandContext& context_;
  CommonOptions options_;
  const bool json_;
  std::unique_ptr<Pack> pack_;
  RuntimePaths paths_;    // empty with an address
  UniqueFd supervisor_;   // the connection that keeps the daemons
  bool started_ = false;  // by this process
  std::unique_ptr<Client> client_;
  api::Model model_;
  std::vector<OptionText> server_options_;   // of inferd, in effect
  std::vector<OptionText> weightd_options_;  // in effect; empty with an address
  std::string backend_;
  Progress progress_;
};

// Runs a command of `sluice` and takes its JSON.
//
// Thread safety: thread-compatible; the child's standard error and signals are this process's.

// Standard output of `sluice ARGS...` (give --json among them). An exit code other than 0 is an error with
// the code and words of the command, INTERNAL where it left none; CANCELLED after an interrupt.
absl::StatusOr<std::string> RunSluice(const CommandContext& context, const std::vector<std::string>& args);

}  // namespace sluice::cli
