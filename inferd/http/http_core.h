// HttpCore: state shared by the connections of one server: its thread, workers, keys, limits, counters.
//
// Thread safety: Post and the metrics may be used from any thread; everything else belongs to the
// io_context's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_set>
#include <utility>  // for Boost 1.74

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "inferd/http/http_keys.h"
#include "inferd/http/http_message.h"
#include "inferd/http/http_metrics.h"

namespace sluice::inferd {

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
  Mutex mutex;
  bool ended ABSL_GUARDED_BY(mutex) = false;
};

}  // namespace sluice::inferd
