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
#include "cli/http_client.h"
#include "cli/hub_listing.h"

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

// The files of a hub's repository, brought into a folder that `--model` takes.
//
// Thread safety: free functions; several processes may pull into one folder, one after the other.

struct PullRequest {
  HubAccess access;
  std::string file;    // FileChoice's `wanted`
  std::string folder;  // made if it is not there
  bool force = false;  // replaces files that are not the hub's
  bool quiet = false;  // no progress, no notes
};

struct PullSummary {
  std::string commit;
  std::string model;  // what `--model` takes; empty if a file was pulled that is none
  uint64_t files = 0;
  uint64_t bytes = 0;  // of all of them
  uint64_t kept = 0;   // files that were there, and are the hub's
};

// Files get their names one by one, each once it is whole and its digest is right; the one that makes the
// folder a model is the last, and is taken away first where others must be replaced. ALREADY_EXISTS for a
// file that is not the hub's; RESOURCE_EXHAUSTED with both numbers if the disk is too small; those of
// ListRepository(), ChooseFiles() and FetchFile(). CANCELLED: what came stays, to be resumed.
absl::StatusOr<PullSummary> Pull(const PullRequest& request, const std::atomic<bool>* cancel);

}  // namespace sluice::cli
