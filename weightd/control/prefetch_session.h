// PrefetchSession: a session of weightd with itself. It requests extents like any client, over rings, but
// reads none of their bytes.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/ring/rings.h"
#include "common/ring/shared_memory.h"
#include "common/ring/unique_fd.h"
#include "weightd/core/weight_store.h"

namespace sluice::weightd {

class PrefetchSession {
 public:
  // Opens and joins a session on one pack. `store` is borrowed. Errors of WeightStore::OpenSession.
  static absl::StatusOr<std::unique_ptr<PrefetchSession>> Open(WeightStore* store, uint32_t pack,
                                                               const std::string& name);
  ~PrefetchSession();

  // Requests `extent`. False: the ring is full.
  bool Request(uint32_t extent, RequestClass request_class);
  bool Prefetch(uint32_t extent) { return Request(extent, RequestClass::kPrefetch); }
  // The next completion; none if there is none yet. FAILED_PRECONDITION: the session was ended.
  absl::StatusOr<std::optional<CompletionEntry>> Take();
  // Sleeps until Take() may return a completion or `event` is readable.
  void Sleep(int event);

  uint32_t outstanding() const { return outstanding_; }

 private:
  PrefetchSession(WeightStore* store, uint64_t session) : store_(store), session_(session) {}
  void AnswerSide();

  WeightStore* const store_;
  const uint64_t session_;
  UniqueFd side_;
  int server_bell_ = -1;  // the store's, like the next
  int client_bell_ = -1;
  Mapping control_;
  std::optional<SubmissionWriter> submissions_;
  std::optional<CompletionReader> completions_;
  uint32_t outstanding_ = 0;
  uint64_t next_id_ = 1;
  bool ended_ = false;
};

}  // namespace sluice::weightd
