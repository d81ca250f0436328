#include "inferd/daemon/prefix_file.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"

namespace sluice::inferd {

PrefixFile::PrefixFile(std::string path, uint64_t limit, spdlog::logger* log)
    : path_(std::move(path)), limit_(limit), log_(log) {}

void PrefixFile::Load(Engine* engine) {
  const absl::Time begin = absl::Now();
  const absl::StatusOr<PrefixCache::Saved> loaded = engine->LoadPrefixes(path_);
  if (absl::IsNotFound(loaded.status())) {
    log_->info("no prefixes yet: {}", std::string(loaded.status().message()));
  } else if (!loaded.ok()) {
    log_->warn("no prefixes are taken over: {}", std::string(loaded.status().message()));
  } else {
    log_->info("took over {} pages and {} states of past texts from {} in {:.2f} s; {} records were damaged",
               loaded->pages, loaded->states, path_, absl::ToDoubleSeconds(absl::Now() - begin),
               loaded->damaged);
  }
}

void PrefixFile::Save(Engine* engine) {
  const absl::Time begin = absl::Now();
  const absl::StatusOr<PrefixCache::Saved> saved = engine->SavePrefixes(path_, limit_);
  if (saved.ok()) {
    log_->info("{} pages and {} states of past texts are in {}, after {:.2f} s", saved->pages, saved->states,
               path_, absl::ToDoubleSeconds(absl::Now() - begin));
  } else {
    log_->error("past texts could not be saved: {}", std::string(saved.status().message()));
  }
}

}  // namespace sluice::inferd
