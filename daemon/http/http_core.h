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
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "daemon/http/http_message.h"

namespace sluice {

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

// HttpMetrics: counts connections, and HTTP responses by client and status.
//
// Thread safety: thread-safe.

class HttpMetrics {
 public:
  // Counts a response at its start. Clients are user classes or key names, so there are few.
  void Answered(const std::string& client, int status) ABSL_LOCKS_EXCLUDED(mutex_);
  void ConnectionsAre(uint64_t count) { connections_.store(count, std::memory_order_relaxed); }
  void Refused() { refused_.fetch_add(1, std::memory_order_relaxed); }
  void Left() { left_.fetch_add(1, std::memory_order_relaxed); }

  uint64_t connections() const { return connections_.load(std::memory_order_relaxed); }

  HttpCounts Counts() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::atomic<uint64_t> connections_{0};
  std::atomic<uint64_t> refused_{0};
  std::atomic<uint64_t> left_{0};
  mutable Mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> answers_ ABSL_GUARDED_BY(mutex_);
};

// HttpCore: state shared by the connections of one server: its thread, workers, keys, limits, counters.
//
// Thread safety: Post and the metrics may be used from any thread; everything else belongs to the
// io_context's thread.

class HttpConnection;

struct HttpLimits {
  size_t max_body_bytes = 16 << 20;     // per request
  size_t max_bodies_bytes = 256 << 20;  // all requests that are being read or handled
  uint32_t max_connections = 2048;
  absl::Duration idle_timeout = absl::Seconds(120);  // idle timeout between two requests
  absl::Duration head_timeout = absl::Seconds(10);   // from a request's first byte to the end of its head
  absl::Duration body_timeout = absl::Seconds(20);   // base timeout of a body, plus 1 s for each 8 KiB of it
};

// Requests are parsed on two threads, so that tokenizing a long prompt does not delay a short one.
inline constexpr unsigned kHttpWorkers = 2;

struct HttpCore : std::enable_shared_from_this<HttpCore> {
  HttpHandler* handler = nullptr;
  HttpLimits limits;
  std::function<absl::Duration()> stall_timeout;  // a reader that accepts nothing for so long is cut

  boost::asio::io_context io{1};
  boost::asio::thread_pool workers{kHttpWorkers};
  std::unordered_set<std::shared_ptr<HttpConnection>> connections;
  std::unique_ptr<HttpKeys> keys;  // null: no key required
  size_t bodies_bytes = 0;
  bool draining = false;  // connections end after their current answer
  HttpMetrics metrics;

  // Runs `work` on the server's thread; false if the server has ended and `work` will not run.
  template <typename Work>
  bool Post(Work work) ABSL_LOCKS_EXCLUDED(mutex) {
    const MutexLock lock(&mutex);
    if (!ended) {
      boost::asio::post(io, std::move(work));
    }
    return !ended;
  }
  // Runs `work` now on the server's thread, and posts it from others.
  template <typename Work>
  bool Dispatch(Work work) ABSL_LOCKS_EXCLUDED(mutex) {
    if (!io.get_executor().running_in_this_thread()) {
      return Post(std::move(work));
    }
    work();
    return true;
  }
  Mutex mutex;
  bool ended ABSL_GUARDED_BY(mutex) = false;
};

}  // namespace sluice
