#include "inferd/calibrate/calibration_journal.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/status.h"

namespace sluice::inferd {
namespace {

constexpr std::string_view kMagic = "SLCALSTG";
constexpr uint64_t kMaxStateBytes = 16ull << 30;

absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
    return ErrnoToStatus(errno, absl::StrCat("create folder ", path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CalibrationJournal>> CalibrationJournal::Open(const std::string& folder,
                                                                             const Digest128& fingerprint) {
  RETURN_IF_ERROR(MakeFolder(std::filesystem::path(folder).parent_path().string()));
  RETURN_IF_ERROR(MakeFolder(folder));
  ASSIGN_OR_RETURN(File lock, File::OpenForWrite(folder + "/lock"));
  if (flock(lock.fd(), LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(absl::StrCat(folder, ": another calibration of this pack is running"));
  }
  return std::unique_ptr<CalibrationJournal>(new CalibrationJournal(folder, fingerprint, std::move(lock)));
}

std::string CalibrationJournal::NameOf(uint32_t number) const { return absl::StrCat("stage", number); }

absl::StatusOr<uint64_t> CalibrationJournal::Restore(uint32_t number, CalibrationStage* stage) const {
  const std::string path = absl::StrCat(folder_, "/", NameOf(number));
  if (!FileExists(path)) return 0;
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxStateBytes));
  ASSIGN_OR_RETURN(const std::string_view body, Unseal(bytes, kMagic, path));
  ByteReader reader(body, path);
  Digest128 fingerprint;
  uint64_t units = 0;
  RETURN_IF_ERROR(reader.Take(&fingerprint.high));
  RETURN_IF_ERROR(reader.Take(&fingerprint.low));
  // State of another text or other options is ignored and overwritten.
  if (fingerprint != fingerprint_) return 0;
  RETURN_IF_ERROR(reader.Take(&units));
  if (units > stage->units()) return reader.Damaged(absl::StrCat(units, " units of ", stage->units()));
  RETURN_IF_ERROR(stage->Load(&reader));
  RETURN_IF_ERROR(reader.Finish());
  return units;
}

absl::Status CalibrationJournal::Save(uint32_t number, uint64_t units, const CalibrationStage& stage) const {
  // The stage's own files must be on the disk before a state that refers to them.
  RETURN_IF_ERROR(stage.Sync());
  std::string bytes(kMagic);
  AppendValue(fingerprint_.high, &bytes);
  AppendValue(fingerprint_.low, &bytes);
  AppendValue(units, &bytes);
  stage.Save(&bytes);
  Seal(&bytes);
  return WriteProfileFile(folder_, NameOf(number), bytes);
}

absl::Status CalibrationJournal::Remove() {
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
  if (error) return ErrnoToStatus(error.value(), absl::StrCat("remove ", folder_));
  return absl::OkStatus();
}

}  // namespace sluice::inferd
