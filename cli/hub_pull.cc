#include "cli/hub_pull.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/hub_listing.h"
#include "cli/output_files.h"
#include "cli/terminal.h"
#include "common/base/file_io.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "pack/writer/staging.h"

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

  // Requests the missing bytes. OK if all of them arrived.
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
    return have_ == 0 ? absl::OkStatus() : Restart();  // the server does not support ranges
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

namespace {

namespace fs = std::filesystem;

constexpr char kLock[] = ".pull.lock";

class Puller {
 public:
  Puller(const PullRequest& request, const std::atomic<bool>* cancel)
      : request_(request),
        cancel_(cancel),
        http_(cancel),
        progress_("pulling", ProgressUnit::kBytes, request.quiet) {
    note_ = [this](const std::string& text) {
      progress_.Finish();
      if (!request_.quiet) std::fprintf(stderr, "sluice: %s\n", text.c_str());
    };
  }

  absl::StatusOr<PullSummary> Run() {
    RETURN_IF_ERROR(CheckAccess(request_.access));
    ASSIGN_OR_RETURN(const HubListing listing, ListRepository(&http_, request_.access, cancel_, note_));
    ASSIGN_OR_RETURN(const FileChoice choice, ChooseFiles(listing.files, request_.file));
    std::error_code error;
    fs::create_directories(request_.folder, error);
    if (error) return ErrnoToStatus(error.value(), absl::StrCat("cannot make the folder ", request_.folder));
    ASSIGN_OR_RETURN(
        const UniqueFd lock,
        LockFile(absl::StrCat(request_.folder, "/", kLock), absl::InfiniteDuration(), cancel_,
                 [this](const std::string&) {
                   note_(absl::StrCat("another command pulls into ", request_.folder, "; waiting for it"));
                 }));
    PullSummary summary{.commit = listing.commit, .files = choice.files.size()};
    for (const HubFile& file : choice.files) summary.bytes += file.bytes;
    total_ = summary.bytes;
    ASSIGN_OR_RETURN(std::vector<HubFile> missing, Missing(choice));
    summary.kept = choice.files.size() - missing.size();
    RETURN_IF_ERROR(CheckSpace(missing));
    if (!missing.empty() && choice.is_model) RETURN_IF_ERROR(Unmake(choice.files.back(), &missing));
    for (const HubFile& file : missing) RETURN_IF_ERROR(Fetch(file, listing.commit));
    if (choice.is_model) {
      summary.model = choice.model.empty() ? request_.folder : PathOf(choice.model);
    }
    return summary;
  }

 private:
  std::string PathOf(const std::string& file) const { return absl::StrCat(request_.folder, "/", file); }

  void Show(uint64_t done_of_file) { progress_.Update(done_ + done_of_file, total_); }

  // Returns the files of the choice that do not exist yet, in its order.
  absl::StatusOr<std::vector<HubFile>> Missing(const FileChoice& choice) {
    std::vector<HubFile> missing;
    for (const HubFile& file : choice.files) {
      const std::string path = PathOf(file.path);
      progress_.Suffix(absl::StrCat("checking ", file.path));
      bool there = FileExists(path);
      if (there) {
        ASSIGN_OR_RETURN(there, IsFile(path, file, cancel_, [this](uint64_t done) { Show(done); }));
        if (!there && !request_.force) {
          return absl::AlreadyExistsError(
              absl::StrCat(path, " is there and is not what the hub has; --force replaces it"));
        }
      }
      if (there) {
        done_ += file.bytes;
      } else {
        missing.push_back(file);
      }
    }
    return missing;
  }

  absl::Status CheckSpace(const std::vector<HubFile>& missing) const {
    uint64_t needed = 0;
    for (const HubFile& file : missing) {
      std::error_code error;
      const uint64_t there = fs::file_size(PartialPath(PathOf(file.path), file), error);
      needed += file.bytes - (error ? 0 : std::min<uint64_t>(there, file.bytes));
    }
    ASSIGN_OR_RETURN(const uint64_t free, FreeBytes(request_.folder));
    if (needed <= free) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(request_.folder, ": ", FormatSize(needed),
                                                     " are still to be brought, ", FormatSize(free),
                                                     " are free there; --out FOLDER puts them elsewhere"));
  }

  // Makes the folder no valid model while files are replaced: renames the file that completes the model to a
  // partial file if it is the hub's, else removes it. It is the last of `missing` in either case.
  absl::Status Unmake(const HubFile& marker, std::vector<HubFile>* missing) {
    const std::string path = PathOf(marker.path);
    if (!FileExists(path)) return absl::OkStatus();
    const bool kept = missing->back().path != marker.path;
    const int failed =
        kept ? std::rename(path.c_str(), PartialPath(path, marker).c_str()) : std::remove(path.c_str());
    if (failed != 0) return ErrnoToStatus(errno, absl::StrCat("cannot take away ", path));
    if (!kept) return absl::OkStatus();
    done_ -= marker.bytes;
    missing->push_back(marker);
    return absl::OkStatus();
  }

  absl::Status Fetch(const HubFile& file, const std::string& commit) {
    progress_.Suffix(file.path);
    FileFetch fetch{.url = FileUrl(request_.access, commit, file.path),
                    .token = request_.access.token,
                    .file = file,
                    .target = PathOf(file.path),
                    .cancel = cancel_,
                    .note = note_,
                    .progress = [this](uint64_t done) { Show(done); }};
    std::error_code error;
    fs::create_directories(fs::path(fetch.target).parent_path(), error);
    if (error) return ErrnoToStatus(error.value(), absl::StrCat("cannot make the folder of ", fetch.target));
    RETURN_IF_ERROR(FetchFile(&http_, fetch));
    done_ += file.bytes;
    return absl::OkStatus();
  }

  const PullRequest& request_;
  const std::atomic<bool>* const cancel_;
  HttpClient http_;
  Progress progress_;
  RetryNote note_;
  uint64_t done_ = 0;  // bytes of complete files
  uint64_t total_ = 0;
};

}  // namespace

absl::StatusOr<PullSummary> Pull(const PullRequest& request, const std::atomic<bool>* cancel) {
  return Puller(request, cancel).Run();
}

}  // namespace sluice::cli
