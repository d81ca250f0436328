// Conversion of WeightClient requests to ring entries, and of completions back.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <cstdint>

#include "common/ring/session_abi.h"
#include "inferd/weights/weight_client.h"

namespace sluice::inferd {

// An entry that names no extent, no slab and no progress word.
SubmissionEntry EmptyEntry(Opcode opcode, RequestClass request_class);

// Sets all but the fields that the session fills: ids, the list of neurons, the progress word.
SubmissionEntry EntryOf(const FetchRequest& request);

// `caller_id`: id of the completed request. A code that is no status code becomes INTERNAL.
FetchCompletion CompletionOf(const CompletionEntry& entry, uint64_t caller_id);

}  // namespace sluice::inferd
