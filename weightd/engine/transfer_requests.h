// TransferRequests: the life of kTransfer and kTransferExtent requests between their check and their
// completion. Each first has its extents filled (by the fetcher, like any fill), keeps them pinned, and is
// then copied by the engine. A request for rows that are already travelling to the very same target is
// coalesced with the first one: it makes a prefetch a demand, and ends with it.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/protocol/session_abi.h"
#include "common/protocol/transfer_engine.h"
#include "weightd/engine/session.h"
#include "weightd/store/dram_tier.h"
#include "weightd/store/extent_source.h"
#include "weightd/store/fetcher.h"

namespace sluice::weightd {

class TransferRequests {
 public:
  using OnComplete = std::function<void(uint64_t session, const CompletionEntry& entry)>;

  // `engine` may be null as long as no session has a slab. `on_complete` may run within any call.
  TransferRequests(const PlanOptions& plan, Fetcher* fetcher, DramTier* tier, TransferEngine* engine,
                   OnComplete on_complete)
      : plan_(plan), fetcher_(fetcher), tier_(tier), engine_(engine), on_complete_(std::move(on_complete)) {}

  // Accepts a request that passed CheckEntry and CheckNeurons. REQUIRES: not IsOutstanding(its id).
  void Accept(Session* session, const SubmissionEntry& entry, std::vector<uint32_t> neurons);
  bool IsOutstanding(uint64_t session, uint64_t id) const { return by_id_.contains({session, id}); }
  // Handles the end of a request's fill. False: it is no transfer; else `held` was taken over.
  bool OnFilled(uint64_t session, const CompletionEntry& entry, std::vector<ExtentId>* held);
  // True if there is such a request; it ends soon, cancelled or not.
  bool Cancel(uint64_t session, uint64_t id);
  // Ends the session's prefetches of `pack` whose copies have not started and that are not after (step,
  // layer), except those in the fetcher's queue (Fetcher::CancelPrefetches); returns their number.
  uint64_t CancelPrefetches(uint64_t session, uint32_t pack, uint64_t step, uint32_t layer);
  // Completes nothing of the session any more; its copies stop, and its sources are unpinned when they have.
  // REQUIRES: the fetcher has dropped the session.
  void DropSession(uint64_t session);
  void OnEnd(const TransferEnd& end);

  // Bytes of extents pinned for copies.
  uint64_t pinned_bytes() const { return pinned_bytes_; }

 private:
  struct Request {
    uint64_t number = 0;
    uint64_t session = 0;
    SubmissionEntry entry{};
    std::vector<uint32_t> neurons;
    uint32_t pack = 0;  // weightd's number
    std::shared_ptr<Slab> slab;
    uint32_t link = 0;
    std::shared_ptr<std::atomic<uint64_t>> progress;
    const ExtentSource* source = nullptr;
    CompletionEntry completion{};  // the fill's completion
    std::vector<ExtentId> held;
    bool copying = false;
    bool stale = false;               // a prefetch that is not to be copied after its fill
    bool dropped = false;             // its session is gone
    uint64_t leader = 0;              // the request whose copy also serves this one; 0: none
    std::vector<uint64_t> followers;  // requests that this one's copy also serves
  };

  Request* Find(uint64_t number);
  Request* FindById(uint64_t session, uint64_t id);
  // The request that copies the very same rows; null if there is none.
  Request* FindSame(const Request& request);
  void Follow(Request* request, Request* leader);
  void Promote(Request* request);
  void StartFill(const Request& request);
  void StartCopy(Request* request);
  bool PrefetchesPinTooMuch(const Request& request) const;
  const std::byte* DataOf(ExtentId extent_id) const;
  PartCopy CopyOf(const Request& request, Part part) const;
  TransferPlan PlanOf(const Request& request) const;
  // Completes and removes the request and its followers.
  void Finish(Request* request, absl::StatusCode code);
  // Detaches a follower from its leader.
  void Leave(Request* request);
  void Forget(Request* request);
  void Unpin(Request* request);

  const PlanOptions plan_;
  Fetcher* const fetcher_;
  DramTier* const tier_;
  TransferEngine* const engine_;
  const OnComplete on_complete_;
  std::map<uint64_t, std::unique_ptr<Request>> requests_;    // by number
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> by_id_;  // (session, id) -> number
  // A prefetch whose fill ends because a demand's fill replaced it.
  std::optional<std::pair<uint64_t, uint64_t>> superseded_;
  uint64_t next_number_ = 1;
  uint64_t pinned_bytes_ = 0;
};

}  // namespace sluice::weightd
