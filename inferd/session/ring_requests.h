// Requests of WeightClient as entries of the rings, and completions back.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <cstdint>

#include "common/ring/session_abi.h"
#include "inferd/weights/weight_client.h"

namespace sluice {

// An entry that names no extent, no slab and no progress word.
SubmissionEntry EmptyEntry(Opcode opcode, RequestClass request_class);

// All but the ids and places that the session gives: the list of neurons, the progress word.
SubmissionEntry EntryOf(const FetchRequest& request);

// `caller_id`: of the request that has ended. A code that is no status' is INTERNAL.
FetchCompletion CompletionOf(const CompletionEntry& entry, uint64_t caller_id);

}  // namespace sluice
