// Options of the engine, what they resolve to for a model, and the memory that follows from them. The daemon,
// `sluice plan` and the tests use the same functions.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/model/model_config.h"
#include "inferd/forward/forward.h"
#include "inferd/policy/preset/preset.h"
#include "inferd/schedule/request_registry.h"
#include "inferd/sim/virtual_costs.h"
#include "kernels/backend.h"

namespace sluice {

// Who copies experts into a device's memory: weightd, or inferd from what it leases.
enum class Transport : uint8_t { kPush = 0, kPull = 1 };

// Memory of a device that has its own (not `host`), and the way there.
struct SlabOptions {
  uint64_t budget = 0;                     // bytes for routed experts; 0: all of them
  double link_gbps = 0;                    // 1e9 bytes a second; 0: unthrottled
  double link_latency_us = 0;              // before a copy's first byte
  uint32_t tile_neurons = 0;               // a multiple of 64; 0: an eighth of an expert
  Transport transport = Transport::kPush;  // in virtual time there is nobody but the model
  SharedHandle handle = SharedHandle::kBest;
};

struct EngineOptions {
  // Positions of one sequence. 0: the smaller of the model's and 8192.
  uint32_t context = 0;
  // Sequences that run together.
  uint32_t parallel = 4;
  // Type of the KV cache's values.
  KvType kv = KvType::kF16;
  // Bytes of the KV cache, recurrent states included. 0: as many as `parallel` whole contexts take.
  uint64_t kv_budget = 0;
  // Prefill rows of one step: larger is faster to the first token, smaller disturbs running answers less.
  uint32_t prefill_chunk = 512;
  // What it may grow to while reading experts takes longer than computing them (schedule/chunk_pace.h). At
  // most the context; smaller than prefill_chunk: that. GrowingChunk() says what is best where nobody has.
  uint32_t prefill_chunk_most = 0;
  // Texts that begin alike share what is computed of their beginnings.
  bool prefix_cache = true;
  // What may wait.
  QueueLimits queue;
  // Where experts compute.
  DeviceKind device = DeviceKind::kHost;
  SlabOptions slab;
  // Times are those of a modelled link and device (device sim).
  bool virtual_clock = false;
  VirtualCosts costs;
  // File that the device's costs are measured into, in real time (sim/measured_device.h); empty: none
  // is.
  std::string measure_costs;
  // Named set of policies.
  std::string preset = "exact";
  // Policies set beside the preset.
  PolicyOverrides policies;
  // Ask for the experts of the next layer before its router has run.
  bool prefetch = true;
  // File that router traces are recorded in (policy/TRACE.md); empty: none are.
  std::string trace;
  // One that is replayed: its scores stand for the routers' (policy/replay_routing.h); empty: none.
  std::string replay_trace;
  // After weightd is lost, requests wait this long for it before they end UNAVAILABLE. Below five seconds, so
  // that no client hears nothing for longer than that.
  absl::Duration weightd_grace = absl::Milliseconds(4500);
  // Without a single byte from weightd for this long, what waits for it ends.
  absl::Duration stall_limit = absl::Seconds(5);
  // A step that shows no progress for this long makes Health() fail.
  absl::Duration watchdog = absl::Seconds(30);
  // Candidates per token that a request may ask for.
  uint32_t max_logprobs = 20;
};

// Options with every default resolved for a model, and the sizes that follow.
struct EnginePlan {
  EngineOptions options;
  uint32_t kv_pages = 0;
  uint64_t kv_bytes = 0;     // pages and recurrent states
  uint64_t state_bytes = 0;  // of these: the recurrent states of `parallel` sequences
  // Recurrent states kept beside those, for texts that go on from there; none where no layer has any.
  uint32_t kept_states = 0;
  ForwardOptions forward;
  uint64_t activation_bytes = 0;  // without the KV cache
  BackendLimits backend;          // what the backend must be made for
};

// prefill_chunk_most where it is not chosen: with all weights in memory, or on a device with memory of its
// own, nothing is gained by more than prefill_chunk.
uint32_t GrowingChunk(const EngineOptions& options, bool whole);

// INVALID_ARGUMENT naming the option and both numbers: a context beyond the model's, a budget that cannot
// hold one context. UNIMPLEMENTED: a model that the forward pass lacks something for.
absl::StatusOr<EnginePlan> PlanEngine(const EngineOptions& options, const ModelConfig& config);

}  // namespace sluice
