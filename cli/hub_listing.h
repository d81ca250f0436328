// A hub's repository before its files are fetched: digests, file list, and the choice of the files that form
// a model.
//
// Thread safety: stated at each part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/http_client.h"

namespace sluice::cli {

enum class DigestKind {
  kSha256,   // files that the hub stores as large ones
  kGitSha1,  // other files: SHA-1 over "blob SIZE", a zero byte and the content
};

// FileDigest: the digests by which a hub identifies its files. Thread-compatible.
class FileDigest {
 public:
  // `bytes`: length of the whole file.
  FileDigest(DigestKind kind, uint64_t bytes);
  ~FileDigest();
  FileDigest(FileDigest&&) noexcept;
  FileDigest& operator=(FileDigest&&) noexcept;

  void Update(absl::Span<const std::byte> bytes);
  // Returns the digest in lower-case hex. The object must not be used afterwards.
  std::string Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Listing of a hub's repository: its commit and its files.
//
// Thread safety: thread-compatible.

// Address and credentials of a repository.
struct HubAccess {
  std::string endpoint;    // "https://huggingface.co", without a trailing slash
  std::string token;       // empty: none
  std::string repository;  // "OWNER/NAME"
  std::string revision;    // branch, tag or commit
};

struct HubFile {
  std::string path;  // within the repository; safe below any folder: no "..", no empty component
  uint64_t bytes = 0;
  DigestKind kind = DigestKind::kSha256;
  std::string digest;  // lower-case hex
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;  // in the hub's order
};

// INVALID_ARGUMENT: `repository` is not OWNER/NAME, the endpoint is no URL, or a token would be sent
// unencrypted to another machine.
absl::Status CheckAccess(const HubAccess& access);

// Returns the URL of a file of the commit.
std::string FileUrl(const HubAccess& access, const std::string& commit, const std::string& path);

// DATA_LOSS for a malformed response; errors of StatusOfAnswer() and of HttpClient::Get().
absl::StatusOr<HubListing> ListRepository(HttpClient* http, const HubAccess& access,
                                          const std::atomic<bool>* cancel, const RetryNote& note);

// Parses one page of the hub's file list, a JSON array. DATA_LOSS naming the entry: no digest, or a path that
// leaves the folder.
absl::StatusOr<std::vector<HubFile>> FilesOfPage(const std::string& json, const std::string& subject);

// Selects the files of a repository that form a model for `--model`.
//
// Thread safety: pure functions.

struct FileChoice {
  // To be fetched in this order: the last file completes the model.
  std::vector<HubFile> files;
  // Argument for `--model`, relative to the folder; empty: the folder itself.
  std::string model;
  // False for a single file that is not a model.
  bool is_model = true;
};

// `wanted` empty: the safetensors in the repository's root with config and tokenizer, or else its only GGUF
// model. Otherwise the file of this path, or the only GGUF model whose name contains `wanted` in any case
// ("q4_k_m"), with all parts of a split one. NOT_FOUND or INVALID_ARGUMENT, listing the files to choose from.
absl::StatusOr<FileChoice> ChooseFiles(const std::vector<HubFile>& files, const std::string& wanted);

}  // namespace sluice::cli
