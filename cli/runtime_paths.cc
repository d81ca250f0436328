#include "cli/runtime_paths.h"

#include <deque>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/listen_address.h"
#include "common/base/runtime_dir.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

void Append(std::vector<std::string>* argv, const std::vector<OptionText>& settings) {
  for (std::string& flag : AsFlags(settings)) {
    argv->push_back(std::move(flag));
  }
}

}  // namespace

RuntimePaths::RuntimePaths(const std::string& runtime_dir)
    : dir(runtime_dir),
      start_lock(absl::StrCat(dir, "/start.lock")),
      supervisor_lock(absl::StrCat(dir, "/supervisor.lock")),
      models_lock(absl::StrCat(dir, "/models.lock")),
      supervisor_socket(absl::StrCat(dir, "/supervisor.sock")),
      supervisor_log(absl::StrCat(dir, "/supervisor.log")),
      weightd_socket(absl::StrCat(dir, "/", kWeightdSocketName)),
      weightd_log(absl::StrCat(dir, "/weightd.log")),
      inferd_socket(absl::StrCat(dir, "/", kInferdSocketName)),
      inferd_admin_socket(absl::StrCat(dir, "/", kInferdAdminSocketName)),
      inferd_log(absl::StrCat(dir, "/inferd.log")) {}

SupervisorOptions DaemonsOf(const RuntimePaths& paths, const std::string& binary_dir,
                            const std::string& pack_dir, const CommonOptions& options) {
  SupervisorOptions supervisor;
  supervisor.socket_path = paths.supervisor_socket;
  supervisor.lock_path = paths.supervisor_lock;
  supervisor.restart = !options.no_restart;
  DaemonCommand weightd{
      "weightd",
      {absl::StrCat(binary_dir, "/weightd"), "--socket", paths.weightd_socket, "--pack", pack_dir},
      paths.weightd_log};
  Append(&weightd.argv, options.WeightdSettings());
  DaemonCommand inferd{"inferd",
                       {absl::StrCat(binary_dir, "/inferd"), "--pack", pack_dir, "--weightd",
                        paths.weightd_socket, "--listen", absl::StrCat("unix:", paths.inferd_socket),
                        "--admin", absl::StrCat("unix:", paths.inferd_admin_socket)},
                       paths.inferd_log};
  if (!options.self_test) {
    Append(&inferd.argv, {{"self-test", "off"}});
  }
  Append(&inferd.argv, options.InferdSettings());
  supervisor.daemons = {std::move(weightd), std::move(inferd)};
  return supervisor;
}

std::string AdminAddressOf(const std::string& address) {
  const std::string suffix = absl::StrCat("/", kInferdSocketName);
  if (!absl::StartsWith(address, "unix:") || !absl::EndsWith(address, suffix)) {
    return "";
  }
  return absl::StrCat(address.substr(0, address.size() - suffix.size()), "/", kInferdAdminSocketName);
}

absl::StatusOr<std::string> AdminAddressFrom(const std::string& text) {
  const std::string address = absl::StartsWith(text, "unix:") ? text : absl::StrCat("unix:", text);
  const bool looks_like_tcp =
      !absl::StrContains(text, '/') && ParseListenAddress(text).ok() && !absl::StartsWith(text, "unix:");
  if (text.empty() || looks_like_tcp) {
    return absl::InvalidArgumentError(
        absl::StrCat("--admin ", text, ": operators are reached by a unix socket: unix:PATH"));
  }
  ASSIGN_OR_RETURN(const ListenAddress parsed, ParseListenAddress(address));
  return parsed.ToString();
}

std::string LogTail(const std::string& path, int lines) {
  std::ifstream file(path);
  std::deque<std::string> tail;
  for (std::string line; std::getline(file, line);) {
    tail.push_back(line);
    if (tail.size() > static_cast<size_t>(lines)) {
      tail.pop_front();
    }
  }
  std::string text;
  for (const std::string& line : tail) {
    absl::StrAppend(&text, "\n  ", line);
  }
  return text;
}

std::string LastWords(const std::string& path, int lines) {
  constexpr char kError[] = " error ";
  const std::string last = LogTail(path, 1);
  // The time precedes the level, and neither contains a space.
  const size_t level = last.find(' ', last.find_first_not_of("\n "));
  if (level != std::string::npos && absl::StartsWith(last.substr(level), kError)) {
    return absl::StrCat(last.substr(level + sizeof(kError) - 1), " (", path, ")");
  }
  return absl::StrCat(path, " ends with:", LogTail(path, lines));
}

}  // namespace sluice::cli
