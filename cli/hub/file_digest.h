// The digests by which a hub knows its files.
//
// Thread safety: a FileDigest is thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/types/span.h"

namespace sluice::cli {

enum class DigestKind {
  kSha256,   // of files that the hub keeps as large ones
  kGitSha1,  // of the others: SHA-1 over "blob SIZE", a zero byte and the content
};

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

}  // namespace sluice::cli
