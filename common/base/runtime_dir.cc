#include "common/base/runtime_dir.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr char kLongestName[] = "inferd-admin.sock.data";

const char* Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != '\0' ? value : nullptr;
}

// Creates missing parents too: $XDG_RUNTIME_DIR exists if it is set, a custom path may not exist.
absl::Status MakeDirs(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string prefix = path.substr(0, slash);
    if (mkdir(prefix.c_str(), 0700) != 0 && errno != EEXIST) {
      return ErrnoToStatus(errno, absl::StrCat("cannot create the runtime directory ", prefix));
    }
    if (slash == std::string::npos) {
      return absl::OkStatus();
    }
  }
}

// Checks here that the longest socket name fits a unix address, because this error can explain the fix,
// unlike a daemon's later bind error.
absl::Status CheckSocketPath(const std::string& path) {
  constexpr size_t kLimit = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > kLimit) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket path ", path, " has ", path.size(), " bytes, and a unix socket's at most ",
                     kLimit, ": choose a shorter one, for example by SLUICE_RUNTIME_DIR"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string RuntimeDirPath() {
  if (const char* own = Environment("SLUICE_RUNTIME_DIR")) {
    return own;
  }
  if (const char* xdg = Environment("XDG_RUNTIME_DIR")) {
    return absl::StrCat(xdg, "/sluice");
  }
  return absl::StrCat("/tmp/sluice-", getuid());
}

absl::StatusOr<std::string> EnsureRuntimeDir() {
  const std::string path = RuntimeDirPath();
  RETURN_IF_ERROR(CheckSocketPath(absl::StrCat(path, "/", kLongestName)));
  RETURN_IF_ERROR(MakeDirs(path));
  struct stat info {};
  // In /tmp anyone may have made the folder first. lstat, so that a link to one of our folders does not pass.
  if (lstat(path.c_str(), &info) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("cannot look at the runtime directory ", path));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != getuid() || (info.st_mode & 022) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("the runtime directory %s must be a directory of uid %d that nobody else may write "
                        "to; it has uid %d and "
                        "mode %04o. Remove it, or name another by SLUICE_RUNTIME_DIR",
                        path, getuid(), info.st_uid, info.st_mode & 07777));
  }
  return path;
}

}  // namespace sluice
