// ArgParser: the command line of one sub-command. A thin layer over CLI11, whose header only command_line.cc
// includes because it takes seconds to compile.
//
// Values are stored in the caller's variables, which must outlive Parse. A std::optional stays empty if its
// option is not given. Every declaration returns the parser, so that `.Required()` can follow. A value may
// begin with a dash.
//
// Thread safety: thread-compatible; used by the main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/interrupt.h"
#include "cli/json.h"

namespace sluice::cli {

// Exit codes of every sub-command. Scripts rely on them.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

class ArgParser {
 public:
  // `command`: as typed ("sluice pack"); `summary`: one line for --help.
  ArgParser(const std::string& command, const std::string& summary);
  ~ArgParser();
  ArgParser(const ArgParser&) = delete;
  ArgParser& operator=(const ArgParser&) = delete;

  // Declares a required positional argument, shown as `name`.
  ArgParser& Positional(const std::string& name, std::string* out, const std::string& help);
  // Declares any number of positional arguments after the others.
  ArgParser& Positionals(const std::string& name, std::vector<std::string>* out, const std::string& help);
  ArgParser& Flag(const std::string& names, bool* out, const std::string& help);
  ArgParser& Text(const std::string& names, std::string* out, const std::string& help);
  ArgParser& Text(const std::string& names, std::optional<std::string>* out, const std::string& help);
  // Declares an option that may be given several times.
  ArgParser& Texts(const std::string& names, std::vector<std::string>* out, const std::string& help);
  // Declares an option with one of `choices`, which the help shows.
  ArgParser& Choice(const std::string& names, const std::vector<std::string>& choices,
                    std::optional<std::string>* out, const std::string& help);
  // Declares an option with an integer in [least, most].
  ArgParser& Number(const std::string& names, std::optional<uint64_t>* out, const std::string& help,
                    uint64_t least = 0, uint64_t most = UINT64_MAX);
  // Declares an option with a finite number in [least, most].
  ArgParser& Real(const std::string& names, std::optional<double>* out, const std::string& help, double least,
                  double most);
  ArgParser& Size(const std::string& names, std::optional<uint64_t>* out, const std::string& help);
  // Declares an option whose values `take` checks and stores; it may be given several times if it `repeats`.
  // An error is a usage error.
  ArgParser& Values(const std::string& names, bool repeats,
                    std::function<absl::Status(const std::vector<std::string>&)> take,
                    const std::string& help);
  ArgParser& TimeSpan(const std::string& names, std::optional<absl::Duration>* out, const std::string& help);

  // Requires exactly one of these options; they may be declared later.
  ArgParser& RequireOneOf(const std::vector<std::string>& names);
  // Makes the option declared last required.
  ArgParser& Required();
  // Sets the help title of the options declared from here on.
  ArgParser& Group(const std::string& title);

  // Same as Group, but only --help-all shows it; --help ends with `hint`.
  ArgParser& HiddenGroup(const std::string& title, const std::string& hint);

  // Fills the variables from `args` (without program and sub-command). nullopt: continue. Otherwise the exit
  // code: kExitOk after --help (printed to stdout), kExitUsage after an error (printed to stderr).
  std::optional<int> Parse(const std::vector<std::string>& args);

  // Same as Parse for arguments not typed by a person: prints nothing. INVALID_ARGUMENT naming the error.
  absl::Status Fill(const std::vector<std::string>& args);
  // Returns true if an option of this name (with dashes) was declared.
  bool Knows(const std::string& name) const;

  // Prints `message` as this command's usage error to stderr and returns kExitUsage.
  int UsageError(const std::string& message) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Parses "1,2,3" as integers in [least, most]; spaces around a number are allowed. INVALID_ARGUMENT naming
// `what` and the entry; an empty text is an empty list.
absl::StatusOr<std::vector<int64_t>> ParseNumberList(std::string_view text, const std::string& what,
                                                     int64_t least, int64_t most);

// Parses "1,2,3" as token ids, each 0..2^31-1, at least one.
absl::StatusOr<std::vector<int32_t>> ParseTokenIds(std::string_view text);

// Splits "a,b,c"; empty entries are dropped.
std::vector<std::string> SplitList(std::string_view text);

// Parts shared by all sub-commands of `sluice`: their signature, context and error reports.
//
// Each sub-command is one function of type CommandFunction in a file of its own; main.cc has the table.
//
// Thread safety: commands run on the main thread; the functions here may be called from any thread.

struct CommandContext {
  Interrupt* interrupt;    // not owned
  std::string binary_dir;  // folder of `sluice` and of the daemons
};

// Returns the running program's folder, or "." if the kernel does not report it.
std::string BinaryDir();

using CommandFunction = int (*)(const CommandContext& context, const std::vector<std::string>& args);

int RunPack(const CommandContext& context, const std::vector<std::string>& args);
int RunPull(const CommandContext& context, const std::vector<std::string>& args);
int RunPlan(const CommandContext& context, const std::vector<std::string>& args);
int RunPacks(const CommandContext& context, const std::vector<std::string>& args);
int RunInspect(const CommandContext& context, const std::vector<std::string>& args);
int RunVerify(const CommandContext& context, const std::vector<std::string>& args);
int RunSynth(const CommandContext& context, const std::vector<std::string>& args);
int RunTokenize(const CommandContext& context, const std::vector<std::string>& args);
int RunDetokenize(const CommandContext& context, const std::vector<std::string>& args);
int RunRun(const CommandContext& context, const std::vector<std::string>& args);
int RunServe(const CommandContext& context, const std::vector<std::string>& args);
int RunChat(const CommandContext& context, const std::vector<std::string>& args);
int RunLogits(const CommandContext& context, const std::vector<std::string>& args);
int RunPerplexity(const CommandContext& context, const std::vector<std::string>& args);
int RunCalibrate(const CommandContext& context, const std::vector<std::string>& args);
int RunBench(const CommandContext& context, const std::vector<std::string>& args);
int RunDoctor(const CommandContext& context, const std::vector<std::string>& args);
int RunTop(const CommandContext& context, const std::vector<std::string>& args);
int RunTune(const CommandContext& context, const std::vector<std::string>& args);
int RunPreset(const CommandContext& context, const std::vector<std::string>& args);
// Internal: the process that keeps the daemons of a runtime directory alive (supervisor.h).
int RunSupervise(const CommandContext& context, const std::vector<std::string>& args);

// Reports `status` on stderr as "COMMAND: CODE: message" (`command` as typed: "sluice pack"). With `json`
// also prints the object {"error": {"code", "message"}} to stdout. Returns kExitFailed.
int Fail(const std::string& command, const absl::Status& status, bool json);

// Prints `value` and a newline to stdout. Returns kExitOk, or kExitFailed if writing failed.
int PrintJson(const Json& value);

// Writes `text` to stdout and flushes. Errors name stdout.
absl::Status WriteStdout(const std::string& text);

// Returns the bytes of a file of at most 1 GiB. `path` "-" reads standard input to its end.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace sluice::cli
