// Effect of one session's prefetch flood on another session's demands: latency of a demand alone and during
// the flood, on a real file with O_DIRECT, in turns within one run. Target: p99 with the flood / p99 alone <
// 2.
//
// Workloads: the demand requests one expert at random (three parts of 1 MiB) and waits for it, with a pause
// as long as a small step between two requests; the flood keeps 64 prefetches of other experts queued. The
// memory holds an eighth of the file, so nearly everything is read.
//
// usage: share_bench [FOLDER] [uring|pread]: the file of 768 MiB is written to FOLDER (default /var/tmp).
//
// Thread safety: each session has a thread; the store has its own.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/results.h"
#include "tests/support/fakes/fake_extent_source.h"
#include "tests/support/local_client.h"
#include "weightd/engine/weight_store.h"

namespace sluice {
namespace {

constexpr uint64_t kMiB = 1024 * 1024;
constexpr uint32_t kLayers = 32;
constexpr uint32_t kExperts = 8;
constexpr int kRounds = 6;
constexpr int kDemands = 60;  // per round, half of them alone
constexpr auto kPause = std::chrono::milliseconds(2);

double NowMicros() {
  return static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count()) / 1000;
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

bool WriteFile(const FakeExtentSource& source) {
  const int fd = open(source.file_path(0).c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  std::vector<std::byte> bytes(kMiB);
  bool ok = fd >= 0;
  for (uint64_t at = 0; ok && at < source.file_bytes(); at += kMiB) {
    FakeExtentSource::FillBytes(at, bytes);
    ok = write(fd, bytes.data(), kMiB) == static_cast<ssize_t>(kMiB);
  }
  ok = ok && fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0;
  close(fd);
  return ok;
}

// Keeps 64 prefetches of random experts of the upper half queued while `on`.
void Flood(LocalClient* client, const std::atomic<bool>* on, const std::atomic<bool>* stop) {
  std::mt19937_64 random(2);
  uint64_t id = 0;
  uint64_t outstanding = 0;
  CompletionEntry done;
  while (!stop->load()) {
    while (on->load() && outstanding < 64) {
      SubmissionEntry entry = LocalClient::FillExpert(
          ++id, kLayers / 2 + static_cast<uint32_t>(random() % (kLayers / 2)), random() % kExperts);
      entry.request_class = RequestClass::kPrefetch;
      client->Submit(entry);
      ++outstanding;
    }
    if (outstanding != 0 && client->Await(&done, 100)) {
      client->Reap();
      --outstanding;
    } else if (outstanding == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

struct Latencies {
  std::vector<double> alone;
  std::vector<double> beside;
};

bool Demands(LocalClient* client, std::atomic<bool>* flood, Latencies* latencies) {
  std::mt19937_64 random(1);
  uint64_t id = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (const bool beside : {false, true}) {
      flood->store(beside);
      std::this_thread::sleep_for(std::chrono::milliseconds(150));  // the flood builds up, or ends
      for (int i = 0; i < kDemands; ++i) {
        const double start = NowMicros();
        client->Submit(LocalClient::FillExpert(++id, static_cast<uint32_t>(random() % (kLayers / 2)),
                                               static_cast<uint32_t>(random() % kExperts)));
        CompletionEntry done;
        if (!client->Await(&done) || done.code != 0) {
          std::fprintf(stderr, "a demand failed with code %d\n", done.code);
          return false;
        }
        client->Reap();
        if (done.bytes != 0) {
          (beside ? latencies->beside : latencies->alone).push_back(NowMicros() - start);
        }
        std::this_thread::sleep_for(kPause);
      }
    }
  }
  return true;
}

int Main(const std::string& folder, bool uring, bench::Results* results) {
  FakeExtentSource::Shape shape;
  shape.path = folder + "/sluice-share-bench";
  shape.layers = kLayers;
  shape.experts = kExperts;
  shape.part_bytes = kMiB;
  auto source = std::make_unique<FakeExtentSource>(shape);
  weightd::WeightStoreOptions options;
  options.dram_budget = source->file_bytes() / 8;
  options.uring = uring;
  options.attach_timeout_ms = 0;
  if (!WriteFile(*source)) {
    std::perror(shape.path.c_str());
    return 1;
  }
  auto store = weightd::WeightStore::Create(options);
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 1;
  }
  const auto pack = (*store)->AddSource(std::move(source));
  unlink(shape.path.c_str());
  if (!pack.ok()) {
    std::fprintf(stderr, "%s\n", pack.status().ToString().c_str());
    return 1;
  }
  weightd::SessionParams params;
  params.packs = {*pack};
  const auto one = (*store)->Control(&weightd::StoreCore::OpenSession, params);
  const auto two = (*store)->Control(&weightd::StoreCore::OpenSession, params);
  if (!one.ok() || !two.ok()) {
    std::fprintf(stderr, "no session\n");
    return 1;
  }
  LocalClient demand(*(*store)->Look(&weightd::StoreCore::Local, one->session));
  LocalClient prefetch(*(*store)->Look(&weightd::StoreCore::Local, two->session));
  std::atomic<bool> flood{false};
  std::atomic<bool> stop{false};
  std::thread flooding([&] { Flood(&prefetch, &flood, &stop); });
  Latencies latencies;
  const bool ok = Demands(&demand, &flood, &latencies);
  stop.store(true);
  flooding.join();
  if (!ok) {
    return 1;
  }
  const weightd::StoreStats stats = (*store)->Look(&weightd::StoreCore::Stats);
  std::printf("%s, demands of 3 MiB, %zu alone, %zu beside a flood (%llu MiB read)\n",
              stats.io_engine.c_str(), latencies.alone.size(), latencies.beside.size(),
              static_cast<unsigned long long>(stats.bytes_read / kMiB));
  std::printf("%-16s %10s %10s %10s\n", "demand, us", "p50", "p90", "p99");
  for (const auto& [name, values] :
       {std::pair("alone", latencies.alone), {"beside a flood", latencies.beside}}) {
    std::printf("%-16s %10.0f %10.0f %10.0f\n", name, Quantile(values, 0.5), Quantile(values, 0.9),
                Quantile(values, 0.99));
  }
  std::printf("%-16s %10.2f %10.2f %10.2f\n", "ratio",
              Quantile(latencies.beside, 0.5) / Quantile(latencies.alone, 0.5),
              Quantile(latencies.beside, 0.9) / Quantile(latencies.alone, 0.9),
              Quantile(latencies.beside, 0.99) / Quantile(latencies.alone, 0.99));
  for (const auto& [name, q] : {std::pair("p50", 0.5), {"p99", 0.99}}) {
    results->Add(absl::StrCat("demands of 3 MiB beside a flood, ", stats.io_engine, ", ", name),
                 Quantile(latencies.beside, q) / Quantile(latencies.alone, q), "of alone");
  }
  return results->Write(std::thread::hardware_concurrency()) ? 0 : 1;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::bench::Results results("share_bench", &argc, argv);
  return sluice::Main(argc > 1 ? argv[1] : "/var/tmp", argc <= 2 || std::strcmp(argv[2], "pread") != 0,
                      &results);
}
