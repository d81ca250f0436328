// Common calls of tests to a WeightClient: fetch and wait, lease and look.
//
// Thread safety: free functions for the thread that owns the client.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "inferd/model/weight_client.h"

namespace sluice {

inline inferd::FetchRequest ExpertRequest(uint64_t id, uint32_t layer, uint32_t expert,
                                          RequestClass request_class = RequestClass::kDemand,
                                          uint64_t step = 1) {
  inferd::FetchRequest request;
  request.id = id;
  request.request_class = request_class;
  request.step = step;
  request.layer = layer;
  request.expert = expert;
  return request;
}

inline inferd::FetchRequest ExtentRequest(uint64_t id, uint32_t extent) {
  inferd::FetchRequest request;
  request.id = id;
  request.dense_extent = extent;
  return request;
}

// Waits until the completion of `id` has arrived; others that arrive meanwhile are dropped. `on_completion`
// runs while the filled extents are still held, `meanwhile` every few milliseconds. UNAVAILABLE: connection
// lost; DEADLINE_EXCEEDED after 20 s.
inline absl::StatusOr<inferd::FetchCompletion> Await(
    inferd::WeightClient* client, uint64_t id,
    absl::FunctionRef<void(const inferd::FetchCompletion&)> on_completion =
        [](const inferd::FetchCompletion&) {},
    absl::FunctionRef<void()> meanwhile = [] {}) {
  const absl::Time deadline = SteadyNow() + absl::Seconds(20);
  std::optional<inferd::FetchCompletion> found;
  while (true) {
    client->Poll([&](const inferd::FetchCompletion& completion) {
      if (completion.id == id) {
        found = completion;
        on_completion(completion);
      }
    });
    if (found.has_value()) {
      return *found;
    }
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError("no completion");
    }
    meanwhile();
    if (absl::Status status = client->Wait(SteadyNow() + absl::Milliseconds(5)); !status.ok()) {
      return status;
    }
  }
}

// Fetches one extent and leases it while it is held. Not OK: the status of the completion or the connection.
inline absl::Status FetchAndLease(inferd::WeightClient* client, uint64_t id, uint32_t extent,
                                  inferd::ExtentLease* lease) {
  if (absl::Status status = client->Submit(ExtentRequest(id, extent)); !status.ok()) {
    return status;
  }
  bool leased = false;
  const auto completion =
      Await(client, id, [&](const inferd::FetchCompletion&) { leased = client->TryLease(extent, lease); });
  if (!completion.ok()) {
    return completion.status();
  }
  if (completion->code != absl::StatusCode::kOk) {
    return absl::Status(completion->code, "the fetch failed");
  }
  return leased ? absl::OkStatus() : absl::InternalError("filled, but not to be leased");
}

}  // namespace sluice
