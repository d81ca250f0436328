// Progress line of pack, verify and synth (bytes, rate and time left), and their message about an old
// profile.
//
// Thread safety: the callback may be called from one thread at a time, as pack_writer.h promises; Finish()
// must be called after the packing call has returned.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "cli/terminal.h"
#include "pack/writer/pack_writer.h"

namespace sluice::cli {

class PackProgressBar {
 public:
  explicit PackProgressBar(bool quiet) : quiet_(quiet) {}

  // The callback must not be called after this object's end.
  PackingProgressFn callback() {
    return [this](const PackingProgress& progress) { Update(progress); };
  }

  void Finish() { bar_.reset(); }

 private:
  void Update(const PackingProgress& progress) {
    // Each stage has its own clock: the rate of reading does not predict that of syncing.
    if (bar_ == nullptr || stage_ != progress.stage) {
      stage_ = progress.stage;
      bar_.reset();
      bar_ = std::make_unique<Progress>(stage_, ProgressUnit::kBytes, quiet_);
    }
    bar_->Update(progress.bytes_done, progress.bytes_total);
  }

  const bool quiet_;
  std::string stage_;
  std::unique_ptr<Progress> bar_;
};

// Prints a line to stderr if a pack with a profile was replaced.
inline void TellOldProfile(const std::string& out, OldProfile fate) {
  if (fate == OldProfile::kKept) {
    std::fprintf(
        stderr,
        "sluice: %s: the profile of the pack that was there is kept. It is of the same model: its usage "
        "and sensitivities hold; thresholds and predictors of other rows are refused until `sluice "
        "calibrate` has measured them\n",
        out.c_str());
  } else if (fate == OldProfile::kRemoved) {
    std::fprintf(stderr,
                 "sluice: %s: the profile of the pack that was there is removed: it was of another model\n",
                 out.c_str());
  }
}

}  // namespace sluice::cli
