#include "cli/launch/sluice_run.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/ui/status_words.h"
#include "common/ring/unique_fd.h"
#include "common/status.h"

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

// Why it failed, with its own code where its JSON says one.
absl::Status FailureOf(const std::string& command, int result, const absl::StatusOr<std::string>& output) {
  if (WIFSIGNALED(result)) {
    return absl::InternalError(absl::StrCat(command, " was ended by signal ", WTERMSIG(result)));
  }
  const nlohmann::json json = nlohmann::json::parse(output.value_or(""), nullptr, /*allow_exceptions=*/false);
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
