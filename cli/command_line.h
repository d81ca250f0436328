// ArgParser: the command line of one sub-command. A thin layer over CLI11, whose header is read by
// command_line.cc alone (it costs seconds to compile).
//
// Values land in the caller's variables, which must outlive Parse. std::optional variables stay empty when
// the option is not given, so that "given" and "default" can be told apart. Every declaration returns the
// parser, so that `.Required()` can follow. A value may begin with a dash.
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

// Exit codes of every sub-command: a contract.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

class ArgParser {
 public:
  // `command` as typed ("sluice pack"); `summary` is one line of its --help.
  ArgParser(const std::string& command, const std::string& summary);
  ~ArgParser();
  ArgParser(const ArgParser&) = delete;
  ArgParser& operator=(const ArgParser&) = delete;

  // A required argument without a dash, shown as `name`.
  ArgParser& Positional(const std::string& name, std::string* out, const std::string& help);
  // Any number of them, after the other positionals.
  ArgParser& Positionals(const std::string& name, std::vector<std::string>* out, const std::string& help);
  ArgParser& Flag(const std::string& names, bool* out, const std::string& help);
  ArgParser& Text(const std::string& names, std::string* out, const std::string& help);
  ArgParser& Text(const std::string& names, std::optional<std::string>* out, const std::string& help);
  // May be given several times.
  ArgParser& Texts(const std::string& names, std::vector<std::string>* out, const std::string& help);
  // One of `choices`, shown in the help.
  ArgParser& Choice(const std::string& names, const std::vector<std::string>& choices,
                    std::optional<std::string>* out, const std::string& help);
  // Whole numbers in [least, most].
  ArgParser& Number(const std::string& names, std::optional<uint64_t>* out, const std::string& help,
                    uint64_t least = 0, uint64_t most = UINT64_MAX);
  // Finite numbers in [least, most].
  ArgParser& Real(const std::string& names, std::optional<double>* out, const std::string& help, double least,
                  double most);
  ArgParser& Size(const std::string& names, std::optional<uint64_t>* out, const std::string& help);
  // Values that `take` checks and keeps; one, or any number if the option `repeats`. An error is a usage
  // error.
  ArgParser& Values(const std::string& names, bool repeats,
                    std::function<absl::Status(const std::vector<std::string>&)> take,
                    const std::string& help);
  ArgParser& TimeSpan(const std::string& names, std::optional<absl::Duration>* out, const std::string& help);

  // Exactly one of these must be given, which may be declared later.
  ArgParser& RequireOneOf(const std::vector<std::string>& names);
  // The option declared last must be given.
  ArgParser& Required();
  // Options declared from here on stand under `title` in the help.
  ArgParser& Group(const std::string& title);

  // As Group, shown by --help-all only; --help ends with `hint` instead.
  ArgParser& HiddenGroup(const std::string& title, const std::string& hint);

  // Fills the variables from `args` (without program and sub-command). nullopt: go on. Otherwise the exit
  // code: kExitOk after --help (printed to stdout), kExitUsage after an error (printed to stderr).
  std::optional<int> Parse(const std::vector<std::string>& args);

  // As Parse for arguments that no person has typed: prints nothing. InvalidArgument: what is wrong.
  absl::Status Fill(const std::vector<std::string>& args);
  // Returns true if an option of this name, with its dashes, was declared.
  bool Knows(const std::string& name) const;

  // Prints `message` as this command's usage error to stderr and returns kExitUsage.
  int UsageError(const std::string& message) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "1,2,3" as whole numbers within [least, most]; spaces around a number are fine. InvalidArgument naming
// `what` and the entry; an empty text is an empty list.
absl::StatusOr<std::vector<int64_t>> ParseNumberList(std::string_view text, const std::string& what,
                                                     int64_t least, int64_t most);

// Token ids of "1,2,3": each 0..2^31-1, at least one.
absl::StatusOr<std::vector<int32_t>> ParseTokenIds(std::string_view text);

// "a,b,c" without empty entries.
std::vector<std::string> SplitList(std::string_view text);

// Shared parts of all sub-commands of `sluice`: their entry in the table, its context and its way to report.
//
// Each sub-command lives in a file of its own and is one function of type CommandFunction; main.cc has the
// table.
//
// Thread safety: commands run on the main thread; the functions here may be called from any thread.

struct CommandContext {
  Interrupt* interrupt;    // not owned
  std::string binary_dir;  // where `sluice` lies, and the daemons beside it
};

// The folder of the running program, "." if the kernel does not say.
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
// Not for people: the process that keeps the daemons of a runtime directory (supervisor.h).
int RunSupervise(const CommandContext& context, const std::vector<std::string>& args);

// Reports `status` on stderr as "COMMAND: CODE: message" (`command` as typed: "sluice pack"), with `json`
// also as the one object on stdout: {"error": {"code", "message"}}. Returns kExitFailed.
int Fail(const std::string& command, const absl::Status& status, bool json);

// Prints `value` and a newline to stdout. kExitOk, or kExitFailed if stdout could not be written.
int PrintJson(const Json& value);

// Writes `text` to stdout and flushes. Status names stdout.
absl::Status WriteStdout(const std::string& text);

// The bytes of the file, as they are; at most 1 GiB. `path` "-" reads standard input to its end.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace sluice::cli
