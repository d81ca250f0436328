// ServedCall: base of the calls between the engine, which appends output, and a reader of any speed: answers
// and scores over HTTP and over gRPC. It holds their requests of the engine, their unread bytes, their place
// among the live calls and their line in the log. The reader's side is the server's: HTTP's thread calls an
// HttpObserver, gRPC's pump a PumpedCall.
//
// Thread safety: thread-safe; Enter, Leave and the unread bytes are the subclass's to order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "inferd/api/engine_api.h"
#include "inferd/serving/serving_context.h"

namespace sluice::inferd {

// Cancellation handle of one request. Cancels only a request that the engine accepted and that has not ended:
// afterwards its id may belong to another call.
class EngineRequest {
 public:
  EngineRequest(ServerState* state, std::string id) : state_(state), id_(std::move(id)) {}
  const std::string& id() const { return id_; }
  // The engine's thread may have ended the request before the submitting thread gets here.
  void Accepted();
  void Ended() { phase_.store(Phase::kEnded); }
  void Cancel();

 private:
  enum class Phase : uint8_t { kNew, kLive, kCancelled, kEnded };
  void CancelInEngine();

  ServerState* const state_;
  const std::string id_;
  std::atomic<Phase> phase_{Phase::kNew};
};

class ServedCall {
 public:
  // Description of a call for the log.
  struct Label {
    std::string kind;  // "http_chat"
    std::string request_id;
    std::string client;
  };
  // `ids`: those of the requests that will be submitted.
  ServedCall(const ServingContext& context, Label label, const std::vector<std::string>& ids);
  virtual ~ServedCall() = default;

  // Passes a request to the engine. Error: the engine refused it and will not call the sink.
  absl::Status Submit(size_t request, GenerateSpec spec, std::shared_ptr<RequestSink> sink);
  absl::Status Submit(size_t request, ScoreSpec spec, std::shared_ptr<ScoreSink> sink);

 protected:
  const ServingContext& serving() const { return serving_; }
  const Label& label() const { return label_; }
  size_t requests() const { return requests_.size(); }
  // Marks a request as ended by the engine; its sink's last act.
  void RequestEnded(size_t request) { requests_[request]->Ended(); }
  void CancelRequests();

  // Joins the live calls, before the first request is submitted.
  void Enter() { serving_.calls->Enter(); }
  // Leaves the live calls; the server and its context may be gone afterwards.
  void Leave();
  // Writes the line of the log, without text of prompt or answer, and counts the answer. `info` is null
  // unless the call succeeded.
  void LogEnd(const FinishInfo* info, const absl::Status& status) const;

  // Sets the number of bytes that the reader has not accepted.
  void SetUnsent(uint64_t bytes);
  uint64_t unsent() const { return unsent_.load(std::memory_order_relaxed); }

 private:
  const ServingContext& serving_;
  const Label label_;
  std::vector<std::unique_ptr<EngineRequest>> requests_;  // constant once made; self-synchronised
  std::atomic<uint64_t> unsent_{0};
};

}  // namespace sluice::inferd
