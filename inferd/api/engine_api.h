// API between the engine and its clients: constraints, queue limits, requests, sinks, statistics.
//
// GrammarSpec: a client's constraint on an answer (structured output). The engine compiles it to token masks.
//
// Thread safety: plain values.
#pragma once

#include <array>
#include <cstddef>
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
#include "common/base/status.h"
#include "inferd/api/control_api.h"

namespace sluice::inferd {

// A text with a JSON document in the middle, such as a tool call.
struct ToolCallGrammar {
  std::string begin;
  std::string json_schema;
  std::string end;
};

struct GrammarSpec {
  enum class Kind : uint8_t {
    kJsonObject,  // any JSON object
    kJsonSchema,  // a JSON document valid under `text`, a JSON schema
    kRegex,       // the whole answer matches `text`, a regular expression
    kGrammar,     // `text` is a grammar (GBNF) whose rule "root" derives the answer
    kChoice,      // one of `choices`
    kCall,        // one of `calls`
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;
  std::vector<ToolCallGrammar> calls;
  // Token that ends the unconstrained part of the answer (included): the thoughts of a reasoning model. The
  // answer cannot end before it.
  std::optional<int32_t> after_token;
};

// QueueLimits: maximum size of the engine's request queue.
//
// Thread safety: plain data.

// Limits of the queue. A request that waits alone is always accepted, whatever its size.
struct QueueLimits {
  uint32_t count = 256;
  uint64_t tokens = 1ull << 20;
  uint64_t bytes = 64ull << 20;  // memory of the waiting requests
};

// PartWork: time, bytes and multiply-adds of each part of a model's steps, shown by `sluice bench --explain`.
//
// Thread safety: plain values.

enum class StepPart : uint8_t { kAttention = 0, kRouter = 1, kExperts = 2, kHead = 3, kOther = 4 };
inline constexpr size_t kStepParts = 5;

inline constexpr const char* NameOf(StepPart part) {
  constexpr const char* kNames[kStepParts] = {"attention", "router", "experts", "head", "other"};
  return kNames[static_cast<size_t>(part)];
}

// Counters since the start; they only grow.
struct PartWork {
  double seconds = 0;     // time in operations of this part
  uint64_t bytes = 0;     // bytes of weights and KV cache read, each counted once an operation
  uint64_t products = 0;  // multiply-adds
};

using PartWorks = std::array<PartWork, kStepParts>;

// EngineApi: requests, sinks and statistics between the engine and its clients. gRPC-free.
//
// Servers convert their requests to these types; the engine (inferd/engine/engine.h) implements EngineApi.
// Tests of servers use a fake EngineApi; tests of the engine use these types directly.
//
// Thread safety: EngineApi's methods may be called from any thread. A RequestSink is called by the engine
// thread only, one call at a time, and must not block: it appends and returns.

// Sampling parameters, bounded by request_checks.h. Default: greedy; servers apply generation_config.json.
struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  float top_p = 1.0f;
  uint32_t top_k = 0;  // 0: off
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // 1: off
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;  // (id, bias added to its logit); distinct ids
  std::optional<uint64_t> seed;                       // absent: the engine draws one and reports it
};

struct StoppingParams {
  uint32_t max_tokens = 0;  // prompt + max_tokens must fit the context
  uint32_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_in_output = false;
};

// Maximum number of drafts that a step verifies for one sequence.
inline constexpr uint32_t kMaxDrafts = 8;

// Drafts of stated acceptance, which measure the price of verification: tokens of the known answer, wrong on
// purpose at places that `seed` decides.
struct StatedDrafts {
  std::vector<int32_t> answer;  // of plain decoding; none is drafted beyond it
  double acceptance = 1;        // probability that a draft is right
  uint32_t drafts = 1;          // most of a step, at most kMaxDrafts
  uint64_t seed = 0;
  bool all = false;  // verifies that many, whatever they cost
};

struct GenerateSpec {
  std::string request_id;       // unique among live requests
  std::string client;           // fairness key (peer uid, token name); never logged with text
  std::vector<int32_t> prompt;  // prompt ids, at least one, each < vocab
  SamplingParams sampling;
  StoppingParams stopping;
  std::optional<GrammarSpec> constraint;  // on the answer
  uint32_t logprobs = 0;                  // number of candidates reported per token besides the chosen one
  // Special tokens whose spelling is part of the answer's text; other special tokens are invisible.
  // Ascending.
  std::vector<int32_t> visible_special_tokens;
  int32_t priority = 0;  // larger runs earlier and preempts sequences of lower priority
  absl::Time deadline = absl::InfiniteFuture();
  // The request ends RESOURCE_EXHAUSTED (reason QUEUE_WAIT) if it has not started after this time.
  absl::Duration max_queue_wait = absl::InfiniteDuration();
  // Prefix cache namespace: only requests of equal salt share cached prefixes.
  std::string cache_salt;
  // True to compute the whole prompt and to keep nothing of it in the prefix cache.
  bool bypass_prefix_cache = false;
  // Drafts in the place of a drafter's. FAILED_PRECONDITION unless the engine speculates so
  // (SpeculateMode::kStated).
  std::optional<StatedDrafts> stated_drafts;
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
  uint32_t cached_prompt_tokens = 0;  // prompt tokens found in the prefix cache
  // Speculation: drafts verified beside tokens, and those of them that were right and became tokens.
  uint32_t drafted_tokens = 0;
  uint32_t accepted_tokens = 0;
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

// Receiver of a request's output. Exactly one of OnFinished and OnError ends it; nothing follows.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  // The prompt was admitted; prefill begins.
  virtual void OnStarted(const Usage& usage, double queue_seconds) = 0;
  // New tokens, and the text completed by them (whole UTF-8; may be empty, may hold earlier bytes).
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
  // without targets); logits row-major [rows, vocab] (empty unless wanted). The spans are valid during the
  // call only.
  virtual void OnRows(uint32_t first, absl::Span<const int32_t> argmax,
                      absl::Span<const float> target_logprobs, absl::Span<const float> logits) = 0;
  // True while the consumer's buffer is full; the engine then leaves this request out of its steps. Called
  // between steps.
  virtual bool Congested() = 0;
  virtual void OnFinished(const Usage& usage, const Timings& timings) = 0;
  virtual void OnError(const absl::Status& status) = 0;
};

// Time of steps by part, measured by one clock.
struct StepTimes {
  double step_seconds = 0;
  double load_seconds = 0;   // link busy with loads requested by steps
  double stall_seconds = 0;  // steps waited for bytes, or for experts computed by the CPU

  double compute_seconds() const { return step_seconds - stall_seconds; }
  // Load time hidden behind computation.
  double overlap_seconds() const { return load_seconds > stall_seconds ? load_seconds - stall_seconds : 0; }
};

// Engine statistics. Gauges return to zero when nothing runs; counters only grow.
struct EngineStats {
  // Gauges.
  uint64_t sequences_running = 0;
  uint64_t sequences_waiting = 0;
  uint64_t kv_pages_used = 0;  // pages of running sequences
  uint64_t kv_pages_total = 0;
  uint64_t expert_leases_held = 0;  // pins on expert extents
  uint64_t dense_leases_held = 0;   // pins held for the session's lifetime
  uint64_t fetches_outstanding = 0;
  // Unused pages that hold cached prefixes; not part of kv_pages_used.
  uint64_t kv_pages_cached = 0;
  // Counters.
  uint64_t steps = 0;
  uint64_t prompt_tokens = 0;         // of finished prompts
  uint64_t cached_prompt_tokens = 0;  // of these: found in the prefix cache
  uint64_t preemptions = 0;           // sequences preempted by others
  uint64_t generated_tokens = 0;
  uint64_t requests_finished = 0;
  uint64_t requests_cancelled = 0;
  uint64_t requests_failed = 0;
  uint64_t requests_rejected = 0;
  uint64_t expert_requests = 0;  // (layer, expert) activations
  uint64_t expert_hits = 0;
  uint64_t prefetch_issued = 0;
  uint64_t prefetch_useful = 0;    // resident by the time the router chose it
  uint64_t draft_steps = 0;        // steps after which the following tokens were drafted
  uint64_t draft_steps_right = 0;  // of these: the next step began with exactly these tokens
  // Speculation: steps that verified drafts, their time saved against plain steps (estimated, may be
  // negative), and by position behind the last token the drafts verified and those accepted.
  uint64_t speculation_steps = 0;
  double speculation_saved_seconds = 0;
  std::array<uint64_t, kMaxDrafts> drafts_verified{};
  std::array<uint64_t, kMaxDrafts> drafts_accepted{};
  uint64_t predictions = 0;  // experts predicted and checked against the router
  uint64_t predictions_right = 0;
  uint64_t predictions_wanted = 0;  // experts chosen by the router where a prediction existed
  uint64_t bytes_ssd = 0;
  uint64_t bytes_link = 0;
  uint64_t weight_bytes_touched = 0;  // bytes of weights read by decode steps
  uint64_t weightd_reconnects = 0;
  uint64_t device_waits = 0;  // host waits for the device
  // Device work: kernels launched, graphs launched, graphs created or updated.
  uint64_t device_kernels = 0;
  uint64_t device_graph_launches = 0;
  uint64_t device_graph_changes = 0;
  // Products of cuBLASLt, with those of its self-test: 0 if a prompt's products are exact.
  uint64_t device_library_products = 0;
  uint64_t fork_joins = 0;
  double fork_join_seconds = 0;
  double kernel_seconds = 0;  // time in backend operations, parallel or not
  double stall_seconds = 0;
  double prompt_seconds = 0;  // step time of steps that held prefill rows
  double decode_seconds = 0;  // step time of steps of decode rows alone
  uint64_t decode_steps = 0;
  // Device cache of single neurons; 0 slots: whole experts are cached.
  uint64_t neuron_slots = 0;
  bool leads_stay = false;
  double copy_all_share = 0;
  PartWorks parts;       // zeros on an asynchronous device
  StepTimes times;       // by the clock used for answers (virtual in a simulation)
  StepTimes real_times;  // by the machine's clock
};

// Neuron sparsity counters of one layer's routed experts since the start.
struct LayerSparsity {
  uint64_t neurons = 0;  // (token, expert, neuron) triples
  uint64_t kept = 0;     // of these: computed fully
};

// Prediction counters of one layer: pairs of a token and an expert.
struct PredictionStats {
  uint64_t predicted = 0;
  uint64_t right = 0;
  uint64_t wanted = 0;      // chosen where a prediction existed
  uint64_t rows = 0;        // tokens with a prediction
  uint64_t best_right = 0;  // of these: the top predicted expert was chosen
  uint64_t best_found = 0;  // of these: the router's top expert was predicted
};

// Counters of one layer's routed experts since the start. A layer without experts: zeros.
struct LayerStats {
  // Requested experts, each counted once a step, and the outcome of each request.
  uint64_t requests = 0;
  uint64_t hits = 0;     // resident when chosen
  uint64_t late = 0;     // in transfer when chosen
  uint64_t cpu = 0;      // computed by the CPU in place
  uint64_t skipped = 0;  // chosen, but skipped by the miss policy; not part of requests
  uint64_t prefetch_issued = 0;
  uint64_t prefetch_useful = 0;
  PredictionStats predictions;
  std::array<PredictionStats, 4> predictions_at;  // index: layers ahead; 0: the first layer's gate
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
  // Counters of the routing policy over generated rows.
  uint64_t routed_rows = 0;
  uint64_t single_rows = 0;
  uint64_t routed_pairs = 0;
  uint64_t dropped_pairs = 0;
  uint64_t exchanged_pairs = 0;
};

class EngineApi {
 public:
  virtual ~EngineApi() = default;

  // Queues a request, whose fields were checked (request_checks.h); holds the sink until it ends. Errors (the
  // sink is not called): INVALID_ARGUMENT (a constraint; a context that was reduced), ALREADY_EXISTS,
  // RESOURCE_EXHAUSTED (QUEUE_FULL; RetryDelayOf(): when a place is likely), UNAVAILABLE (draining, weightd
  // lost). An ErrorInfo-style reason is attached as a payload (common/base/status.h).
  virtual absl::Status Generate(GenerateSpec spec, std::shared_ptr<RequestSink> sink) = 0;
  virtual absl::Status Score(ScoreSpec spec, std::shared_ptr<ScoreSink> sink) = 0;

  // Starts to measure the model on a text and to write its profile (control_api.h), beside the requests.
  // Only one calibration runs at a time: else FAILED_PRECONDITION (CALIBRATION_RUNS).
  virtual absl::Status Calibrate(CalibrationSpec spec, std::shared_ptr<CalibrationSink> sink) = 0;

  // Ends a request within one step; its sink gets OnError(CANCELLED). NOT_FOUND if no such request is live.
  virtual absl::Status Cancel(const std::string& request_id) = 0;

  virtual EngineStats Stats() const = 0;
  // Neuron sparsity counters since the start, by layer; empty without sparsity.
  virtual std::vector<LayerSparsity> Sparsity() const = 0;
  // Counters of the routed experts, by layer.
  virtual std::vector<LayerStats> Layers() const = 0;

  // OK if a token can be made now; otherwise the reason (starting, weightd link down, draining).
  virtual absl::Status Health() const = 0;

  // Refuses new requests from now on; running requests continue.
  virtual void StartDrain() = 0;

  // RESOURCE_EXHAUSTED (QUEUE_FULL), as Generate() and Score() would return it, if the queue has no place for
  // any request of `client`: servers refuse the request before they tokenize its text.
  virtual absl::Status CheckQueueSpace(const std::string& client) = 0;

  // Sets the limits for new requests; requests already in the queue stay there.
  virtual void SetQueueLimits(const QueueLimits& limits) = 0;
};

}  // namespace sluice::inferd
