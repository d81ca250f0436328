#include "inferd/session/ring_requests.h"

#include <algorithm>

#include "absl/status/status.h"

namespace sluice::inferd {

FetchCompletion CompletionOf(const CompletionEntry& entry, uint64_t caller_id) {
  FetchCompletion completion;
  completion.id = caller_id;
  completion.code = entry.code <= static_cast<uint16_t>(absl::StatusCode::kUnauthenticated)
                        ? static_cast<absl::StatusCode>(entry.code)
                        : absl::StatusCode::kInternal;
  completion.extent = entry.extent;
  completion.bytes = entry.bytes;
  completion.queue_us = entry.queue_us;
  completion.io_us = entry.io_us;
  completion.copy_us = entry.copy_us;
  completion.link_bytes = entry.link_bytes;
  return completion;
}

SubmissionEntry EmptyEntry(Opcode opcode, RequestClass request_class) {
  SubmissionEntry entry{};
  entry.opcode = opcode;
  entry.request_class = request_class;
  entry.extent = kNoExtent;
  entry.slab = kNoSlab;
  entry.progress = kNoProgress;
  return entry;
}

SubmissionEntry EntryOf(const FetchRequest& request) {
  const bool prefetch = request.fetch_class == FetchClass::kPrefetch;
  const bool dense = request.dense_extent != FetchRequest::kNoExtent;
  SubmissionEntry entry = EmptyEntry(dense ? Opcode::kFillExtent : Opcode::kFillExpert,
                                     prefetch ? RequestClass::kPrefetch : RequestClass::kDemand);
  entry.step = request.step;
  if (dense) {
    entry.extent = request.dense_extent;
    entry.layer = prefetch ? request.layer : 0;
  } else {
    entry.parts = request.parts;
    entry.layer = request.layer;
    entry.expert = request.expert;
  }
  if (request.transfer != nullptr) {
    const TransferTarget& target = *request.transfer;
    entry.opcode = dense ? Opcode::kTransferExtent : Opcode::kTransfer;
    entry.slab = target.slab;
    entry.tile_neurons = target.tile_neurons;
    std::copy(target.base.begin(), target.base.end(), entry.base);
    std::copy(target.stride.begin(), target.stride.end(), entry.stride);
  }
  return entry;
}

}  // namespace sluice::inferd
