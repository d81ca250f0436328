// Options of the engine, their resolved values for a model, and the memory that follows from them. The
// daemon, `sluice plan` and the tests use the same functions.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/model/model_config.h"
#include "inferd/forward/forward.h"
#include "inferd/forward/request_registry.h"
#include "inferd/policy/policies.h"
#include "inferd/sim/virtual_clock.h"
#include "kernels/backend.h"

namespace sluice::inferd {

// The process that copies experts into a device's memory: weightd pushes, or inferd pulls from its leases.
enum class Transport : uint8_t { kPush = 0, kPull = 1 };

// Memory of a device that has its own (not `host`), and the link to it.
struct SlabOptions {
  uint64_t budget = 0;                     // bytes for routed experts; 0: all of them
  double link_gbps = 0;                    // 1e9 bytes per second; 0: unthrottled
  double link_latency_us = 0;              // latency before a copy's first byte
  uint32_t tile_neurons = 0;               // a multiple of 64; 0: an eighth of an expert
  Transport transport = Transport::kPush;  // unused in virtual time
  SharedHandle handle = SharedHandle::kBest;
};

// Speculation (inferd/engine/speculation.h): none; drafts of the pack's MTP layers, or of n-grams without
// such layers, where tokens stay those of plain decoding; n-gram drafts under every preset; drafts of MTP
// layers under every preset that computes whole experts; those that requests state, for measurements.
enum class SpeculateMode : uint8_t { kOff, kAuto, kNgram, kMtp, kStated };

struct EngineOptions {
  // Maximum positions of one sequence. 0: the smaller of the model's and 8192.
  uint32_t context = 0;
  // Maximum number of sequences that run together.
  uint32_t parallel = 4;
  // Type of the KV cache's values.
  KvType kv = KvType::kF16;
  // Bytes of the KV cache, including recurrent states. 0: enough for `parallel` whole contexts.
  uint64_t kv_budget = 0;
  // Prefill rows of one step: larger shortens the time to the first token, smaller delays running answers
  // less.
  uint32_t prefill_chunk = 512;
  // Maximum to which the chunk may grow while reading experts takes longer than computing them
  // (schedule/chunk_pace.h). At most the context; a value below prefill_chunk means prefill_chunk.
  // GrowingChunk() returns the best default.
  uint32_t max_prefill_chunk = 0;
  // Sequences that begin alike share their common prefix.
  bool prefix_cache = true;
  // Speculation; the daemon's default is kAuto.
  SpeculateMode speculate = SpeculateMode::kOff;
  // Drafts verified in each step, if there are so many; 0: as measured times and acceptance make it worth.
  uint32_t drafts = 0;
  // Limits of the waiting queue.
  QueueLimits queue;
  // Device that computes.
  DeviceKind device = DeviceKind::kHost;
  SlabOptions slab;
  // Arithmetic of a prompt's dense products (device cuda).
  PrefillMath prefill_math = PrefillMath::kExact;
  // True: times come from a modelled link and device (device sim).
  bool virtual_clock = false;
  VirtualCosts costs;
  // File for the device's measured costs, in real time (sim/measured_device.h); empty: none.
  std::string measure_costs;
  // Named set of policies (preset).
  std::string preset = "exact";
  // Policies that override the preset.
  PolicyOverrides policies;
  // Requests the experts of the next layer before its router has run.
  bool prefetch = true;
  // File for recorded router traces (policy/TRACE.md); empty: none.
  std::string trace;
  // Trace to replay: its scores replace the routers' (policy/replay_routing.h); empty: none.
  std::string replay_trace;
  // After weightd is lost, requests wait this long for it before they end UNAVAILABLE. Below five seconds, so
  // that no client waits longer than that without a response.
  absl::Duration weightd_grace = absl::Milliseconds(4500);
  // Requests that wait for weightd end after this time without a single byte from it.
  absl::Duration stall_limit = absl::Seconds(5);
  // Health() fails after a step has made no progress for this long.
  absl::Duration watchdog = absl::Seconds(30);
  // Maximum number of candidates per token in a request.
  uint32_t max_logprobs = 20;
};

// Options with every default resolved for a model, and the sizes that follow.
// The part of the pack's model that an engine with these options computes: without the MTP layers unless
// they may draft.
ModelConfig ServedConfig(const EngineOptions& options, const ModelConfig& config);

struct EnginePlan {
  EngineOptions options;
  uint32_t kv_pages = 0;
  uint64_t kv_bytes = 0;     // pages and recurrent states
  uint64_t state_bytes = 0;  // part of kv_bytes: the recurrent states of `parallel` sequences
  // Number of further kept recurrent states, for sequences that continue from there; 0 if no layer is
  // recurrent.
  uint32_t kept_states = 0;
  ForwardOptions forward;
  uint64_t activation_bytes = 0;  // without the KV cache
  BackendLimits backend;          // limits for which the backend is created
};

// Returns the default of max_prefill_chunk: with all weights in memory, or on a device with its own memory,
// a larger value than prefill_chunk gains nothing.
uint32_t GrowingChunk(const EngineOptions& options, bool whole);

// INVALID_ARGUMENT naming the option and both numbers: a context beyond the model's, a budget that cannot
// hold one context. UNIMPLEMENTED: a model feature that the forward pass lacks.
absl::StatusOr<EnginePlan> PlanEngine(const EngineOptions& options, const ModelConfig& pack_config);

// Resize of a running engine's KV cache: pages and bytes of a new budget.
//
// Thread safety: pure functions.

// Bytes of `pages` pages and of the recurrent states beside them.
uint64_t KvBytesOf(const EnginePlan& plan, const ModelConfig& config, uint32_t pages);

// Number of pages that fit `kv_budget` bytes beside the recurrent states, whose number does not change; at
// most enough for `parallel` whole contexts. FAILED_PRECONDITION with the numbers if the pages cannot hold
// one sequence of `context` tokens.
absl::StatusOr<uint32_t> PagesWithin(const EnginePlan& plan, const ModelConfig& config, uint64_t kv_budget,
                                     uint32_t context);

}  // namespace sluice::inferd
