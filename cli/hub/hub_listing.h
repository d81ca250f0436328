// A hub's listing of a repository: its commit and its files.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/hub/file_digest.h"
#include "cli/hub/http_client.h"
#include "cli/hub/retry.h"

namespace sluice::cli {

// Where and how a hub is asked.
struct HubAccess {
  std::string endpoint;    // "https://huggingface.co", without a slash at its end
  std::string token;       // empty: none
  std::string repository;  // "OWNER/NAME"
  std::string revision;    // a branch, tag or commit
};

struct HubFile {
  std::string path;  // in the repository; safe below any folder: no "..", no empty component
  uint64_t bytes = 0;
  DigestKind kind = DigestKind::kSha256;
  std::string digest;  // lower-case hex
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;  // as the hub orders them
};

// INVALID_ARGUMENT: `repository` is no OWNER/NAME, the endpoint no URL, or a token would travel unencrypted
// beyond this machine.
absl::Status CheckAccess(const HubAccess& access);

// Where a file of the commit is fetched.
std::string FileUrl(const HubAccess& access, const std::string& commit, const std::string& path);

// DATA_LOSS for an answer that is not what hubs say; those of StatusOfAnswer(), and of HttpClient::Get().
absl::StatusOr<HubListing> ListRepository(HttpClient* http, const HubAccess& access,
                                          const std::atomic<bool>* cancel, const RetryNote& note);

// The files of one page of the hub's list, a JSON array. DATA_LOSS naming the entry: no digest, a path that
// leaves the folder.
absl::StatusOr<std::vector<HubFile>> FilesOfPage(const std::string& json, const std::string& subject);

}  // namespace sluice::cli
