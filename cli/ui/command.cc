#include "cli/ui/command.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/size.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

constexpr uint64_t kLargestFile = 1ull << 30;  // texts and id lists; models have their own readers

absl::StatusOr<std::string> ReadDescriptor(int fd, const std::string& path) {
  std::string bytes;
  char chunk[1 << 16];
  while (true) {
    const ssize_t n = read(fd, chunk, sizeof(chunk));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    }
    if (n == 0) {
      return bytes;
    }
    bytes.append(chunk, static_cast<size_t>(n));
    if (bytes.size() > kLargestFile) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": larger than ", FormatSize(kLargestFile)));
    }
  }
}

absl::Status WriteDescriptor(int fd, const std::string& bytes, const std::string& path) {
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t n = write(fd, bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
    }
    at += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

std::string BinaryDir() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (n <= 0) {
    return ".";
  }
  const std::string_view whole(path, static_cast<size_t>(n));
  return std::string(whole.substr(0, whole.rfind('/')));
}

int Fail(const std::string& command, const absl::Status& status, bool json) {
  const std::string code = absl::StatusCodeToString(status.code());
  std::fprintf(stderr, "%s: %s: %s\n", command.c_str(), code.c_str(), std::string(status.message()).c_str());
  if (json) {
    PrintJson(Json::Object().Set(
        "error", Json::Object().Set("code", code).Set("message", std::string(status.message()))));
  }
  return kExitFailed;
}

int PrintJson(const Json& value) {
  const absl::Status written = WriteStdout(absl::StrCat(value.Dump(), "\n"));
  if (!written.ok()) {
    std::fprintf(stderr, "sluice: %s\n", std::string(written.message()).c_str());
    return kExitFailed;
  }
  return kExitOk;
}

absl::Status WriteStdout(const std::string& text) {
  return WriteDescriptor(STDOUT_FILENO, text, "standard output");
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  if (path == "-") {
    return ReadDescriptor(STDIN_FILENO, "standard input");
  }
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  }
  const absl::Cleanup closer = [fd] { close(fd); };
  return ReadDescriptor(fd, path);
}

}  // namespace sluice::cli
