#include "cli/hub/pull.h"

#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cli/hub/file_choice.h"
#include "cli/hub/file_fetch.h"
#include "cli/ui/file_lock.h"
#include "cli/ui/terminal.h"
#include "common/file_io.h"
#include "common/ring/unique_fd.h"
#include "common/size.h"
#include "common/status.h"
#include "pack/writer/staging.h"

namespace sluice::cli {
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

  // Those of the choice that are not there yet, in its order.
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

  // A folder whose files are being replaced is no model meanwhile: what makes it one waits as a partial file,
  // if it is the hub's, and is the last of `missing` in any case.
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
  uint64_t done_ = 0;  // of the files that are whole
  uint64_t total_ = 0;
};

}  // namespace

absl::StatusOr<PullSummary> Pull(const PullRequest& request, const std::atomic<bool>* cancel) {
  return Puller(request, cancel).Run();
}

}  // namespace sluice::cli
