// Common calls of tests to a WeightClient: fetch and wait, lease and look.
//
// Thread safety: free functions for the thread that owns the client.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "inferd/weights/weight_client.h"

namespace sluice {

inline FetchRequest ExpertRequest(uint64_t id, uint32_t layer, uint32_t expert,
                                  FetchClass fetch_class = FetchClass::kDemand, uint64_t step = 1) {
  FetchRequest request;
  request.id = id;
  request.fetch_class = fetch_class;
  request.step = step;
  request.layer = layer;
  request.expert = expert;
  return request;
}

inline FetchRequest ExtentRequest(uint64_t id, uint32_t extent) {
  FetchRequest request;
  request.id = id;
  request.dense_extent = extent;
  return request;
}

// Waits until the completion of `id` has arrived; others that arrive meanwhile are dropped. `on_completion`
// runs while the filled extents are still held, `meanwhile` every few milliseconds. UNAVAILABLE: connection
// lost; DEADLINE_EXCEEDED after 20 s.
inline absl::StatusOr<FetchCompletion> Await(
    WeightClient* client, uint64_t id,
    absl::FunctionRef<void(const FetchCompletion&)> on_completion = [](const FetchCompletion&) {},
    absl::FunctionRef<void()> meanwhile = [] {}) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  std::optional<FetchCompletion> found;
  while (true) {
    client->Poll([&](const FetchCompletion& completion) {
      if (completion.id == id) {
        found = completion;
        on_completion(completion);
      }
    });
    if (found.has_value()) {
      return *found;
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError("no completion");
    }
    meanwhile();
    if (absl::Status status = client->Wait(absl::Now() + absl::Milliseconds(5)); !status.ok()) {
      return status;
    }
  }
}

// Fetches one extent and leases it while it is held. Not OK: the status of the completion or the connection.
inline absl::Status FetchAndLease(WeightClient* client, uint64_t id, uint32_t extent, ExtentLease* lease) {
  if (absl::Status status = client->Submit(ExtentRequest(id, extent)); !status.ok()) {
    return status;
  }
  bool leased = false;
  const auto completion =
      Await(client, id, [&](const FetchCompletion&) { leased = client->TryLease(extent, lease); });
  if (!completion.ok()) {
    return completion.status();
  }
  if (completion->code != absl::StatusCode::kOk) {
    return absl::Status(completion->code, "the fetch failed");
  }
  return leased ? absl::OkStatus() : absl::InternalError("filled, but not to be leased");
}

}  // namespace sluice
