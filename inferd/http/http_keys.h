// State shared by the connections of one HTTP server: API keys, metrics, limits.
//
// HttpKeys: API keys. A file lists each key's name, SHA-256 and limits; plain keys are stored nowhere.
//
//   # name  sha256 of the key, in hexadecimal                                          limits, each optional
//   alice   5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8  parallel=4 per-minute=60
//
// A key's hash is compared with all hashes of the file in constant time, so that response times reveal
// nothing.
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

namespace sluice::inferd {

// Usage of one key. Shared by its connections, and kept over a reload if the file still names the key.
struct HttpKeyUse {
  std::string name;
  uint32_t parallel = 0;    // concurrent requests; 0: no limit
  uint32_t per_minute = 0;  // requests started per minute; 0: no limit
  uint32_t running = 0;
  double tokens = 0;  // fill of a token bucket of size per_minute
  absl::Time filled = absl::InfinitePast();

  // Counts a request that starts now and that Leave() ends; or returns the delay until one would be admitted.
  std::optional<absl::Duration> Enter(absl::Time now);
  void Leave() { --running; }
};

class HttpKeys {
 public:
  // Reads `path`. INVALID_ARGUMENT naming file and line; FAILED_PRECONDITION if users other than the owner
  // may write the file. Usage of names that are also in `before` (may be null) is kept.
  static absl::StatusOr<std::unique_ptr<HttpKeys>> Load(const std::string& path, const HttpKeys* before);

  // Returns the usage of `key`; null: unknown key.
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

}  // namespace sluice::inferd
