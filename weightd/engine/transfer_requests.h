// TransferRequests: the life of kTransfer and kTransferExtent requests between their check and their
// completion. Each transfer first has its extents filled (by the fetcher, like any fill), keeps them pinned,
// and is then copied by the engine. Requests for the same rows in the same place share one transfer
// (common/protocol/shared_transfers.h).
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/protocol/session_abi.h"
#include "common/protocol/shared_transfers.h"
#include "common/protocol/transfer_engine.h"
#include "weightd/engine/session.h"
#include "weightd/store/dram_tier.h"
#include "weightd/store/extent_source.h"
#include "weightd/store/fetcher.h"
#include "weightd/store/store_metrics.h"

namespace sluice::weightd {

class TransferRequests {
 public:
  using OnComplete = std::function<void(uint64_t session, const CompletionEntry& entry)>;

  // `engine` may be null as long as no session has a slab, `metrics` always. `on_complete` may run within any
  // call.
  TransferRequests(const PlanOptions& plan, Fetcher* fetcher, DramTier* tier, TransferEngine* engine,
                   StoreMetrics* metrics, OnComplete on_complete);

  // Accepts a request that passed CheckEntry and CheckNeurons. REQUIRES: not IsOutstanding(its id).
  void Accept(Session* session, const SubmissionEntry& entry, std::vector<uint32_t> neurons);
  bool IsOutstanding(uint64_t session, uint64_t id) const { return shared_.Contains(session, id); }
  // Handles the end of a fill that a transfer requested; takes over the pins of `held`.
  void OnFilled(const CompletionEntry& entry, std::vector<ExtentId> held);
  // True if there is such a request; it ends soon, cancelled or not.
  bool Cancel(uint64_t session, uint64_t id) { return shared_.Cancel(session, id); }
  // Ends the session's prefetches of `pack` whose copies have not started and that are not after (step,
  // layer), except those in the fetcher's queue (Fetcher::CancelPrefetches); returns their number.
  uint64_t CancelPrefetches(uint64_t session, uint32_t pack, uint64_t step, uint32_t layer) {
    return shared_.CancelPrefetches(session, pack, step, layer);
  }
  // Completes nothing of the session any more; its copies stop, and its sources are unpinned when they have.
  // REQUIRES: the fetcher has dropped the session.
  void DropSession(uint64_t session) { shared_.DropSession(session); }
  void OnEnd(const TransferEnd& end);

  // Bytes of extents pinned for copies.
  uint64_t pinned_bytes() const { return pinned_bytes_; }

 private:
  struct Work {
    const ExtentSource* source = nullptr;
    std::shared_ptr<Slab> slab;
    uint32_t link = 0;
    uint32_t tile_neurons = 0;
    bool scan = false;
    CompletionEntry completion{};  // the fill's, then the copy's
    std::vector<ExtentId> held;
  };
  using Transfer = SharedTransfers<Work>::Transfer;

  void StartFill(Transfer* transfer);
  void StartCopy(Transfer* transfer);
  bool PrefetchesPinTooMuch(const Transfer& transfer) const;
  const std::byte* DataOf(ExtentId extent_id) const;
  uint32_t NeuronsOf(const Transfer& transfer) const;
  PartCopy CopyOf(const Transfer& transfer, Part part) const;
  TransferPlan PlanOf(const Transfer& transfer) const;
  // Completes all requests of the transfer.
  void Finish(Transfer* transfer, absl::StatusCode code);
  void CompleteCancelled(uint64_t session, uint64_t id);
  void Unpin(Transfer* transfer);

  const PlanOptions plan_;
  Fetcher* const fetcher_;
  DramTier* const tier_;
  StoreMetrics* const metrics_;
  const OnComplete on_complete_;
  SharedTransfers<Work> shared_;
  uint64_t pinned_bytes_ = 0;
};

}  // namespace sluice::weightd
