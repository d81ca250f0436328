#include "inferd/daemon/device_start.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "inferd/model/weight_buffers.h"
#include "pack/pack.h"

namespace sluice::inferd {
namespace {

// Lease of the trial's two requests; the engine's leases begin behind it.
constexpr uint64_t kLease = 1;
constexpr uint64_t kTransfer = 2;

// Waits for the completion of `id`; calls `at_end` while its bytes are still mapped.
absl::Status Await(WeightClient* client, uint64_t id, absl::Time deadline,
                   absl::FunctionRef<absl::Status()> at_end) {
  std::optional<absl::Status> outcome;
  while (!outcome.has_value()) {
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError("weightd did not answer in time");
    }
    RETURN_IF_ERROR(client->Wait(deadline));
    client->Poll([&](const FetchCompletion& done) {
      if (done.id == id) {
        outcome = done.code == absl::StatusCode::kOk
                      ? at_end()
                      : absl::Status(done.code, "weightd could not bring the weights; its log says why");
      }
    });
  }
  return *outcome;
}

// Returns the smallest extent of dense weights; every pack has some.
uint32_t SmallestDense(const Pack& pack) {
  uint32_t best = 0;
  for (uint32_t extent = 1; extent < pack.dense_extent_count(); ++extent) {
    best = pack.extents()[extent].length < pack.extents()[best].length ? extent : best;
  }
  return best;
}

// Lets weightd copy an extent into a device slab, reads it back and compares it with weightd's bytes. `kind`:
// handle type of the slab, once there is one. `lost`: the connection to weightd broke during the trial; with
// the slab the session ends in any case.
absl::Status TryPush(Backend* backend, WeightClient* client, absl::Time deadline, HandleKind* kind,
                     bool* lost) {
  const uint32_t extent = SmallestDense(client->pack());
  const uint64_t bytes = client->pack().extents()[extent].length;
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceSlab> slab, DeviceSlab::Create(bytes, backend));
  const absl::Cleanup look = [&] { *lost = !client->connected(); };
  *kind = slab->kind();
  RETURN_IF_ERROR(slab->Offer(/*link_gbps=*/0, /*link_latency_us=*/0, client));
  FetchRequest request;
  request.dense_extent = extent;
  request.id = kLease;
  ExtentLease lease;
  if (!client->TryLease(extent, &lease)) {
    RETURN_IF_ERROR(client->Submit(request));
    RETURN_IF_ERROR(Await(client, kLease, deadline, [&] {
      return client->TryLease(extent, &lease) ? absl::OkStatus() : absl::InternalError("a lease was refused");
    }));
  }
  TransferTarget target;
  target.slab = slab->number();
  request.id = kTransfer;
  request.transfer = &target;
  absl::Status status = client->Submit(request);
  if (status.ok()) {
    status = Await(client, kTransfer, deadline, [] { return absl::OkStatus(); });
  }
  std::vector<std::byte> found(bytes);
  Queue& queue = backend->queue();
  if (status.ok()) {
    status = queue.Download({slab->buffer(), 0}, bytes, found.data());
  }
  if (status.ok()) {
    status = queue.Wait(queue.Record());
  }
  if (status.ok() && std::memcmp(found.data(), lease.data, bytes) != 0) {
    status = absl::DataLossError("what weightd copied is not what arrived");
  }
  client->Release(extent, 0);
  return status;
}

absl::Status StartBackend(const CudaModuleApi& cuda, const BackendLimits& limits, CudaStart* start) {
  start->backend.reset();  // memory may not hold two backends
  absl::Status error;
  start->backend.reset(cuda.new_backend(limits, &error));
  return error;
}

struct Trial {
  absl::Status outcome;  // outcome of the last trial
  std::string words;     // messages of all trials
  bool lost = false;     // the connection to weightd broke during the trial
};

// Tries `push` with the requested handle type or else the device's best one; also with legacy IPC if nothing
// was requested and descriptors are supported in name only. Leaves the backend of the last trial.
absl::StatusOr<Trial> TryHandles(const CudaModuleApi& cuda, BackendLimits limits, absl::Duration timeout,
                                 WeightClient* client, CudaStart* start) {
  Trial trial;
  while (true) {
    HandleKind kind = HandleKind::kCudaFd;
    trial.outcome = TryPush(start->backend.get(), client, SteadyNow() + timeout, &kind, &trial.lost);
    absl::StrAppend(&trial.words, trial.words.empty() ? "" : "; ", "by ", NameOf(kind), ": ",
                    trial.outcome.ok() ? "its trial succeeded" : trial.outcome.message());
    const bool choice = limits.shared_handle == SharedHandle::kBest && kind != HandleKind::kCudaIpc;
    if (trial.outcome.ok() || absl::IsResourceExhausted(trial.outcome) || !choice || trial.lost) {
      return trial;
    }
    if (!client->connected()) {
      RETURN_IF_ERROR(client->Reconnect(SteadyNow() + timeout));
    }
    limits.shared_handle = SharedHandle::kIpc;
    RETURN_IF_ERROR(StartBackend(cuda, limits, start));
  }
}

}  // namespace

absl::StatusOr<CudaStart> StartCuda(const CudaModuleApi& cuda, const EnginePlan& plan,
                                    const DeviceBudget& budget, const Policies& policies,
                                    std::optional<Transport> transport, absl::Duration timeout,
                                    WeightClient* client) {
  CudaStart start;
  ASSIGN_OR_RETURN(const CudaDeviceFacts bare, cuda.facts());
  RETURN_IF_ERROR(StartBackend(cuda, plan.backend, &start));
  ASSIGN_OR_RETURN(const CudaDeviceFacts before, cuda.facts());
  start.transport = transport.value_or(Transport::kPush);
  start.why = "as it was asked for";
  if (start.transport == Transport::kPush) {
    ASSIGN_OR_RETURN(const Trial trial, TryHandles(cuda, plan.backend, timeout, client, &start));
    if (!trial.outcome.ok() && (transport.has_value() || trial.lost)) {
      return absl::Status(trial.outcome.code(), absl::StrCat("transport push cannot be used: ", trial.words));
    }
    start.why = trial.words;
    if (!trial.outcome.ok()) {
      start.transport = Transport::kPull;
      start.why = absl::StrCat("weightd cannot copy into this device's memory: ", trial.words);
    }
  }
  ASSIGN_OR_RETURN(const CudaDeviceFacts after, cuda.facts());
  DeviceCapacity room;
  room.total = after.total_bytes;
  room.free = after.free_bytes;
  // weightd's CUDA context was created by the trial. Our context is older than every measurement, and at
  // least as large.
  room.contexts = 2 * (before.free_bytes - std::min(before.free_bytes, after.free_bytes)) + bare.free_bytes -
                  std::min(bare.free_bytes, before.free_bytes);
  room.granule = after.granule_bytes;
  ASSIGN_OR_RETURN(start.memory, DivideDeviceMemory(budget, plan, policies, client->pack(), room));
  return start;
}

ThreadSplit SplitThreads(DeviceKind device, bool cpu_parallel, uint32_t threads, uint32_t cpu_threads) {
  if (!cpu_parallel) {
    return {threads, 0};
  }
  if (device == DeviceKind::kCuda) {  // the engine's own thread drives the device
    return {1, cpu_threads > 0 ? cpu_threads : std::max(1u, threads - 1)};
  }
  const uint32_t cpu = cpu_threads > 0 ? cpu_threads : std::max(1u, threads / 2);
  return {threads > cpu ? threads - cpu : 1, cpu};
}

}  // namespace sluice::inferd
