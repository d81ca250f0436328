// HttpKeys: who may ask. A file names each key, the SHA-256 of it and its limits; keys themselves are
// nowhere.
//
//   # name  sha256 of the key, in hexadecimal                                          limits, each optional
//   alice   5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8  parallel=4 per-minute=60
//
// A key's hash is compared with all of the file's in constant time, so that an answer's time says nothing.
//
// Thread safety: thread-compatible; the server's thread uses it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice {

// One key's use. Shared by the connections that use it, and kept when the file is read anew and still names
// it.
struct HttpKeyUse {
  std::string name;
  uint32_t parallel = 0;    // requests at a time; 0: no limit
  uint32_t per_minute = 0;  // requests begun in a minute; 0: no limit
  uint32_t running = 0;
  double tokens = 0;  // of a bucket that holds per_minute
  absl::Time filled = absl::InfinitePast();

  // Counts a request that begins now, which Leave() ends; or how long to wait for one that would be let in.
  std::optional<absl::Duration> Enter(absl::Time now);
  void Leave() { --running; }
};

class HttpKeys {
 public:
  // Reads `path`. INVALID_ARGUMENT naming file and line; FAILED_PRECONDITION: others than its owner may write
  // the file. Uses of names that `before` (may be null) has go on.
  static absl::StatusOr<std::unique_ptr<HttpKeys>> Load(const std::string& path, const HttpKeys* before);

  // Whose key this is; null: nobody's.
  std::shared_ptr<HttpKeyUse> Find(std::string_view key) const;

  size_t size() const { return entries_.size(); }

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Entry {
    Digest digest;
    std::shared_ptr<HttpKeyUse> use;
  };
  absl::Status AddLine(const std::string& line, const HttpKeys* before);

  std::vector<Entry> entries_;
};

}  // namespace sluice
