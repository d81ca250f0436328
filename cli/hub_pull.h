// Download of a hub's files: each is fetched, resumed after an interruption, verified, and only then renamed
// to its final name.
//
// Thread safety: free functions; a file must not be fetched by two callers at once.
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
  std::string target;  // path of the finished file; its folder exists
  const std::atomic<bool>* cancel = nullptr;
  RetryNote note;
  // Receives the number of bytes fetched, which falls if they turn out to be wrong.
  std::function<void(uint64_t done)> progress;
};

// Path of the incomplete file. It includes the file's version, so that another version is never continued.
std::string PartialPath(const std::string& target, const HubFile& file);

// Returns true if the file at `path` has the digest of `file`. Errors: CANCELLED, read errors.
absl::StatusOr<bool> IsFile(const std::string& path, const HubFile& file, const std::atomic<bool>* cancel,
                            const std::function<void(uint64_t done)>& progress);

// DATA_LOSS, naming both numbers or digests, if the bytes do not match the hub's list (after two attempts for
// a wrong digest); UNAVAILABLE after some attempts without a byte; errors of StatusOfAnswer(); CANCELLED: the
// bytes so far are kept.
absl::Status FetchFile(HttpClient* http, const FileFetch& fetch);

// Download of a repository's files into a folder that `--model` accepts.
//
// Thread safety: free functions; several processes may pull into one folder, one after the other.

struct PullRequest {
  HubAccess access;
  std::string file;    // as `wanted` of ChooseFiles()
  std::string folder;  // created if missing
  bool force = false;  // replaces files that differ from the hub's
  bool quiet = false;  // neither progress nor notes
};

struct PullSummary {
  std::string commit;
  std::string model;  // argument for `--model`; empty if the file is not a model
  uint64_t files = 0;
  uint64_t bytes = 0;  // size of all files
  uint64_t kept = 0;   // number of files that existed and match the hub's
};

// Each file gets its name once it is complete and its digest is right. The file that completes the model
// comes last, and is removed first if others must be replaced. ALREADY_EXISTS for a file that differs from
// the hub's; RESOURCE_EXHAUSTED with both numbers if the disk is too small; errors of ListRepository(),
// ChooseFiles() and FetchFile(). CANCELLED: the bytes so far are kept for the next call.
absl::StatusOr<PullSummary> Pull(const PullRequest& request, const std::atomic<bool>* cancel);

}  // namespace sluice::cli
