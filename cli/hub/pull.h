// The files of a hub's repository, brought into a folder that `--model` takes.
//
// Thread safety: free functions; several processes may pull into one folder, one after the other.
#pragma once

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "cli/hub/hub_listing.h"

namespace sluice::cli {

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
