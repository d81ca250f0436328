#include "inferd/serving/serving_metrics.h"

#include <gtest/gtest.h>

#include "tests/support/prometheus_text.h"

namespace sluice::inferd {
namespace {

std::map<std::string, ParsedFamily> Scrape(const ServingMetrics& metrics, const EngineStats& stats) {
  const LiveCalls calls;
  ServerInfo info;
  info.version = "1.2";
  info.model_id = "abc";
  const std::string text = metrics.Text(stats, info, ServerState::Phase::kServing, calls);
  const auto parsed = ParsePrometheus(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status() << "\n" << text;
  return parsed.ok() ? *parsed : std::map<std::string, ParsedFamily>();
}

TEST(ServingMetricsTest, CountersOfTheEngineAreWrittenUnderTheirNames) {
  EngineStats stats;
  stats.generated_tokens = 7;
  stats.expert_requests = 10;
  stats.expert_hits = 9;
  stats.predictions = 4;
  stats.predictions_right = 3;
  stats.kv_pages_used = 1;
  stats.kv_pages_total = 4;
  stats.stall_seconds = 0.5;
  stats.requests_rejected = 2;
  stats.kv_pages_cached = 2;
  stats.cached_prompt_tokens = 31;
  stats.preemptions = 5;
  stats.device_waits = 12;
  stats.device_kernels = 96;
  stats.device_graph_launches = 8;
  stats.device_graph_changes = 2;
  stats.device_library_products = 24;
  stats.speculation_steps = 3;
  stats.drafts_verified = {3, 2};
  stats.drafts_accepted = {2, 1};
  const auto families = Scrape(ServingMetrics(), stats);
  const auto value = [&](const std::string& name) { return SampleOf(families, name, name); };
  EXPECT_EQ(value("inferd_generation_tokens_total"), 7);
  EXPECT_EQ(value("inferd_expert_hits_total"), 9);
  EXPECT_EQ(value("inferd_predictor_precision_ratio"), 0.75);
  EXPECT_EQ(value("inferd_kv_usage_ratio"), 0.25);
  EXPECT_EQ(value("inferd_expert_stall_seconds_total"), 0.5);
  EXPECT_EQ(value("inferd_serving"), 1);
  EXPECT_EQ(value("inferd_kv_pages_cached"), 2);
  EXPECT_EQ(value("inferd_cached_prompt_tokens_total"), 31);
  EXPECT_EQ(value("inferd_preemptions_total"), 5);
  EXPECT_EQ(value("inferd_device_waits_total"), 12);
  EXPECT_EQ(value("inferd_device_kernels_total"), 96);
  EXPECT_EQ(value("inferd_device_graph_launches_total"), 8);
  EXPECT_EQ(value("inferd_device_graph_changes_total"), 2);
  EXPECT_EQ(value("inferd_device_library_products_total"), 24);
  EXPECT_EQ(value("inferd_speculation_steps_total"), 3);
  EXPECT_EQ(
      SampleOf(families, "inferd_drafts_verified_total", "inferd_drafts_verified_total{position=\"2\"}"), 2);
  EXPECT_EQ(
      SampleOf(families, "inferd_drafts_accepted_total", "inferd_drafts_accepted_total{position=\"1\"}"), 2);
  EXPECT_EQ(SampleOf(families, "inferd_finished_requests_total",
                     "inferd_finished_requests_total{end=\"rejected\"}"),
            2);
}

TEST(ServingMetricsTest, AnswersAreTimedAndCountedByTheirStatus) {
  ServingMetrics metrics;
  FinishInfo info;
  info.usage.completion_tokens = 5;
  info.timings.queue_seconds = 0.5;
  info.timings.prompt_seconds = 1.5;
  info.timings.decode_seconds = 4;
  metrics.Ended(&info, absl::OkStatus());
  info.usage.completion_tokens = 1;  // no time between tokens
  metrics.Ended(&info, absl::OkStatus());
  metrics.Ended(nullptr, absl::CancelledError("gone"));
  const auto families = Scrape(metrics, EngineStats());
  EXPECT_EQ(
      SampleOf(families, "inferd_time_to_first_token_seconds", "inferd_time_to_first_token_seconds_sum"), 4);
  EXPECT_EQ(
      SampleOf(families, "inferd_time_per_output_token_seconds", "inferd_time_per_output_token_seconds_sum"),
      1);
  EXPECT_EQ(SampleOf(families, "inferd_time_per_output_token_seconds",
                     "inferd_time_per_output_token_seconds_count"),
            1);
  EXPECT_EQ(SampleOf(families, "inferd_responses_total", "inferd_responses_total{code=\"OK\"}"), 2);
  EXPECT_EQ(SampleOf(families, "inferd_responses_total", "inferd_responses_total{code=\"CANCELLED\"}"), 1);
}

}  // namespace
}  // namespace sluice::inferd
