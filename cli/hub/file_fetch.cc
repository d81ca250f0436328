#include "cli/hub/file_fetch.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/file_io.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

constexpr uint64_t kReadBytes = 4 << 20;

// Adds the first `bytes` of an open file to a digest.
absl::Status DigestStart(const File& file, uint64_t bytes, FileDigest* digest,
                         const std::atomic<bool>* cancel,
                         const std::function<void(uint64_t done)>& progress) {
  std::vector<std::byte> buffer(std::min(kReadBytes, bytes));
  for (uint64_t done = 0; done < bytes;) {
    if (cancel != nullptr && cancel->load()) return absl::CancelledError("interrupted");
    const absl::Span<std::byte> piece(buffer.data(), std::min<uint64_t>(buffer.size(), bytes - done));
    RETURN_IF_ERROR(file.ReadAt(done, piece));
    digest->Update(piece);
    done += piece.size();
    progress(done);
  }
  return absl::OkStatus();
}

// FIRST and TOTAL of "bytes FIRST-LAST/TOTAL".
struct ContentRange {
  uint64_t first = 0;
  std::optional<uint64_t> total;
};
std::optional<ContentRange> ParseContentRange(const std::string& text) {
  ContentRange range;
  const std::vector<std::string> parts = absl::StrSplit(text, absl::ByAnyChar(" -/"));
  if (parts.size() != 4 || parts[0] != "bytes" || !absl::SimpleAtoi(parts[1], &range.first))
    return std::nullopt;
  uint64_t total = 0;
  if (absl::SimpleAtoi(parts[3], &total)) range.total = total;
  return range;
}

class Fetcher {
 public:
  Fetcher(HttpClient* http, const FileFetch& fetch)
      : http_(http), fetch_(fetch), digest_(fetch.file.kind, fetch.file.bytes) {}

  absl::Status Run() {
    RETURN_IF_ERROR(Open());
    Retries retries(fetch_.cancel, fetch_.note);
    for (bool again = true;;) {
      while (have_ < fetch_.file.bytes) {
        const uint64_t before = have_;
        std::optional<absl::Duration> asked;
        const absl::Status status = Continue(&asked);
        if (!status.ok()) RETURN_IF_ERROR(retries.Wait(status, asked, have_ > before));
      }
      const std::string digest = digest_.Finish();
      if (digest == fetch_.file.digest) break;
      RETURN_IF_ERROR(Restart());
      if (!again) {
        return absl::DataLossError(absl::StrCat(fetch_.file.path, ": its digest is ", digest,
                                                ", the hub's list says ", fetch_.file.digest));
      }
      fetch_.note(absl::StrCat(fetch_.file.path, ": its digest is wrong; once more from its beginning"));
      again = false;
    }
    RETURN_IF_ERROR(file_.Sync());
    if (std::rename(partial_.c_str(), fetch_.target.c_str()) != 0) {
      return ErrnoToStatus(errno, absl::StrCat("cannot rename ", partial_, " to ", fetch_.target));
    }
    return SyncFolder(std::filesystem::path(fetch_.target).parent_path().string());
  }

 private:
  absl::Status Open() {
    partial_ = PartialPath(fetch_.target, fetch_.file);
    ASSIGN_OR_RETURN(file_, File::OpenForWrite(partial_));
    ASSIGN_OR_RETURN(have_, file_.Size());
    if (have_ > fetch_.file.bytes) return Restart();
    return DigestStart(file_, have_, &digest_, fetch_.cancel, fetch_.progress);
  }

  absl::Status Restart() {
    RETURN_IF_ERROR(file_.Truncate(0));
    have_ = 0;
    digest_ = FileDigest(fetch_.file.kind, fetch_.file.bytes);
    fetch_.progress(0);
    return absl::OkStatus();
  }

  // One request for what is missing. OK if all of it came.
  absl::Status Continue(std::optional<absl::Duration>* asked) {
    bool first = true;
    const absl::StatusOr<HttpHead> head =
        http_->Get({.url = fetch_.url, .token = fetch_.token, .from = have_},
                   [&](const HttpHead& answer, absl::Span<const std::byte> bytes) -> absl::Status {
                     if (first) RETURN_IF_ERROR(Begin(answer));
                     first = false;
                     return Take(bytes);
                   });
    RETURN_IF_ERROR(head.status());
    *asked = head->retry_after;
    const absl::Status status = StatusOfAnswer(*head, fetch_.file.path, !fetch_.token.empty());
    if (absl::IsOutOfRange(status)) return Differs(have_);
    RETURN_IF_ERROR(status);
    if (have_ == fetch_.file.bytes) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(fetch_.file.path, ": the hub's answer ends after ", have_,
                                               " of ", fetch_.file.bytes, " bytes"));
  }

  // Checks the byte range in a response's header.
  absl::Status Begin(const HttpHead& head) {
    if (head.status == 206) {
      const std::string text = head.Header("content-range");
      const std::optional<ContentRange> range = ParseContentRange(text);
      if (!range.has_value() || range->first != have_) {
        return absl::DataLossError(
            absl::StrCat(fetch_.file.path, ": asked for bytes from ", have_, ", the hub sends '", text, "'"));
      }
      return range->total.value_or(fetch_.file.bytes) == fetch_.file.bytes ? absl::OkStatus()
                                                                           : Differs(*range->total);
    }
    uint64_t length = 0;
    if (absl::SimpleAtoi(head.Header("content-length"), &length) && length != fetch_.file.bytes)
      return Differs(length);
    return have_ == 0 ? absl::OkStatus() : Restart();  // it knows no ranges
  }

  absl::Status Differs(uint64_t bytes) const {
    return absl::DataLossError(
        absl::StrCat(fetch_.file.path, ": the hub has ", bytes, " bytes, its list says ", fetch_.file.bytes));
  }

  absl::Status Take(absl::Span<const std::byte> bytes) {
    if (bytes.size() > fetch_.file.bytes - have_) return Differs(have_ + bytes.size());
    RETURN_IF_ERROR(file_.WriteAt(have_, bytes));
    digest_.Update(bytes);
    have_ += bytes.size();
    fetch_.progress(have_);
    return absl::OkStatus();
  }

  HttpClient* const http_;
  const FileFetch& fetch_;
  std::string partial_;
  File file_;
  uint64_t have_ = 0;
  FileDigest digest_;
};

}  // namespace

std::string PartialPath(const std::string& target, const HubFile& file) {
  return absl::StrCat(target, ".", file.digest.substr(0, 16), ".partial");
}

absl::StatusOr<bool> IsFile(const std::string& path, const HubFile& file, const std::atomic<bool>* cancel,
                            const std::function<void(uint64_t done)>& progress) {
  ASSIGN_OR_RETURN(const File open, File::OpenForRead(path));
  ASSIGN_OR_RETURN(const uint64_t bytes, open.Size());
  if (bytes != file.bytes) return false;
  FileDigest digest(file.kind, file.bytes);
  RETURN_IF_ERROR(DigestStart(open, bytes, &digest, cancel, progress));
  return digest.Finish() == file.digest;
}

absl::Status FetchFile(HttpClient* http, const FileFetch& fetch) { return Fetcher(http, fetch).Run(); }

}  // namespace sluice::cli
