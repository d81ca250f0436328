#include "tests/cuda_fake/report.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::cuda_fake {

absl::string_view Name(Finding finding) {
  switch (finding) {
    case Finding::kOutOfBounds:
      return "out of bounds";
    case Finding::kMisaligned:
      return "misaligned";
    case Finding::kUninitialised:
      return "uninitialised";
    case Finding::kRace:
      return "race";
    case Finding::kUnordered:
      return "unordered";
    case Finding::kPeers:
      return "unordered processes";
    case Finding::kBarrier:
      return "barrier";
    case Finding::kMask:
      return "mask";
    case Finding::kCopyInFlight:
      return "copy in flight";
    case Finding::kNoEnd:
      return "no end";
    case Finding::kUnknown:
      return "unknown";
    case Finding::kApi:
      return "api";
  }
  return "?";
}

void ReportSink::Add(Finding finding, absl::string_view place, std::string text) {
  if (!seen_.insert(absl::StrCat(Name(finding), "|", place)).second) {
    return;
  }
  std::fprintf(stderr, "cuda_fake: %s: %s\n", std::string(Name(finding)).c_str(), text.c_str());
  reports_.push_back({finding, std::move(text)});
}

std::vector<Report> ReportSink::Take() {
  seen_.clear();
  return std::exchange(reports_, {});
}

}  // namespace sluice::cuda_fake
