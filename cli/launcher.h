// Launcher: finds or starts the daemons for a command. Also: the options of a running weightd, and running
// one `sluice` command from another.
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

// Returns the options of the weightd at `socket` that `sluice` knows, with the values in effect.
absl::StatusOr<std::vector<OptionText>> AskWeightd(const std::string& socket);

// Launcher: finds a serving inferd, or starts both daemons through a supervisor (supervisor.h), and checks
// that it serves the requested pack with the requested options. cli/README.md describes the cases.
//
// Thread safety: Launch and the destructor belong to the main thread; client() may be used from any thread.

class Launcher {
 public:
  // Opens the pack, finds or starts the daemons, and waits until tokens can be made. Idle daemons that were
  // kept with other options are ended first. `json`: suppresses the line of options. Errors: of the pack;
  // FAILED_PRECONDITION naming each difference to an inferd in use; the reason of a daemon that could not
  // start, with the last lines of its log; CANCELLED.
  static absl::StatusOr<std::unique_ptr<Launcher>> Launch(const CommandContext& context,
                                                          const CommonOptions& options, bool json);

  // Leaves the daemons; if they have no other users and are not kept, waits until they have ended.
  ~Launcher();

  Client& client() { return *client_; }
  // REQUIRES: the options do not take a served name.
  const Pack& pack() const { return *pack_; }
  const api::Model& model() const { return model_; }
  // Returns the value in effect of a daemon's option, "" if it is not known (without the admin socket).
  std::string server_option(const std::string& name) const;
  const std::string& backend() const { return backend_; }

 private:
  Launcher(const CommandContext& context, const CommonOptions& options, bool json);

  absl::Status Run();
  // Opens the pack, or takes the model's name at a server of several.
  absl::Status FindPack();
  absl::Status UseAddress(const std::string& address);
  absl::Status UseRuntimeDir();
  absl::Status JoinOrStart();
  // True if a server of several models has the daemons of this directory.
  bool HasModelServer() const;
  absl::Status UseModelServer();
  // NOT_FOUND with the models that there are, if the server does not have the model.
  absl::Status NameModel();
  // Waits for ending daemons without a supervisor: a new start would find their sockets in use.
  absl::Status AwaitLastDaemons();
  absl::Status StartSupervisor();
  absl::Status WaitUntilServing();
  absl::Status AskState(absl::Time* unavailable_since);
  // Reads model and options from inferd, and lists their differences to the requested ones.
  absl::Status Compare(std::vector<std::string>* differences);
  // Same for an inferd without a supervisor. One whose supervisor was killed may serve for a moment longer,
  // and is awaited. ABORTED: it has ended.
  absl::Status CompareFound(std::vector<std::string>* differences);
  absl::Status LearnServerOptions();
  // `who`: the reason why the daemons cannot be replaced.
  absl::Status Mismatch(const std::vector<std::string>& differences, const std::string& who) const;
  // Returns true if a client other than this command waits for an answer of inferd.
  bool HasCalls();
  void ShowOptions() const;

  // Reads the supervisor's messages. A daemon's failure is an error; UNAVAILABLE if the supervisor has gone.
  absl::Status HearSupervisor();
  absl::Status DaemonFailure(const std::string& packet) const;
  // Ends the connection by a message of supervisor.h; true if the daemons ended with it.
  bool Leave(const char* word);
  // Prints one line that names the reason for a wait.
  void SayWait(const std::string& what, absl::Duration patience);
  void Say(const std::string& text) const;

  const CommandContext& context_;
  CommonOptions options_;
  const bool json_;
  std::unique_ptr<Pack> pack_;  // null: the model is named
  RuntimePaths paths_;          // empty with an address
  UniqueFd supervisor_;         // connection that keeps the daemons running
  bool started_ = false;        // this process started the daemons
  std::unique_ptr<Client> client_;
  api::Model model_;
  std::vector<OptionText> server_options_;   // inferd's, in effect
  std::vector<OptionText> weightd_options_;  // in effect; empty with an address
  std::string backend_;
  Progress progress_;
};

// Runs a command of `sluice` and reads its JSON.
//
// Thread safety: thread-compatible; the child shares this process's standard error and signals.

// Returns the standard output of `sluice ARGS...` (with --json among them). An exit code other than 0 is an
// error with the command's own code and message, INTERNAL if it printed none; CANCELLED after an interrupt.
absl::StatusOr<std::string> RunSluice(const CommandContext& context, const std::vector<std::string>& args);

}  // namespace sluice::cli
