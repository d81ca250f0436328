#include "cli/hub/file_digest.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sluice::cli {

struct FileDigest::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

FileDigest::FileDigest(DigestKind kind, uint64_t bytes) : impl_(std::make_unique<Impl>()) {
  EVP_DigestInit_ex(impl_->context, kind == DigestKind::kSha256 ? EVP_sha256() : EVP_sha1(), nullptr);
  if (kind == DigestKind::kGitSha1) {
    const std::string head = absl::StrCat("blob ", bytes);
    EVP_DigestUpdate(impl_->context, head.c_str(), head.size() + 1);
  }
}
FileDigest::~FileDigest() = default;
FileDigest::FileDigest(FileDigest&&) noexcept = default;
FileDigest& FileDigest::operator=(FileDigest&&) noexcept = default;

void FileDigest::Update(absl::Span<const std::byte> bytes) {
  EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size());
}

std::string FileDigest::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  if (EVP_DigestFinal_ex(impl_->context, digest, &length) != 1) return "";
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), length});
}

}  // namespace sluice::cli
