// Validation of submissions: pure checks of the private copy of an entry.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "common/protocol/session_abi.h"
#include "weightd/store/extent_source.h"

namespace sluice::weightd {

struct EntryVerdict {
  absl::StatusCode code = absl::StatusCode::kOk;
  EntryField field = EntryField::kNone;
};

// A slab that transfers may name.
struct SlabView {
  uint32_t number = 0;
  uint64_t bytes = 0;
};

// Checks every field of `entry` against its opcode, the session's packs (in their order), the region's sizes
// and the session's slabs. A transfer's list is checked by CheckNeurons. INVALID_ARGUMENT: out of range, or
// not the neutral value; UNIMPLEMENTED: defined, but not supported by this build.
EntryVerdict CheckEntry(const SubmissionEntry& entry, std::span<const ExtentSource* const> packs,
                        const ControlLayout& layout, std::span<const SlabView> slabs = {});

// Checks the private copy of a transfer's list: ascending, distinct, each a neuron of the expert. REQUIRES:
// the entry passed CheckEntry.
EntryVerdict CheckNeurons(const SubmissionEntry& entry, std::span<const uint32_t> neurons,
                          const ExtentSource& pack);

}  // namespace sluice::weightd
