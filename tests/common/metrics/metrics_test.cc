#include "common/base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/prometheus_text.h"

namespace sluice {
namespace {

constexpr std::array<double, 3> kBounds = {0.1, 1, 10};

std::map<std::string, ParsedFamily> Parse(const std::string& text) {
  const auto parsed = ParsePrometheus(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status() << "\n" << text;
  return parsed.ok() ? *parsed : std::map<std::string, ParsedFamily>();
}

TEST(MetricsTest, TextFollowsTheFormatExactly) {
  MetricRegistry registry;
  registry.AddCounter("x_requests_total", "Requests.", {{"class", "demand"}})->Add(3);
  Histogram* seconds = registry.AddHistogram("x_seconds", "Time.", kBounds);
  seconds->Observe(0.25);
  seconds->Observe(0.5);
  seconds->Observe(50);
  EXPECT_EQ(registry.Text(),
            "# HELP x_requests_total Requests.\n# TYPE x_requests_total counter\n"
            "x_requests_total{class=\"demand\"} 3\n"
            "# HELP x_seconds Time.\n# TYPE x_seconds histogram\n"
            "x_seconds_bucket{le=\"0.1\"} 0\nx_seconds_bucket{le=\"1\"} 2\nx_seconds_bucket{le=\"10\"} 2\n"
            "x_seconds_bucket{le=\"+Inf\"} 3\nx_seconds_sum 50.75\nx_seconds_count 3\n");
}

TEST(MetricsTest, SeriesOfAFamilyAreWrittenTogether) {
  MetricRegistry registry;
  registry.AddCounter("a_total", "A.", {{"k", "1"}})->Add(1);
  registry.AddCounter("b_total", "B.")->Add(2);
  registry.AddCounter("a_total", "A.", {{"k", "2"}})->Add(3);
  const auto families = Parse(registry.Text());
  EXPECT_EQ(families.at("a_total").samples.size(), 2u);
  EXPECT_EQ(SampleOf(families, "a_total", "a_total{k=\"2\"}"), 3);
}

TEST(MetricsTest, LabelsAndHelpAreEscaped) {
  MetricRegistry registry;
  registry.AddCounter("x_total", "One\nline \\ \"quoted\".", {{"path", "/a\"b\\c\nd"}})->Add(1);
  const std::string text = registry.Text();
  EXPECT_THAT(text, testing::HasSubstr("# HELP x_total One\\nline \\\\ \"quoted\".\n"));
  EXPECT_THAT(text, testing::HasSubstr("x_total{path=\"/a\\\"b\\\\c\\nd\"} 1\n"));
  Parse(text);
}

TEST(MetricsTest, TextWritesEveryNumber) {
  MetricText builder;
  builder.One("y", MetricType::kGauge, "Y.", 18446744073709551615ull);
  builder.Family("z", MetricType::kGauge, "Z.");
  builder.Sample({{"a", "b"}}, std::nan(""));
  builder.Sample({{"a", "c"}}, -INFINITY);
  builder.Sample({{"a", "d"}}, 1.5);
  const std::string text = builder.Take();
  EXPECT_EQ(text,
            "# HELP y Y.\n# TYPE y gauge\ny 18446744073709551615\n"
            "# HELP z Z.\n# TYPE z gauge\nz{a=\"b\"} NaN\nz{a=\"c\"} -Inf\nz{a=\"d\"} 1.5\n");
  Parse(text);
}

TEST(MetricsTest, NothingIsLostWhenManyThreadsObserve) {
  MetricRegistry registry;
  Counter* counter = registry.AddCounter("x_total", "X.");
  Histogram* histogram = registry.AddHistogram("x_seconds", "X.", kBounds);
  constexpr int kThreads = 4;
  constexpr int kTimes = 5000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([=] {
      for (int n = 0; n < kTimes; ++n) {
        counter->Add();
        histogram->Observe(0.5);
      }
    });
  }
  Parse(registry.Text());  // a scrape beside them is consistent in itself
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(counter->value(), uint64_t{kThreads} * kTimes);
  EXPECT_EQ(histogram->Read().count(), uint64_t{kThreads} * kTimes);
  EXPECT_DOUBLE_EQ(histogram->Read().sum, 0.5 * kThreads * kTimes);
}

TEST(MetricsTest, BoundsAreInclusiveAndBeyondTheLastIsInfinity) {
  Histogram histogram(kBounds);
  for (const double value : {0.1, 0.100001, 10.0, 10.5, std::nan("")}) {
    histogram.Observe(value);
  }
  EXPECT_THAT(histogram.Read().counts, testing::ElementsAre(1, 1, 1, 2));
}

TEST(MetricsTest, QuantilesAreTheBoundOfTheirBucket) {
  Histogram histogram(kBounds);
  EXPECT_EQ(histogram.Read().Quantile(0.5), 0);
  for (int i = 0; i < 98; ++i) {
    histogram.Observe(0.05);
  }
  histogram.Observe(5);
  histogram.Observe(500);
  EXPECT_EQ(histogram.Read().Quantile(0.5), 0.1);
  EXPECT_EQ(histogram.Read().Quantile(0.99), 10);
  EXPECT_EQ(histogram.Read().Quantile(1.0), 10);
}

// The reader that the other tests rely on.
TEST(MetricsTest, StrictReaderRefusesInvalidText) {
  const std::string head = "# HELP x X.\n# TYPE x gauge\n";
  const std::string histogram = "# HELP h H.\n# TYPE h histogram\n";
  for (const std::string& bad :
       {std::string(""),
        std::string("x 1\n"),
        head + "x 1",
        head + "x one\n",
        head + "x{a=b} 1\n",
        head + "x{a=\"\\q\"} 1\n",
        head + "x{1a=\"b\"} 1\n",
        head + "y 1\n",
        head + "x 1\nx 2\n",
        head + head,
        std::string("# HELP x X.\n# TYPE x counter\nx 1\n"),
        std::string("# TYPE x gauge\nx 1\n"),
        std::string("# HELP x_total X.\n# TYPE x_total counter\nx_total -1\n"),
        histogram + "h_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n",
        histogram + "h_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
        histogram + "h_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 2\n",
        histogram + "h_bucket{le=\"+Inf\"} 1\nh_count 1\n",
        std::string("# HELP readTime X.\n# TYPE readTime gauge\nreadTime 1\n"),
        std::string("# HELP read_ms X.\n# TYPE read_ms gauge\nread_ms 1\n"),
        std::string("# HELP a_gauge X.\n# TYPE a_gauge gauge\na_gauge 1\n"),
        std::string("# HELP a_count X.\n# TYPE a_count gauge\na_count 1\n"),
        head + "x{le=\"1\"} 1\n",
        head + "x{quantile=\"0.5\"} 1\n"}) {
    EXPECT_FALSE(ParsePrometheus(bad).ok()) << bad;
  }
  EXPECT_TRUE(ParsePrometheus(head + "x{a=\"b\"} 1\nx{a=\"c\"} +Inf\n").ok());
}

}  // namespace
}  // namespace sluice
