#include "common/base/listen_address.h"

#include <filesystem>
#include <string>

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(ListenAddressTest, EveryFormIsReadAndPrintedAsAClientTakesIt) {
  const struct {
    const char* text;
    const char* printed;
    bool local;
  } cases[] = {
      {"unix:/run/x.sock", "unix:/run/x.sock", true},
      {"unix:///run/x.sock", "unix:/run/x.sock", true},
      {"127.0.0.1:4000", "127.0.0.1:4000", true},
      {"localhost:4000", "127.0.0.1:4000", true},
      {"127.0.0.1:0", "127.0.0.1:0", true},
      {"[::1]:65535", "[::1]:65535", true},
      {"0.0.0.0:80", "0.0.0.0:80", false},
      {"[::]:80", "[::]:80", false},
      {"192.168.1.2:4000", "192.168.1.2:4000", false},
  };
  for (const auto& c : cases) {
    const auto address = ParseListenAddress(c.text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(c.printed, address->ToString());
    EXPECT_EQ(c.local, address->IsLocal()) << c.text;
    EXPECT_EQ(*address, *ParseListenAddress(address->ToString()));
  }
}

TEST(ListenAddressTest, ARelativePathLiesInTheWorkingDirectory) {
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ("unix:" + here + "/x.sock", ParseListenAddress("unix:x.sock")->ToString());
  EXPECT_EQ("unix:" + here + "/run/x.sock", ParseListenAddress("unix:./run/x.sock")->ToString());
  const auto parent = ParseListenAddress("unix:../x.sock");
  EXPECT_EQ(std::filesystem::path(here).parent_path() / "x.sock", std::filesystem::path(parent->path));
  // The limit is of the path that is bound.
  EXPECT_FALSE(ParseListenAddress("unix:" + std::string(107 - here.size() % 107, 'x')).ok());
}

TEST(ListenAddressTest, OtherFormsAreRefusedQuotingThem) {
  const std::string cases[] = {"",
                               "unix:",
                               "unix://host/x",
                               "127.0.0.1",
                               "127.0.0.1:",
                               "127.0.0.1:65536",
                               "127.0.0.1:-1",
                               "127.0.0.1: 80",
                               "example.com:80",
                               "::1:80",
                               "[127.0.0.1]:80",
                               "127.0.0.1.evil:80",
                               "unix:/" + std::string(107, 'x')};
  for (const std::string& text : cases) {
    const auto address = ParseListenAddress(text);
    EXPECT_EQ(absl::StatusCode::kInvalidArgument, address.status().code()) << text;
    EXPECT_NE(std::string::npos, address.status().ToString().find(text));
  }
}

}  // namespace
}  // namespace sluice
