// The device `cuda`: kernels of device/ behind the interface of backend.h, on one stream of one GPU.
//
// Nothing waits but Wait(), Free(), Download() into pageable memory, an Upload() from or to pinned memory,
// and an Enqueue() or hand-over whose tables or events have all been handed out to work that has not run. A
// kernel's fault is returned by a later call and sticks. Between BeginGraph() and EndGraph() launches are
// kept, and handed over as one CUDA graph where the same ones come again (step_graph.h).
//
// Thread safety: as Backend (thread-compatible, one owner thread).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace sluice {

// The first GPU of compute capability 7.5 and up. FAILED_PRECONDITION naming what there is instead, or why
// products cannot be PrefillMath::kFast; RESOURCE_EXHAUSTED naming the workspace that the limits want.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const BackendLimits& limits);

}  // namespace sluice
