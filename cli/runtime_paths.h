// Paths in the runtime directory, and the daemons' command lines that use them.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/daemon_options.h"
#include "cli/supervisor.h"

namespace sluice::cli {

struct RuntimePaths {
  RuntimePaths() = default;
  explicit RuntimePaths(const std::string& dir);

  std::string dir;
  std::string start_lock;
  std::string supervisor_lock;
  std::string models_lock;  // of a server of several models
  std::string supervisor_socket;
  std::string supervisor_log;
  std::string weightd_socket;
  std::string weightd_log;
  std::string inferd_socket;
  std::string inferd_admin_socket;
  std::string inferd_log;
};

// Returns the supervisor's options: command lines of weightd and inferd in `binary_dir`, for `options` and
// `paths`. `pack_dir` is absolute.
SupervisorOptions DaemonsOf(const RuntimePaths& paths, const std::string& binary_dir,
                            const std::string& pack_dir, const CommonOptions& options);

// Returns the admin socket beside the inference address "unix:DIR/inferd.sock"; "" for an address of another
// form.
std::string AdminAddressOf(const std::string& address);

// Normalizes "unix:PATH" or "PATH" to "unix:PATH". INVALID_ARGUMENT for TCP, where there is no admin service.
absl::StatusOr<std::string> AdminAddressFrom(const std::string& text);

// Returns the last `lines` lines of the file, indented; "" if it cannot be read.
std::string LogTail(const std::string& path, int lines);

// Returns the end of a log: the last line's text if it is an error, else the last `lines` lines, in both
// cases after the file's name.
std::string LastWords(const std::string& path, int lines);

}  // namespace sluice::cli
