// TempDir: a folder of its own for one test, removed with everything in it.
//
// Thread safety: immutable after construction; path() may be called from any thread.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace sluice {

class TempDir {
 public:
  TempDir() {
    // Short: a unix socket's path must fit into 107 bytes.
    std::string pattern = "/tmp/sluice-XXXXXX";
    const char* made = mkdtemp(pattern.data());
    path_ = made == nullptr ? "" : made;
  }
  ~TempDir() {
    std::error_code ignored;
    if (!path_.empty()) {
      std::filesystem::remove_all(path_, ignored);
    }
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  // Empty if it could not be made.
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace sluice
