// Findings of the fake's checks.
//
// Thread safety: thread-compatible.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::cuda_fake {

enum class Finding {
  kOutOfBounds,    // an access outside of every live allocation or variable
  kMisaligned,     // an access that is not aligned to its size
  kUninitialised,  // a read of bytes that nothing has written
  kRace,           // two threads of a launch, unordered, one of them writing
  kUnordered,      // two operations of different streams, unordered, one of them writing
  kPeers,          // two operations of two processes, unordered, one of them writing
  kBarrier,        // a barrier that not all threads reach
  kMask,           // a warp instruction whose mask is not the lanes that execute it
  kCopyInFlight,   // a thread that ends, or reads, while its cp.async is under way
  kNoEnd,          // a block that does not end
  kUnknown,        // an instruction, or a form of it, that the interpreter does not know
  kApi             // a call that the manual forbids and that the library need not refuse
};

absl::string_view Name(Finding finding);

struct Report {
  Finding finding = Finding::kApi;
  std::string text;
};

// Keeps each report once, and prints it as it comes: what follows from a fault may well end the test.
class ReportSink {
 public:
  // `place` tells reports apart: one for each finding and place.
  void Add(Finding finding, absl::string_view place, std::string text);
  std::vector<Report> Take();
  bool empty() const { return reports_.empty(); }

 private:
  std::set<std::string> seen_;
  std::vector<Report> reports_;
};

}  // namespace sluice::cuda_fake
