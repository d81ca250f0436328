// Journal of an interrupted calibration's finished work: one file per stage in a work folder beside the
// profile, each replaced atomically, all removed once the profile is written. A run with other arguments or
// another pack starts anew.
//
// Thread safety: thread-compatible; the work folder is locked against other calibrations, in this process and
// in others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/checksum.h"
#include "common/file_io.h"
#include "inferd/calibrate/windows/calibration_stage.h"

namespace sluice::inferd {

class CalibrationJournal {
 public:
  // Creates `folder` if missing. UNAVAILABLE if another calibration holds it. States of another fingerprint
  // are dropped.
  static absl::StatusOr<std::unique_ptr<CalibrationJournal>> Open(const std::string& folder,
                                                                  const Digest128& fingerprint);

  const std::string& folder() const { return folder_; }

  // Restores a new stage from the journal; returns the number of finished units, 0 if none is recorded.
  // DATA_LOSS if the state is damaged.
  absl::StatusOr<uint64_t> Restore(uint32_t number, CalibrationStage* stage) const;
  absl::Status Save(uint32_t number, uint64_t units, const CalibrationStage& stage) const;

  // Removes the work folder.
  absl::Status Remove();

 private:
  CalibrationJournal(std::string folder, const Digest128& fingerprint, File lock)
      : folder_(std::move(folder)), fingerprint_(fingerprint), lock_(std::move(lock)) {}
  std::string NameOf(uint32_t number) const;

  const std::string folder_;
  const Digest128 fingerprint_;
  const File lock_;  // closing it unlocks
};

}  // namespace sluice::inferd
