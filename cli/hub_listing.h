// A hub's repository before its files are fetched: their digests, their list, and the choice of those that
// make a model.
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
  kSha256,   // of files that the hub keeps as large ones
  kGitSha1,  // of the others: SHA-1 over "blob SIZE", a zero byte and the content
};

// The digests by which a hub knows its files. Thread-compatible.
class FileDigest {
 public:
  // `bytes`: the length of the whole file.
  FileDigest(DigestKind kind, uint64_t bytes);
  ~FileDigest();
  FileDigest(FileDigest&&) noexcept;
  FileDigest& operator=(FileDigest&&) noexcept;

  void Update(absl::Span<const std::byte> bytes);
  // In lower-case hex. Nothing may follow.
  std::string Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A hub's listing of a repository: its commit and its files.
//
// Thread safety: thread-compatible.

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

// Selects the files of a repository that make a model for `--model`.
//
// Thread safety: pure functions.

struct FileChoice {
  // To be fetched in this order: the last makes what lies there a model.
  std::vector<HubFile> files;
  // Argument of `--model`, relative to the folder; empty for the folder itself.
  std::string model;
  // False for a single file that is no model.
  bool is_model = true;
};

// `wanted` empty: the safetensors in the repository's root with config and tokenizer, else its only GGUF
// model. Else the file of this path, or the only GGUF model whose name contains `wanted` in any case
// ("q4_k_m"); of a split GGUF model all parts. NOT_FOUND or INVALID_ARGUMENT naming what there is.
absl::StatusOr<FileChoice> ChooseFiles(const std::vector<HubFile>& files, const std::string& wanted);

}  // namespace sluice::cli
