#include "common/profile/profile_file.h"

#include <stdio.h>
#include <sys/stat.h>

#include <cerrno>
#include <cmath>

#include "common/base/checksum.h"
#include "common/base/file_io.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr size_t kDigestBytes = 16;

}  // namespace

absl::Status CheckProfileKey(const std::string& subject, const char* key_name, const std::string& found,
                             const std::string& wanted) {
  Digest128 digest;
  if (!Digest128::FromHex(found, &digest)) {
    return absl::DataLossError(absl::StrCat(subject, ": ", key_name, " is not 32 hex digits"));
  }
  if (!wanted.empty() && found != wanted) {
    return absl::FailedPreconditionError(
        absl::StrCat(subject, ": made for another model: its ", key_name, " is ", found, ", this pack's is ",
                     wanted, "; `sluice calibrate --pack PACK --text FILE` makes it anew"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadProfileFile(const std::string& path, uint64_t max_bytes) {
  if (!FileExists(path)) {
    return absl::NotFoundError(
        absl::StrCat(path, ": not there; `sluice calibrate --pack PACK --text FILE` makes it"));
  }
  absl::StatusOr<std::string> bytes = ReadFile(path, max_bytes);
  if (bytes.status().code() == absl::StatusCode::kInvalidArgument) {
    return absl::DataLossError(bytes.status().message());
  }
  return bytes;
}

absl::Status WriteProfileFile(const std::string& folder, const std::string& name, std::string_view content) {
  if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) {
    return ErrnoToStatus(errno, absl::StrCat("create folder ", folder));
  }
  const std::string path = absl::StrCat(folder, "/", name);
  // Written to a temporary name and renamed, so that a reader sees the old file or the new one, whole.
  const std::string fresh = path + ".new";
  RETURN_IF_ERROR(WriteFileDurably(fresh, content));
  if (rename(fresh.c_str(), path.c_str()) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("rename ", fresh, " to ", path));
  }
  return SyncFolder(folder);
}

// Binary tables end with a digest of all preceding bytes, so that a truncated or damaged file is not read as
// smaller or other tables.
void Seal(std::string* out) {
  const Digest128 digest = DigestOf(std::string_view(*out));
  AppendValue(digest.high, out);
  AppendValue(digest.low, out);
}

absl::StatusOr<std::string_view> Unseal(std::string_view bytes, std::string_view magic,
                                        const std::string& subject) {
  if (bytes.size() < magic.size() + kDigestBytes || bytes.substr(0, magic.size()) != magic) {
    return absl::DataLossError(absl::StrCat(subject, ": does not begin with ", std::string(magic)));
  }
  const std::string_view body = bytes.substr(0, bytes.size() - kDigestBytes);
  Digest128 stored;
  std::memcpy(&stored.high, bytes.data() + body.size(), sizeof(stored.high));
  std::memcpy(&stored.low, bytes.data() + body.size() + sizeof(stored.high), sizeof(stored.low));
  const Digest128 actual = DigestOf(body);
  if (stored != actual) {
    return absl::DataLossError(absl::StrCat(subject, ": damaged or cut short: its digest is ", actual.ToHex(),
                                            ", but it says ", stored.ToHex()));
  }
  return body.substr(magic.size());
}

absl::Status ByteReader::TakeText(size_t length, std::string* text) {
  if (rest_.size() < length) return Short(length);
  text->assign(rest_.substr(0, length));
  rest_.remove_prefix(length);
  return absl::OkStatus();
}

absl::Status ByteReader::TakeFinite(uint64_t count, const std::string& what, std::vector<float>* values) {
  RETURN_IF_ERROR(TakeMany(count, values));
  for (uint64_t i = 0; i < count; ++i) {
    if (!std::isfinite((*values)[i])) return Damaged(absl::StrCat(what, ": value ", i, " is not finite"));
  }
  return absl::OkStatus();
}

absl::Status ByteReader::Finish() const {
  if (rest_.empty()) return absl::OkStatus();
  return Damaged(absl::StrCat(rest_.size(), " bytes too many"));
}

absl::Status ByteReader::Damaged(const std::string& what) const {
  return absl::DataLossError(absl::StrCat(subject_, ": ", what));
}

absl::Status ByteReader::Short(uint64_t wanted) const {
  return Damaged(absl::StrCat("cut short: ", wanted, " more values are said to follow, ", rest_.size(),
                              " bytes are left"));
}

}  // namespace sluice
