// inferd's session with a weightd process: cost of a resident extent by lease and by ring request, relative
// to a unary RPC on the same socket and to the raw round trip of the ring's wake. Rounds are interleaved and
// their median counts.
//
// Workloads: `raw wake` a byte written and read; `request` from Submit to Poll for one resident extent;
// `unary RPC` GetStats; `lease` TryLease and Release of extents at random, per pair; `xadd` an uncontended
// lock xadd over a table of the same size, per operation.
//
// Thread safety: runs on the main thread; weightd is a separate process.
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "bench/round_trips.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "grpcpp/create_channel.h"
#include "inferd/session/session_weight_client.h"
#include "pack/writer/pack_writer.h"
#include "sluice/weights/v1/weights.grpc.pb.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/weight_client_calls.h"
#include "tests/support/weightd_process.h"

namespace sluice {
namespace v1 = ::sluice::weights::v1;
namespace {

constexpr int kRounds = 15;
constexpr int kLeasesPerTrip = 1000;
constexpr absl::Duration kPatience = absl::Seconds(30);

absl::StatusOr<std::unique_ptr<inferd::SessionWeightClient>> Start(const TempDir& folder,
                                                                   WeightdProcess* weightd) {
  TinyModelSpec spec;
  spec.hidden = 32;
  spec.layers = 8;
  spec.experts = 64;
  spec.width = 32;
  RETURN_IF_ERROR(WriteTinyModel(spec, folder.File("model")));
  RETURN_IF_ERROR(PackModel(folder.File("model"), folder.File("pack"), {}, {}, nullptr).status());
  weightd->Start();
  inferd::SessionWeightClientOptions options;
  options.socket = weightd->socket();
  options.pack_dir = folder.File("pack");
  ASSIGN_OR_RETURN(auto client, inferd::SessionWeightClient::Connect(options, SteadyNow() + kPatience));
  for (uint32_t extent = 0; extent < client->pack().extent_count(); ++extent) {
    inferd::ExtentLease lease;
    RETURN_IF_ERROR(FetchAndLease(client.get(), extent + 1, extent, &lease));
    client->Release(extent, 1);
  }
  return client;
}

int Main() {
  const TempDir folder;
  WeightdProcess weightd(folder.path(), {folder.File("pack")}, 256 << 20);
  const auto started = Start(folder, &weightd);
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n%s", started.status().ToString().c_str(), weightd.log().c_str());
    return 1;
  }
  inferd::SessionWeightClient& client = **started;
  const auto stub = v1::WeightService::NewStub(
      grpc::CreateChannel("unix:" + weightd.socket(), grpc::InsecureChannelCredentials()));
  std::mt19937 random(1);
  const uint32_t extents = client.pack().extent_count();
  std::vector<uint32_t> order(kLeasesPerTrip);
  std::vector<uint64_t> table(2 * extents);
  uint64_t id = 1'000'000;
  RawWake raw;
  const auto request = [&] {
    ++id;
    if (!client.Submit(ExtentRequest(id, random() % extents)).ok()) return false;
    size_t done = 0;
    while ((done = client.Poll([](const inferd::FetchCompletion&) {})) == 0) {
      if (!client.Wait(absl::InfiniteFuture()).ok()) return false;
    }
    return done == 1;
  };
  const auto rpc = [&] {
    grpc::ClientContext context;
    v1::GetStatsResponse response;
    return stub->GetStats(&context, v1::GetStatsRequest(), &response).ok();
  };
  const auto shuffle = [&] {
    for (uint32_t& extent : order) extent = random() % extents;
  };
  const auto lease = [&] {
    inferd::ExtentLease held;
    bool ok = true;
    for (const uint32_t extent : order) {
      ok = client.TryLease(extent, &held) && ok;
      client.Release(extent, id);
    }
    return ok;
  };
  const auto xadd = [&] {
    for (const uint32_t extent : order) __atomic_fetch_add(&table[2 * extent], 1, __ATOMIC_SEQ_CST);
    return true;
  };
  std::vector<Row> rows = {{"raw wake", {}, {}},
                           {"request", {}, {}},
                           {"unary RPC", {}, {}},
                           {"lease x1000", {}, {}},
                           {"xadd x1000", {}, {}}};
  for (int round = 0; round < kRounds; ++round) {
    shuffle();
    if (!Time(&rows[0], [&] { return raw.Trip(); }) || !Time(&rows[1], request) ||
        !Time(&rows[2], rpc, 500) || !Time(&rows[3], lease, 200) || !Time(&rows[4], xadd, 200)) {
      std::fprintf(stderr, "a round trip failed\n");
      return 1;
    }
  }
  const double base = Quantile(rows[0].p50, 0.5);
  std::printf("%-12s %10s %10s %16s\n", "round trip", "p50 us", "p99 us", "over raw, us");
  for (const Row& row : rows) {
    const double p50 = Quantile(row.p50, 0.5);
    std::printf("%-12s %10.2f %10.2f %16.2f\n", row.name, p50, Quantile(row.p99, 0.5), p50 - base);
  }
  std::printf("request over unary RPC: %.2f; lease over xadd: %.1f\n",
              Quantile(rows[1].p50, 0.5) / Quantile(rows[2].p50, 0.5),
              Quantile(rows[3].p50, 0.5) / Quantile(rows[4].p50, 0.5));
  return 0;
}

}  // namespace
}  // namespace sluice

int main() { return sluice::Main(); }
