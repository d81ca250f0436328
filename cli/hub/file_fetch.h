// One file of a hub: brought, resumed where an earlier attempt stopped, verified, and only then given its
// name.
//
// Thread safety: free functions; no two may fetch the same file at once.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/hub/http_client.h"
#include "cli/hub/hub_listing.h"
#include "cli/hub/retry.h"

namespace sluice::cli {

struct FileFetch {
  std::string url;
  std::string token;
  HubFile file;
  std::string target;  // its folder exists
  const std::atomic<bool>* cancel = nullptr;
  RetryNote note;
  // Number of bytes fetched; falls when they turn out to be wrong.
  std::function<void(uint64_t done)> progress;
};

// Where the bytes of `target` lie until they are whole: a name of their version, so that those of another are
// never taken for its beginning.
std::string PartialPath(const std::string& target, const HubFile& file);

// Returns true if the file at `path` has the digest of `file`. Errors: CANCELLED, read errors.
absl::StatusOr<bool> IsFile(const std::string& path, const HubFile& file, const std::atomic<bool>* cancel,
                            const std::function<void(uint64_t done)>& progress);

// DATA_LOSS, naming both numbers or digests, if the hub's bytes are not what its list says (a wrong digest is
// tried twice); UNAVAILABLE after some attempts without a byte; those of StatusOfAnswer(); CANCELLED: what
// came stays.
absl::Status FetchFile(HttpClient* http, const FileFetch& fetch);

}  // namespace sluice::cli
