#include "inferd/serving/serving_metrics.h"

#include <dirent.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>

namespace sluice::inferd {
namespace {

constexpr MetricType kCounter = MetricType::kCounter;
constexpr MetricType kGauge = MetricType::kGauge;

// Histogram bounds in seconds. First token: from a short prompt on a fast machine to a long one in a full
// queue.
constexpr std::array<double, 20> kFirstTokenBounds = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160};
constexpr std::array<double, 19> kNextTokenBounds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                                     0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
constexpr std::array<double, 17> kAnswerBounds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,  10,
                                                  15,  20,  30,  40, 60,  120, 240, 960};

void Load(const EngineStats& stats, const LiveCalls& calls, MetricText* text) {
  text->One("inferd_requests_running", kGauge, "Sequences in the batch.", stats.sequences_running);
  text->One("inferd_requests_waiting", kGauge, "Sequences in the queue.", stats.sequences_waiting);
  text->One("inferd_calls_active", kGauge, "Calls that have not ended.", calls.calls());
  text->One("inferd_unsent_bytes", kGauge, "Output bytes that clients have not read.", calls.unsent_bytes());
  text->One("inferd_kv_pages_used", kGauge, "Pages of the KV cache in use.", stats.kv_pages_used);
  text->One("inferd_kv_pages_cached", kGauge, "Unused pages that hold cached prefixes.",
            stats.kv_pages_cached);
  text->One("inferd_kv_pages", kGauge, "Pages of the KV cache.", stats.kv_pages_total);
  text->One("inferd_kv_usage_ratio", kGauge, "Share of the KV cache in use.",
            stats.kv_pages_total == 0
                ? 0.0
                : static_cast<double>(stats.kv_pages_used) / static_cast<double>(stats.kv_pages_total));
  text->One("inferd_expert_leases", kGauge, "Leases on expert weights.", stats.expert_leases_held);
  text->One("inferd_fetches_outstanding", kGauge, "Requests to weightd without completion.",
            stats.fetches_outstanding);
}

void Work(const EngineStats& stats, const LiveCalls& calls, MetricText* text) {
  text->Family("inferd_finished_requests_total", kCounter, "Finished requests, by outcome.");
  text->Sample({{"end", "ok"}}, stats.requests_finished);
  text->Sample({{"end", "cancelled"}}, stats.requests_cancelled);
  text->Sample({{"end", "failed"}}, stats.requests_failed);
  text->Sample({{"end", "rejected"}}, stats.requests_rejected);
  text->One("inferd_slow_consumers_total", kCounter, "Streams cut because of a slow reader.",
            calls.slow_consumers());
  text->One("inferd_prompt_tokens_total", kCounter, "Tokens of finished prompts.", stats.prompt_tokens);
  text->One("inferd_cached_prompt_tokens_total", kCounter, "Prompt tokens found in the prefix cache.",
            stats.cached_prompt_tokens);
  text->One("inferd_preemptions_total", kCounter, "Preempted sequences.", stats.preemptions);
  text->One("inferd_generation_tokens_total", kCounter, "Tokens generated.", stats.generated_tokens);
  text->One("inferd_steps_total", kCounter, "Steps of the engine.", stats.steps);
  text->One("inferd_device_waits_total", kCounter,
            "Times that the host waited for the device; 0 for one that computes at the call.",
            stats.device_waits);
  text->One("inferd_device_kernels_total", kCounter,
            "Kernels that the device was given; 0 for a device without, as the next two.",
            stats.device_kernels);
  text->One("inferd_device_graph_launches_total", kCounter, "Kernel graphs launched.",
            stats.device_graph_launches);
  text->One("inferd_device_graph_changes_total", kCounter, "Kernel graphs created or updated.",
            stats.device_graph_changes);
  text->One("inferd_device_library_products_total", kCounter,
            "Products of cuBLASLt, with those of its self-test; 0 if a prompt's products are exact.",
            stats.device_library_products);
  text->One("inferd_prompt_seconds_total", kCounter, "Time of steps with prompt tokens.",
            stats.prompt_seconds);
  text->One("inferd_decode_seconds_total", kCounter, "Time of steps with generated tokens only.",
            stats.decode_seconds);
  text->One("inferd_decode_weight_bytes_total", kCounter, "Bytes of weights read by decode steps.",
            stats.weight_bytes_touched);
}

void Speculation(const EngineStats& stats, MetricText* text) {
  text->One("inferd_speculation_steps_total", kCounter, "Steps that verified drafts.",
            stats.speculation_steps);
  text->Family("inferd_drafts_verified_total", kCounter,
               "Drafts verified, by their position behind the last token.");
  for (size_t i = 0; i < stats.drafts_verified.size(); ++i) {
    text->Sample({{"position", std::to_string(i + 1)}}, stats.drafts_verified[i]);
  }
  text->Family("inferd_drafts_accepted_total", kCounter, "Of these: drafts that became tokens.");
  for (size_t i = 0; i < stats.drafts_accepted.size(); ++i) {
    text->Sample({{"position", std::to_string(i + 1)}}, stats.drafts_accepted[i]);
  }
  text->One("inferd_speculation_saved_seconds", kGauge,
            "Estimated time of plain steps for the tokens of steps with drafts, less the time taken.",
            stats.speculation_saved_seconds);
}

void Experts(const EngineStats& stats, MetricText* text) {
  text->One("inferd_expert_requests_total", kCounter, "Experts that the routers chose.",
            stats.expert_requests);
  text->One("inferd_expert_hits_total", kCounter, "Experts resident when chosen.", stats.expert_hits);
  text->One("inferd_expert_stall_seconds_total", kCounter, "Time that steps waited for bytes.",
            stats.stall_seconds);
  text->Family("inferd_weight_bytes_total", kCounter, "Bytes of weights, by source tier.");
  text->Sample({{"tier", "ssd"}}, stats.bytes_ssd);
  text->Sample({{"tier", "link"}}, stats.bytes_link);
  text->One("inferd_prefetch_issued_total", kCounter, "Prefetches issued.", stats.prefetch_issued);
  text->One("inferd_prefetch_useful_total", kCounter,
            "Of these: resident by the time the router chose the expert.", stats.prefetch_useful);
  text->One("inferd_draft_steps_total", kCounter, "Steps after which the following tokens were drafted.",
            stats.draft_steps);
  text->One("inferd_draft_steps_right_total", kCounter,
            "Of these: the next step began with just these tokens.", stats.draft_steps_right);
  text->One("inferd_predictions_total", kCounter, "Experts predicted and compared with the router's choice.",
            stats.predictions);
  text->One("inferd_predictions_right_total", kCounter, "Correct predictions.", stats.predictions_right);
  text->One("inferd_prediction_targets_total", kCounter,
            "Experts that the router chose where there was a prediction.", stats.predictions_wanted);
  text->One("inferd_predictor_precision_ratio", kGauge, "Share of correct predictions.",
            stats.predictions == 0
                ? 0.0
                : static_cast<double>(stats.predictions_right) / static_cast<double>(stats.predictions));
  text->One("inferd_weightd_reconnects_total", kCounter, "Sessions opened again after weightd was lost.",
            stats.weightd_reconnects);
}

// Returns the option's value in effect; empty: not reported.
std::string OptionOf(const ServerInfo& info, const std::string& name) {
  for (const ReportedOption& option : info.options) {
    if (option.name == name) {
      return option.value;
    }
  }
  return "";
}

}  // namespace

ServingMetrics::ServingMetrics()
    : ttft_(registry_.AddHistogram("inferd_time_to_first_token_seconds",
                                   "From a request's arrival to its first token.", kFirstTokenBounds)),
      tpot_(registry_.AddHistogram("inferd_time_per_output_token_seconds",
                                   "Mean time between the tokens of an answer.", kNextTokenBounds)),
      queue_(registry_.AddHistogram("inferd_request_queue_seconds", "Queue time of a request.",
                                    kFirstTokenBounds)),
      seconds_(registry_.AddHistogram("inferd_request_seconds", "From a request's arrival to its last token.",
                                      kAnswerBounds)) {
  for (size_t code = 0; code < by_code_.size(); ++code) {
    by_code_[code] =
        registry_.AddCounter("inferd_responses_total", "Finished responses, by status.",
                             {{"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}});
  }
}

void ServingMetrics::Ended(const FinishInfo* info, const absl::Status& status) {
  // Every response counts by its code; only successful ones have meaningful timings.
  const auto code = static_cast<size_t>(status.code());
  by_code_[code < by_code_.size() ? code : static_cast<size_t>(absl::StatusCode::kUnknown)]->Add();
  if (info == nullptr) {
    return;
  }
  const Timings& timings = info->timings;
  queue_->Observe(timings.queue_seconds);
  ttft_->Observe(timings.queue_seconds + timings.prompt_seconds);
  seconds_->Observe(timings.queue_seconds + timings.prompt_seconds + timings.decode_seconds);
  if (info->usage.completion_tokens > 1) {
    // The first token counts as prompt time.
    tpot_->Observe(timings.decode_seconds / (info->usage.completion_tokens - 1));
  }
}

std::string ServingMetrics::Text(const EngineStats& stats, const ServerInfo& info, ServerState::Phase phase,
                                 const LiveCalls& calls) const {
  MetricText text;
  text.Family("inferd_build_info", kGauge, "Build and model.");
  text.Sample({{"version", info.version}, {"model", info.model_id}, {"isa", info.isa}}, 1);
  const std::string device = OptionOf(info, "device");
  text.Family("inferd_device_info", kGauge, "Device of the model, and transport of experts.");
  text.Sample({{"device", device}, {"transport", device == "host" ? "lease" : OptionOf(info, "transport")}},
              1);
  text.One("inferd_serving", kGauge, "1 while tokens can be made.",
           phase == ServerState::Phase::kServing ? 1 : 0);
  Load(stats, calls, &text);
  Work(stats, calls, &text);
  Speculation(stats, &text);
  Experts(stats, &text);
  return text.Take() + registry_.Text();
}

uint64_t CountOpenDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) {
    return 0;
  }
  uint64_t count = 0;
  while (const dirent* entry = readdir(directory)) {
    count += entry->d_name[0] != '.' ? 1 : 0;
  }
  closedir(directory);
  // Reading the folder itself uses one descriptor.
  return count - 1;
}

uint64_t ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) {
    return 0;
  }
  unsigned long total = 0;
  unsigned long resident = 0;
  const int got = std::fscanf(file, "%lu %lu", &total, &resident);
  std::fclose(file);
  return got == 2 ? static_cast<uint64_t>(resident) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

ResidentParts ReadResidentParts() {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  ResidentParts parts;
  if (file == nullptr) {
    return parts;
  }
  char line[256];
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    unsigned long kib = 0;
    if (std::sscanf(line, "RssAnon: %lu kB", &kib) == 1) {
      parts.own = uint64_t{kib} << 10;
    } else if (std::sscanf(line, "RssShmem: %lu kB", &kib) == 1) {
      parts.shared = uint64_t{kib} << 10;
    }
  }
  std::fclose(file);
  return parts;
}

}  // namespace sluice::inferd
