// The names in the runtime directory, joined to it, and the daemons' command lines with them.
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
  std::string supervisor_socket;
  std::string supervisor_log;
  std::string weightd_socket;
  std::string weightd_log;
  std::string inferd_socket;
  std::string inferd_admin_socket;
  std::string inferd_log;
};

// Command lines for the supervisor: weightd and inferd of `binary_dir` for `options` in `paths`.
// `pack_dir` is absolute.
SupervisorOptions DaemonsOf(const RuntimePaths& paths, const std::string& binary_dir,
                            const std::string& pack_dir, const CommonOptions& options);

// The address of the admin service that belongs to the inference address `address` by the names of the
// runtime directory ("unix:DIR/inferd.sock"); "" if it is not of that form.
std::string AdminAddressOf(const std::string& address);

// "unix:PATH" of "unix:PATH" or "PATH": how a socket of operators is named. INVALID_ARGUMENT for TCP, which
// operators are not reached by.
absl::StatusOr<std::string> AdminAddressFrom(const std::string& text);

// The last `lines` lines of the file, indented; "" if it cannot be read.
std::string LogTail(const std::string& path, int lines);

// End of a log: the last line's text if it is an error, else the last `lines` lines, with the
// file's name before either.
std::string LastWords(const std::string& path, int lines);

}  // namespace sluice::cli
