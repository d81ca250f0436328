// SessionWeightClientTest: a WeightdServer in the same process and its clients: sockets, descriptors and
// shared memory are the real ones.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "inferd/session/session_weight_client.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_pack.h"
#include "tests/support/weight_client_calls.h"
#include "weightd/daemon/weightd_server.h"

namespace sluice::inferd {

inline absl::Time Soon() { return SteadyNow() + absl::Seconds(20); }

class SessionWeightClientTest : public testing::Test {
 protected:
  void StartServer(uint64_t budget, std::vector<std::string> packs = {}) {
    weightd::WeightdOptions options;
    options.preload = false;  // the tests count reads
    options.socket = folder_.File("weightd.sock");
    options.packs = packs.empty() ? std::vector<std::string>{pack_.dir()} : packs;
    options.dram_budget = budget;
    options.reader_threads = 2;
    auto server = weightd::WeightdServer::Start(options, {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void StartServer() { StartServer(64 << 20); }

  std::unique_ptr<SessionWeightClient> Connect(const std::string& pack_dir = "") {
    SessionWeightClientOptions options = Options();
    options.pack_dir = pack_dir.empty() ? pack_.dir() : pack_dir;
    auto client = SessionWeightClient::Connect(options, Soon());
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  SessionWeightClientOptions Options() {
    SessionWeightClientOptions options;
    options.socket = folder_.File("weightd.sock");
    options.pack_dir = pack_.dir();
    return options;
  }

  // Leases an extent, fetching it if needed, and compares it with the disk.
  void ExpectRight(WeightClient* client, uint32_t extent, const TestPack& pack) {
    ExtentLease lease;
    if (!client->TryLease(extent, &lease)) {
      ASSERT_TRUE(client->Submit(ExtentRequest(++next_id_, extent)).ok());
      bool leased = false;
      const auto done = Await(
          client, next_id_, [&](const FetchCompletion&) { leased = client->TryLease(extent, &lease); },
          [this] { PollIdle(); });
      ASSERT_TRUE(done.ok()) << done.status();
      ASSERT_TRUE(leased) << "extent " << extent << ", code " << static_cast<int>(done->code);
    }
    EXPECT_TRUE(pack.Matches(extent, lease)) << pack.pack().ExtentName(extent);
    client->Release(extent, ++step_);
  }

  // The minimum budget of the test's pack.
  uint64_t LeastBudget() const {
    return pack_.pack().dense_bytes() + 2 * pack_.pack().largest_expert_bytes();
  }

  // An idle engine still processes segments that weightd wants back; so does the idle client here.
  void PollIdle() {
    if (idle_ != nullptr) {
      idle_->Poll([](const FetchCompletion&) {});
    }
  }

  TempDir folder_;
  TestPack pack_;
  std::unique_ptr<weightd::WeightdServer> server_;
  uint64_t next_id_ = 0;
  uint64_t step_ = 0;
  WeightClient* idle_ = nullptr;
};

class RecordingObserver : public SegmentObserver {
 public:
  absl::Status OnSegmentMapped(uint32_t segment, const std::byte* base, uint64_t bytes) override {
    EXPECT_NE(base, nullptr);
    EXPECT_GT(bytes, 0u);
    EXPECT_TRUE(mapped.insert(segment).second);
    return status;
  }
  void OnSegmentUnmapped(uint32_t segment) override { EXPECT_EQ(mapped.erase(segment), 1u); }

  std::set<uint32_t> mapped;
  absl::Status status;
};

}  // namespace sluice::inferd
