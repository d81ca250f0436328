// What clients of the engine say and hear: requests, sinks, statistics. gRPC-free.
//
// The services (inferd/*_service) translate protos into these types; the engine (inferd/engine/engine.h)
// implements EngineApi. Tests of the services use a fake EngineApi, tests of the engine use these types
// directly.
//
// Thread safety: EngineApi's methods may be called from any thread. A RequestSink is called by the engine
// thread only, one call at a time, and must not block: it appends and returns.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/error_detail.h"
#include "inferd/api/calibration_api.h"
#include "inferd/api/guide_spec.h"
#include "inferd/api/part_work.h"
#include "inferd/api/queue_limits.h"

namespace sluice {

// Defaults are greedy decoding; the services apply generation_config.json before building this.
struct SamplingParams {
  float temperature = 0.0f;         // 0: greedy. Otherwise > 0, finite
  float top_p = 1.0f;               // (0, 1]
  uint32_t top_k = 0;               // 0: off
  float min_p = 0.0f;               // [0, 1)
  float repetition_penalty = 1.0f;  // > 0; 1: off
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;  // id and what is added to its logit; distinct ids
  std::optional<uint64_t> seed;                       // absent: the engine draws one and reports it
};

struct StoppingParams {
  uint32_t max_tokens = 0;  // >= 1; prompt + max_tokens must fit the context
  uint32_t min_tokens = 0;
  std::vector<std::string> stop;  // at most 16, each 1..1024 bytes
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_in_output = false;
};

struct GenerateSpec {
  std::string request_id;       // unique among live requests
  std::string client;           // fairness key (peer uid, token name); never logged with text
  std::vector<int32_t> prompt;  // at least one id, each < vocab
  SamplingParams sampling;
  StoppingParams stopping;
  std::optional<GuideSpec> guide;  // what the answer must conform to
  uint32_t logprobs = 0;           // report this many candidates per token besides the chosen one
  // Special tokens whose spelling is part of the text; the others are left out of it. Ascending.
  std::vector<int32_t> spelled_tokens;
  int32_t priority = 0;  // larger runs earlier, and makes what runs at a lower one wait
  absl::Time deadline = absl::InfiniteFuture();
  // It ends RESOURCE_EXHAUSTED (reason QUEUE_WAIT) if it has not started after this time.
  absl::Duration max_queue_wait = absl::InfiniteDuration();
  // Requests of equal salt share what is computed of equal beginnings; at most kMaxSaltBytes.
  std::string cache_salt;
  // The whole prompt is computed, and nothing of it is kept for others.
  bool bypass_prefix_cache = false;
};

enum class FinishReason : uint8_t { kStop, kLength, kStopSequence };

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;  // natural log, of the unmodified distribution
};

struct TokenOut {
  int32_t token_id = 0;
  float logprob = 0;
  std::vector<TokenLogprob> candidates;  // best first; empty unless GenerateSpec::logprobs
};

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_prompt_tokens = 0;  // of the prompt's: found computed
};

// Wall time and traffic of one request. Bytes and expert counts are this sequence's share of its steps.
struct Timings {
  double queue_seconds = 0;
  double prompt_seconds = 0;  // admission to first token
  double decode_seconds = 0;  // first token to last
  double stall_seconds = 0;   // waiting for bytes
  uint64_t expert_requests = 0;
  uint64_t expert_hits = 0;
  uint64_t bytes_ssd = 0;
  uint64_t bytes_link = 0;
};

struct FinishInfo {
  FinishReason reason = FinishReason::kStop;
  std::optional<int32_t> matched_stop_id;
  std::optional<std::string> matched_stop_string;
  Usage usage;
  Timings timings;
  uint64_t seed = 0;
};

// Where a request's output goes. Exactly one of OnFinished and OnError ends it; nothing follows.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  // The prompt was admitted (prefill begins).
  virtual void OnStarted(const Usage& usage, double queue_seconds) = 0;
  // New tokens, and the text that became whole with them (whole UTF-8; may be empty, may hold earlier bytes).
  virtual void OnTokens(absl::Span<const TokenOut> tokens, std::string_view text) = 0;
  virtual void OnFinished(const FinishInfo& info) = 0;
  virtual void OnError(const absl::Status& status) = 0;
};

// Teacher-forced scoring of one sequence: no sampling, no KV kept. Rows come in position order.
struct ScoreSpec {
  std::string request_id;
  std::string client;
  std::vector<int32_t> input;    // T ids
  std::vector<int32_t> targets;  // empty, or T ids whose log probability is reported
  bool want_logits = false;      // report the full rows, f32 [rows, vocab]
  absl::Time deadline = absl::InfiniteFuture();
};

class ScoreSink {
 public:
  virtual ~ScoreSink() = default;
  // Rows [first, first + argmax.size()): the most likely id of each; log probabilities of the targets (empty
  // without targets); logits row-major [rows, vocab] (empty unless wanted). The spans live during the call
  // only.
  virtual void OnRows(uint32_t first, absl::Span<const int32_t> argmax,
                      absl::Span<const float> target_logprobs, absl::Span<const float> logits) = 0;
  // True while the consumer wants no more rows for now (its buffer is full); the engine then leaves this
  // request out of its steps. Called between steps.
  virtual bool Congested() = 0;
  virtual void OnFinished(const Usage& usage, const Timings& timings) = 0;
  virtual void OnError(const absl::Status& status) = 0;
};

// Where the time of steps went, by one clock.
struct StepTimes {
  double step_seconds = 0;
  double load_seconds = 0;   // the link was busy with what steps asked for
  double stall_seconds = 0;  // steps waited for bytes, or for experts that the CPU computes

  double compute_seconds() const { return step_seconds - stall_seconds; }
  // Loading that computing hid.
  double overlap_seconds() const { return load_seconds > stall_seconds ? load_seconds - stall_seconds : 0; }
};

// Gauges return to zero when nothing runs; counters only grow.
struct EngineStats {
  // Gauges.
  uint64_t sequences_running = 0;
  uint64_t sequences_waiting = 0;
  uint64_t kv_pages_used = 0;  // by sequences that run
  uint64_t kv_pages_total = 0;
  uint64_t expert_leases_held = 0;  // pins on expert extents
  uint64_t dense_leases_held = 0;   // pins of the session's life
  uint64_t fetches_outstanding = 0;
  // Not of what runs: pages that nobody uses, kept for texts that begin like theirs.
  uint64_t kv_pages_kept = 0;
  // Counters.
  uint64_t steps = 0;
  uint64_t prompt_tokens = 0;         // of prompts that were done
  uint64_t cached_prompt_tokens = 0;  // of these: found computed
  uint64_t preemptions = 0;           // sequences that gave way to others
  uint64_t generated_tokens = 0;
  uint64_t requests_finished = 0;
  uint64_t requests_cancelled = 0;
  uint64_t requests_failed = 0;
  uint64_t requests_rejected = 0;
  uint64_t expert_requests = 0;  // (layer, expert) activations
  uint64_t expert_hits = 0;
  uint64_t prefetch_issued = 0;
  uint64_t prefetch_useful = 0;      // resident by the time the router chose it
  uint64_t token_guesses = 0;        // steps at whose end the tokens that follow were guessed
  uint64_t token_guesses_right = 0;  // of these: the next step began with just these tokens
  uint64_t predictions = 0;          // experts predicted and checked against the router
  uint64_t predictions_right = 0;
  uint64_t predictions_wanted = 0;  // experts the router chose where there was a prediction
  uint64_t bytes_ssd = 0;
  uint64_t bytes_link = 0;
  uint64_t weight_bytes_touched = 0;  // bytes of weights that decode steps read
  uint64_t weightd_reconnects = 0;
  uint64_t device_waits = 0;  // times that the host waited for the device
  // Of a device with kernels: those it was given, graphs of them that were launched, graphs that were made or
  // changed.
  uint64_t device_kernels = 0;
  uint64_t device_graph_launches = 0;
  uint64_t device_graph_changes = 0;
  uint64_t fork_joins = 0;
  double fork_join_seconds = 0;
  double kernel_seconds = 0;  // in operations of the backend, parallel or not
  double stall_seconds = 0;
  double prompt_seconds = 0;  // step time of steps that held prefill rows
  double decode_seconds = 0;  // step time of steps of decode rows alone
  uint64_t decode_steps = 0;
  // The device's cache of single neurons; slots 0: whole experts are cached.
  uint64_t neuron_slots = 0;
  bool leads_stay = false;
  double copy_all_share = 0;
  bool copy_all_measured = false;
  PartWorks parts;       // zeros on a device that runs later
  StepTimes times;       // by the clock that answers are timed by
  StepTimes real_times;  // by the machine's
};

// What neuron sparsity did to one layer's routed experts since the start.
struct LayerSparsity {
  uint64_t neurons = 0;  // (token, expert, neuron) triples
  uint64_t kept = 0;     // of these: computed to the end
};

// Experts predicted for one layer: pairs of a token and an expert.
struct PredictionStats {
  uint64_t predicted = 0;
  uint64_t right = 0;
  uint64_t wanted = 0;      // chosen where there was a prediction
  uint64_t rows = 0;        // tokens with a prediction
  uint64_t best_right = 0;  // of these: the expert predicted as the best was chosen
  uint64_t best_found = 0;  // of these: the router's best was predicted
};

// What happened to the routed experts of one layer since the start. A layer without experts: zeros.
struct LayerStats {
  // Experts to be computed, each once a step, and what became of them.
  uint64_t requests = 0;
  uint64_t hits = 0;     // resident when chosen
  uint64_t late = 0;     // on their way then
  uint64_t cpu = 0;      // computed by the CPU, where they lay
  uint64_t skipped = 0;  // not of the requests: chosen, and left out by the miss policy
  uint64_t prefetch_issued = 0;
  uint64_t prefetch_useful = 0;
  PredictionStats predictions;
  std::array<PredictionStats, 4> predictions_at;  // by depth: layers ahead; 0: the first layer's gate
  // Triples of an expert, a neuron and a step; zeros where whole experts are cached.
  uint64_t neurons_requested = 0;
  uint64_t neurons_hit = 0;
  uint64_t neurons_fetched = 0;
  uint64_t neurons_left_out = 0;
  uint64_t neurons_predicted = 0;
  uint64_t neurons_right = 0;
  uint64_t neurons_wanted = 0;
  // Bytes of weights by tier.
  uint64_t bytes_device = 0;
  uint64_t bytes_link = 0;
  uint64_t bytes_dram = 0;
  uint64_t bytes_ssd = 0;
  // The routing policy's, over generated rows.
  uint64_t routed_rows = 0;
  uint64_t single_rows = 0;
  uint64_t routed_pairs = 0;
  uint64_t dropped_pairs = 0;
  uint64_t exchanged_pairs = 0;
};

class EngineApi {
 public:
  virtual ~EngineApi() = default;

  // Validates and queues. The sink is held until the request ends. Errors (the sink is not called):
  // INVALID_ARGUMENT naming field and numbers, ALREADY_EXISTS, RESOURCE_EXHAUSTED (QUEUE_FULL, with the time
  // after which a place is likely: RetryDelayOf()), UNAVAILABLE (draining, weightd lost). An ErrorInfo-style
  // reason travels as a payload (common/error_detail.h).
  virtual absl::Status Generate(GenerateSpec spec, std::shared_ptr<RequestSink> sink) = 0;
  virtual absl::Status Score(ScoreSpec spec, std::shared_ptr<ScoreSink> sink) = 0;

  // Starts measuring the model on a text and writing its profile (calibration_api.h), beside the requests.
  // One runs at a time: FAILED_PRECONDITION (CALIBRATION_RUNS) otherwise.
  virtual absl::Status Calibrate(CalibrationSpec spec, std::shared_ptr<CalibrationSink> sink) = 0;

  // Ends a request within one step; its sink hears OnError(CANCELLED). NOT_FOUND if no such request lives.
  virtual absl::Status Cancel(const std::string& request_id) = 0;

  virtual EngineStats Stats() const = 0;
  // What neuron sparsity left out since the start, by layer; empty without sparsity.
  virtual std::vector<LayerSparsity> Sparsity() const = 0;
  // The routed experts of every layer, by layer.
  virtual std::vector<LayerStats> Layers() const = 0;

  // OK when a token can be made now; otherwise why not (starting, weightd link down, draining).
  virtual absl::Status Health() const = 0;

  // Refuses new requests from now on; running ones go on.
  virtual void StartDrain() = 0;

  // RESOURCE_EXHAUSTED (QUEUE_FULL), as Generate() and Score() would say it, if the queue has no place for a
  // request of `client` whatever it asks: doors refuse it before they make token ids of its text.
  virtual absl::Status CheckPlace(const std::string& client) = 0;

  // What may wait from now on; requests that wait already go on waiting.
  virtual void SetQueueLimits(const QueueLimits& limits) = 0;
};

}  // namespace sluice
