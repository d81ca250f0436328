#include "daemon/http/metrics_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "absl/strings/numbers.h"
#include "tests/support/prometheus_text.h"

namespace sluice {
namespace {

int PortOf(const MetricsServer& server) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(server.address().substr(server.address().rfind(':') + 1), &port));
  return port;
}

TEST(MetricsServerTest, EachScrapeGetsFreshText) {
  std::atomic<int> scrapes{0};
  const auto server = MetricsServer::Open(
      "127.0.0.1:0", [&] { return "# HELP n N.\n# TYPE n gauge\nn " + std::to_string(++scrapes) + "\n"; });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(HttpGet(PortOf(**server), "/metrics").value(), "# HELP n N.\n# TYPE n gauge\nn 1\n");
  EXPECT_EQ(HttpGet(PortOf(**server), "/metrics").value(), "# HELP n N.\n# TYPE n gauge\nn 2\n");
}

TEST(MetricsServerTest, OtherPathsAreNotFound) {
  const auto server = MetricsServer::Open("localhost:0", [] { return std::string("x"); });
  ASSERT_TRUE(server.ok()) << server.status();
  for (const char* path : {"/", "/metrics/x", "/../etc/passwd", "/%00"}) {
    const auto answer = HttpGet(PortOf(**server), path);
    EXPECT_FALSE(answer.ok()) << path;
  }
}

TEST(MetricsServerTest, AddressesBeyondLoopbackAreRefused) {
  for (const char* address : {"0.0.0.0:9400", "192.168.1.2:9400", "[::]:9400", "unix:/tmp/x", "9400", "",
                              "127.0.0.1", "example.org:9400", "127.0.0.1:99999"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckMetricsAddress(address))) << address;
    const auto server = MetricsServer::Open(address, [] { return std::string(); });
    EXPECT_TRUE(absl::IsInvalidArgument(server.status())) << address << ": " << server.status();
  }
}

TEST(MetricsServerTest, PortInUseIsReported) {
  const auto first = MetricsServer::Open("127.0.0.1:0", [] { return std::string("x"); });
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = MetricsServer::Open((*first)->address(), [] { return std::string("y"); });
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr((*first)->address()));
}

TEST(MetricsServerTest, OpensAndClosesWithoutScrapes) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(MetricsServer::Open("127.0.0.1:0", [] { return std::string(); }).ok());
  }
}

}  // namespace
}  // namespace sluice
