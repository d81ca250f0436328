// Whether a submission means something: pure validation of the private copy of an entry.
//
// Thread safety: free functions, safe to call from any thread.
#ifndef SLUICE_WEIGHTD_ENTRY_CHECK_H_
#define SLUICE_WEIGHTD_ENTRY_CHECK_H_

#include <span>

#include "absl/status/status.h"
#include "common/ring/session_abi.h"
#include "weightd/extent_source.h"

namespace sluice {

struct EntryVerdict {
  absl::StatusCode code = absl::StatusCode::kOk;
  EntryField field = EntryField::kNone;
};

// Checks every field of `entry` against its opcode, the session's packs (in their order) and the region's
// sizes. INVALID_ARGUMENT: out of range, or not the neutral value; UNIMPLEMENTED: defined, but not by this
// build.
EntryVerdict CheckEntry(const SubmissionEntry& entry, std::span<const ExtentSource* const> packs,
                        const ControlLayout& layout);

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_ENTRY_CHECK_H_
