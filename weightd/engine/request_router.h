// Routes submissions from the sessions' rings to their servers (fetcher, transfers), and completions back.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>
#include <vector>

#include "common/protocol/session_abi.h"
#include "weightd/engine/entry_check.h"
#include "weightd/engine/session.h"
#include "weightd/engine/session_manager.h"
#include "weightd/engine/transfer_requests.h"
#include "weightd/store/dram_tier.h"
#include "weightd/store/fetcher.h"

namespace sluice::weightd {

class RequestRouter {
 public:
  // All borrowed.
  struct Parts {
    SessionTable* sessions = nullptr;
    Fetcher* fetcher = nullptr;
    TransferRequests* transfers = nullptr;
    DramTier* tier = nullptr;
    StalledSessions* stalled = nullptr;
  };
  explicit RequestRouter(const Parts& parts) : parts_(parts) {}

  // Serves a bounded batch of the session's submissions and releases reaped pins; true if there may be more.
  // A session that breaks the rings' rules is marked for close.
  bool Serve(Session* session);

  // Handles a request that has ended, as its fetcher or the transfers report it: once a request. Passes the
  // pins of `held` (one an extent) to the session until it has reaped the completion; drops them if it is
  // gone.
  void Complete(uint64_t session, const CompletionEntry& entry, std::vector<ExtentId> held);

 private:
  void Handle(Session* session, const SubmissionEntry& entry, std::vector<uint32_t> neurons);
  void Fill(Session* session, const SubmissionEntry& entry);
  void Cancel(Session* session, const SubmissionEntry& entry);
  void CancelPrefetches(Session* session, const SubmissionEntry& entry);
  // Completes requests that are over at once.
  void Answer(Session* session, const SubmissionEntry& entry, EntryVerdict verdict, uint64_t count);

  const Parts parts_;
};

}  // namespace sluice::weightd
