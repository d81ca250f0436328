// SIGKILL at random points, over and over: of weightd under a working client, and of clients that hold
// leases. Run with --weight-client SOCKET PACK SEED this program is such a client.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "daemon/grpc_status.h"
#include "grpcpp/create_channel.h"
#include "inferd/session/session_weight_client.h"
#include "sluice/weights/v1/weights.grpc.pb.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_pack.h"
#include "tests/support/weight_client_calls.h"
#include "tests/support/weightd_process.h"

namespace sluice {
namespace v1 = ::sluice::weights::v1;
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr char kClientFlag[] = "--weight-client";

absl::StatusOr<std::unique_ptr<inferd::SessionWeightClient>> ConnectTo(const std::string& socket,
                                                                       const std::string& pack) {
  inferd::SessionWeightClientOptions options;
  options.socket = socket;
  options.pack_dir = pack;
  return inferd::SessionWeightClient::Connect(options, SteadyNow() + kPatience);
}

// Makes random accesses with a few leases held at a time, like an engine.
class Worker {
 public:
  Worker(inferd::WeightClient* client, const TestPack* pack, uint64_t seed)
      : client_(client), pack_(pack), random_(seed) {}

  // One access. Not OK: the connection is lost. A wrong byte fails the test.
  absl::Status Step() {
    ++step_;
    const uint32_t extent = random_() % client_->pack().extent_count();
    inferd::ExtentLease lease;
    if (!client_->TryLease(extent, &lease)) {
      ReleaseAll();  // a session releases its extents before it waits for a fill
      if (const absl::Status status = FetchAndLease(client_, step_, extent, &lease); !status.ok()) {
        return status;
      }
    }
    held_.emplace_back(extent, lease);
    if (pack_ != nullptr) {
      EXPECT_TRUE(pack_->Matches(extent, lease)) << pack_->pack().ExtentName(extent);
    }
    if (held_.size() > 3) {
      ReleaseAll();
    }
    return absl::OkStatus();
  }

  // Checks that held extents stay readable, whatever has happened to weightd.
  void ExpectHeldRight() const {
    for (const auto& [extent, lease] : held_) {
      EXPECT_TRUE(pack_->Matches(extent, lease));
    }
  }

  void ReleaseAll() {
    for (const auto& [extent, lease] : held_) {
      client_->Release(extent, step_);
    }
    held_.clear();
  }

  uint64_t random() { return random_(); }

 private:
  inferd::WeightClient* const client_;
  const TestPack* const pack_;
  std::mt19937_64 random_;
  uint64_t step_ = 0;
  std::vector<std::pair<uint32_t, inferd::ExtentLease>> held_;
};

// Sends SIGKILL once `progress` has reached `at`: from a thread of its own, so at any point of the work.
class Killer {
 public:
  Killer(pid_t pid, const std::atomic<uint64_t>* progress, uint64_t at)
      : thread_([pid, progress, at] {
          uint64_t seen = progress->load();
          while (seen < at) {
            progress->wait(seen);
            seen = progress->load();
          }
          kill(pid, SIGKILL);
        }) {}
  ~Killer() { thread_.join(); }

 private:
  std::thread thread_;
};

class KillTest : public testing::Test {
 protected:
  uint64_t SmallBudget() const {
    return pack_.pack().dense_bytes() + 6 * pack_.pack().largest_expert_bytes();
  }

  v1::GetStatsResponse Stats() {
    const auto stub = v1::WeightService::NewStub(
        grpc::CreateChannel("unix:" + weightd_.socket(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(SteadyNow() + kPatience));
    v1::GetStatsResponse stats;
    const grpc::Status status = stub->GetStats(&context, v1::GetStatsRequest(), &stats);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stats;
  }

  // Waits for a byte, and meanwhile releases segments that weightd retires, as a waiting engine does.
  static bool AwaitByte(int fd, inferd::WeightClient* client) {
    pollfd polled{fd, POLLIN, 0};
    while (poll(&polled, 1, 1) == 0) {
      client->Poll([](const inferd::FetchCompletion&) {});
    }
    char byte;
    return read(fd, &byte, 1) == 1;
  }

  TempDir folder_;
  TestPack pack_;
  WeightdProcess weightd_{folder_.path(), {pack_.dir()}, SmallBudget()};
};

TEST_F(KillTest, SuccessorOfKilledWeightdServesTheSameBytes) {
  weightd_.Start();
  auto client = ConnectTo(weightd_.socket(), pack_.dir());
  ASSERT_TRUE(client.ok()) << client.status() << weightd_.log();
  Worker worker(client->get(), &pack_, 1);
  for (int round = 0; round < 50; ++round) {
    std::atomic<uint64_t> progress = 0;
    absl::Status status;
    {
      const Killer killer(weightd_.process().pid(), &progress, 1 + worker.random() % 200);
      while (status.ok()) {
        status = worker.Step();
        progress.fetch_add(1);
        progress.notify_all();
        if ((*client)->connected() == false) {
          status = absl::UnavailableError("weightd has died");
        }
      }
      progress.store(~uint64_t{0});
      progress.notify_all();
    }
    ASSERT_TRUE(absl::IsUnavailable(status)) << status << ", round " << round;
    ASSERT_FALSE((*client)->connected());
    worker.ExpectHeldRight();
    worker.ReleaseAll();
    EXPECT_TRUE(absl::IsUnavailable((*client)->Submit(ExtentRequest(1, 0))));
    weightd_.Kill();
    weightd_.Start();
    const absl::Time deadline = SteadyNow() + kPatience;
    do {
      status = (*client)->Reconnect(deadline);
    } while (absl::IsUnavailable(status) && SteadyNow() < deadline);
    ASSERT_TRUE(status.ok()) << status << "\n" << weightd_.log();
  }
  EXPECT_EQ((*client)->counters().reconnects, 50u);
  EXPECT_EQ((*client)->counters().held_leases, 0u);
  EXPECT_EQ((*client)->counters().outstanding, 0u);
}

TEST_F(KillTest, KilledClientsGiveBackTheirPinsAndTheirReserve) {
  weightd_.Start();
  auto client = ConnectTo(weightd_.socket(), pack_.dir());
  ASSERT_TRUE(client.ok()) << client.status() << weightd_.log();
  Worker worker(client->get(), &pack_, 2);
  for (int round = 0; round < 30; ++round) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    {
      ChildProcess child({"/proc/self/exe", kClientFlag, weightd_.socket(), pack_.dir(),
                          std::to_string(round), std::to_string(write_end.get())},
                         folder_.File("clients.log"), write_end.get());
      write_end.reset();
      ASSERT_TRUE(AwaitByte(read_end.get(), client->get())) << "the client did not get to work";
      EXPECT_EQ(Stats().sessions_size(), 2);
      for (uint64_t i = worker.random() % 20; i > 0; --i) {
        const absl::Status status = worker.Step();
        ASSERT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
      }
      worker.ReleaseAll();
    }  // killed
    const absl::Time deadline = SteadyNow() + kPatience;
    while (Stats().sessions_size() > 1 && SteadyNow() < deadline) {
      (*client)->Poll([](const inferd::FetchCompletion&) {});
    }
    const v1::GetStatsResponse stats = Stats();
    ASSERT_EQ(stats.sessions_size(), 1);
    EXPECT_EQ(stats.sessions(0).held_extents(), 0u);
    EXPECT_LE(stats.segment_bytes(), SmallBudget());
  }
  for (int i = 0; i < 500; ++i) {  // no memory held by a dead client is missing
    const absl::Status status = worker.Step();
    ASSERT_TRUE(status.ok()) << status;
  }
  worker.ReleaseAll();
}

TEST_F(KillTest, RestartedClientFindsTheWeightsInMemory) {
  WeightdProcess roomy(folder_.path(), {pack_.dir()}, 64 << 20);
  roomy.Start();
  {
    auto client = ConnectTo(roomy.socket(), pack_.dir());
    ASSERT_TRUE(client.ok()) << client.status() << roomy.log();
    for (uint32_t extent = 0; extent < pack_.pack().extent_count(); ++extent) {
      inferd::ExtentLease lease;
      ASSERT_TRUE(FetchAndLease(client->get(), extent + 1, extent, &lease).ok());
      (*client)->Release(extent, 1);
    }
  }
  const uint64_t bytes_read = Stats().bytes_read();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  for (int round = 0; round < 5; ++round) {
    ChildProcess child({"/proc/self/exe", kClientFlag, roomy.socket(), pack_.dir(), std::to_string(round),
                        std::to_string(write_end.get())},
                       folder_.File("clients.log"), write_end.get());
    char byte;
    ASSERT_EQ(read(read_end.get(), &byte, 1), 1);
  }
  EXPECT_EQ(Stats().bytes_read(), bytes_read);
}

}  // namespace

// A client that works until it is killed: leases, reports it by a byte, and goes on.
int RunClient(const std::string& socket, const std::string& pack, uint64_t seed, int report_fd) {
  auto client = ConnectTo(socket, pack);
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }
  Worker worker(client->get(), nullptr, seed);
  for (uint64_t i = 0; worker.Step().ok() || (*client)->connected(); ++i) {
    if (i == 10 && write(report_fd, "w", 1) != 1) {
      return 1;
    }
  }
  return 0;
}

}  // namespace sluice

int main(int argc, char** argv) {
  if (argc == 6 && std::strcmp(argv[1], sluice::kClientFlag) == 0) {
    return sluice::RunClient(argv[2], argv[3], std::strtoull(argv[4], nullptr, 10), std::atoi(argv[5]));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
