// A ring request for a resident extent, beside the raw round trip of the same wake: client thread writes an
// eventfd, server thread wakes from epoll and writes a byte to a pipe, client thread wakes from poll. Rounds
// are interleaved and the median of rounds counts. Target: p50 of the request <= p50 of the raw wake + 2 us.
//
// Workloads: `raw` the wake alone; `nop` a request that does nothing; `fill extent`, `fill expert` requests
// for one and for three resident extents.
//
// Thread safety: the client's side runs on the main thread.
#include <cstdio>
#include <memory>
#include <vector>

#include "bench/round_trips.h"
#include "tests/support/fakes/fake_block_reader.h"
#include "tests/support/local_client.h"
#include "weightd/engine/weight_store.h"

namespace sluice {
namespace {

constexpr int kRounds = 15;

int Main() {
  weightd::WeightStoreOptions options;
  options.dram_budget = 64 * 1024 * 1024;
  options.attach_timeout_ms = 0;
  auto store = weightd::WeightStore::Create(
      options, std::make_unique<FakeBlockReader>(FakeBlockReader::Mode::kImmediate));
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 1;
  }
  weightd::SessionParams params;
  params.packs = {*(*store)->AddSource(std::make_unique<FakeExtentSource>(FakeExtentSource::Shape{}))};
  LocalClient client(*(*store)->Look(&weightd::StoreCore::Local,
                                     (*store)->Control(&weightd::StoreCore::OpenSession, params)->session));
  uint64_t id = 0;
  const auto request = [&client, &id](SubmissionEntry entry) {
    entry.id = ++id;
    CompletionEntry done;
    const bool ok = client.Submit(entry) == RingResult::kOk && client.Await(&done) && done.code == 0;
    client.Reap();
    return ok;
  };
  if (!request(LocalClient::FillExpert(0, 0, 0))) {
    return 1;
  }
  const uint32_t extent = 0;
  RawWake raw;
  std::vector<Row> rows = {
      {"raw wake", {}, {}}, {"nop", {}, {}}, {"fill extent", {}, {}}, {"fill expert", {}, {}}};
  for (int round = 0; round < kRounds; ++round) {
    const bool ok = Time(&rows[0], [&] { return raw.Trip(); }) &&
                    Time(&rows[1], [&] { return request(LocalClient::Plain(0, Opcode::kNop)); }) &&
                    Time(&rows[2], [&] { return request(LocalClient::FillExtent(0, extent)); }) &&
                    Time(&rows[3], [&] { return request(LocalClient::FillExpert(0, 0, 0)); });
    if (!ok) {
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
  return 0;
}

}  // namespace
}  // namespace sluice

int main() { return sluice::Main(); }
