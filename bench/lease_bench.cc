// Cost of leases on resident extents, visited at random over tables larger than the L2 cache, relative to an
// uncontended `lock xadd` in the same run. Target: lease p50 <= 8 x xadd. Measured over tables of twice the
// L2 cache each, and over 1.5 million extents (a pack of 400 GB); both in sealed memory files on huge pages,
// as weightd makes them.
//
// Workloads: `xadd` one private line; `lease` TryLease alone; `release` ReleaseLease alone; `pair` both in
// turn, as a client does; `expert` the three extents of one expert leased together, per lease.
//
// Then the same under contention: four sessions lease at once, each with its own pins, while weightd evicts
// and fills (TryEvict over all sessions' pins, as Store::Evict does); `busy` is a lease of one session
// meanwhile, `busy xadd` the same threads' xadd on private lines. Their ratio is the cost of eviction and
// sharing.
//
// Thread safety: the first part runs on one thread; in the second each session has a thread, and weightd one.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/results.h"
#include "common/protocol/lease.h"
#include "common/protocol/shared_memory.h"
#include "weightd/store/prefaulter.h"

namespace sluice {
namespace {

constexpr uint32_t kManyExtents = 3u << 19;
constexpr int kBatch = 64;  // operations between two reads of the clock
constexpr int kBatches = 20000;

double NowNanos() { return static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count()); }

struct Result {
  double p50;
  double p99;
};

Result Summarize(std::vector<double>* samples) {
  std::sort(samples->begin(), samples->end());
  return {(*samples)[samples->size() / 2], (*samples)[samples->size() * 99 / 100]};
}

class Bench {
 public:
  Bench(uint32_t extents, SharedMemory states, SharedMemory pins)
      : states_(std::move(states)), pin_memory_(std::move(pins)), order_(extents) {
    weightd::Populate(states_.map.data(), states_.map.bytes());
    weightd::Populate(pin_memory_.map.data(), pin_memory_.map.bytes());
    table_ = reinterpret_cast<ResidencyEntry*>(states_.map.data());
    pins_ = reinterpret_cast<PinEntry*>(pin_memory_.map.data());
    for (uint32_t i = 0; i < extents; ++i) {
      PublishResident(table_[i], 1, 0, 1);
    }
    std::iota(order_.begin(), order_.end(), 0u);
    std::shuffle(order_.begin(), order_.end(), std::mt19937_64(1));
  }

  Result Xadd() {
    alignas(64) std::atomic<uint64_t> word{0};
    return Run([&word](uint32_t) { word.fetch_add(1); }, [](uint32_t) {});
  }
  Result Lease() {
    return Run([this](uint32_t extent) { Take(extent); }, [this](uint32_t extent) { Give(extent); });
  }
  Result Release() {
    return Run([this](uint32_t extent) { Give(extent); }, [](uint32_t) {},
               [this](uint32_t extent) { Take(extent); });
  }
  Result Pair() {
    return Run(
        [this](uint32_t extent) {
          Take(extent);
          Give(extent);
        },
        [](uint32_t) {});
  }
  Result Expert() {
    Result result = Run(
        [this](uint32_t extent) {
          const uint32_t first = extent / 3 * 3;
          Take(first);
          Take(first + 1);
          Take(first + 2);
        },
        [this](uint32_t extent) {
          const uint32_t first = extent / 3 * 3;
          Give(first);
          Give(first + 1);
          Give(first + 2);
        });
    return {result.p50 / 3, result.p99 / 3};
  }

 private:
  void Take(uint32_t extent) {
    uint64_t place;
    uint64_t generation;
    if (TryLease(table_[extent], pins_[extent], &place, &generation)) {
      checksum_ += place;
    }
  }
  void Give(uint32_t extent) { ReleaseLease(pins_[extent], last_stamp_, ++stamp_); }

  template <typename Timed, typename After>
  Result Run(Timed timed, After after) {
    return Run(timed, after, [](uint32_t) {});
  }
  template <typename Timed, typename After, typename Before>
  Result Run(Timed timed, After after, Before before) {
    std::vector<double> samples;
    size_t next = 0;
    for (int batch = 0; batch < kBatches; ++batch) {
      const uint32_t* extents = &order_[next];
      next = next + 2 * kBatch > order_.size() ? 0 : next + kBatch;
      for (int i = 0; i < kBatch; ++i) before(extents[i]);
      const double start = NowNanos();
      for (int i = 0; i < kBatch; ++i) timed(extents[i]);
      samples.push_back((NowNanos() - start) / kBatch);
      for (int i = 0; i < kBatch; ++i) after(extents[i]);
    }
    return Summarize(&samples);
  }

  SharedMemory states_;
  SharedMemory pin_memory_;
  ResidencyEntry* table_ = nullptr;
  PinEntry* pins_ = nullptr;
  std::vector<uint32_t> order_;
  std::atomic<uint64_t> last_stamp_{0};
  uint64_t stamp_ = 0;
  uint64_t checksum_ = 0;
};

// Four sessions and a weightd that evicts, on one residency table.
class BusyBench {
 public:
  static constexpr int kSessions = 4;
  BusyBench(uint32_t extents, SharedMemory states, std::vector<SharedMemory> pins)
      : extents_(extents), states_(std::move(states)), pin_memory_(std::move(pins)) {
    weightd::Populate(states_.map.data(), states_.map.bytes());
    table_ = reinterpret_cast<ResidencyEntry*>(states_.map.data());
    for (SharedMemory& memory : pin_memory_) {
      weightd::Populate(memory.map.data(), memory.map.bytes());
      pins_.push_back(reinterpret_cast<PinEntry*>(memory.map.data()));
    }
    for (uint32_t i = 0; i < extents; ++i) {
      PublishResident(table_[i], 1, 0, 1);
    }
  }

  // Measures p50 and p99 of a lease and of an xadd, in nanoseconds, over all sessions' batches.
  void Run(Result* lease, Result* xadd) {
    stop_.store(false);
    std::thread weightd([this] { Evict(); });
    std::vector<std::vector<double>> leases(kSessions);
    std::vector<std::vector<double>> xadds(kSessions);
    std::vector<std::thread> sessions;
    for (int s = 0; s < kSessions; ++s) {
      sessions.emplace_back([&, s] { Lease(s, &leases[s], &xadds[s]); });
    }
    for (std::thread& session : sessions) session.join();
    stop_.store(true);
    weightd.join();
    for (int s = 1; s < kSessions; ++s) {
      leases[0].insert(leases[0].end(), leases[s].begin(), leases[s].end());
      xadds[0].insert(xadds[0].end(), xadds[s].begin(), xadds[s].end());
    }
    *lease = Summarize(&leases[0]);
    *xadd = Summarize(&xadds[0]);
  }
  uint64_t evictions() const { return evictions_.load(); }
  uint64_t misses() const { return misses_.load(); }
  uint64_t leases() const { return uint64_t{kSessions} * kBusyBatches * kBatch; }

 private:
  static constexpr int kBusyBatches = 8000;

  void Lease(int session, std::vector<double>* leases, std::vector<double>* xadds) {
    std::mt19937_64 random(static_cast<uint64_t>(session));
    alignas(64) std::atomic<uint64_t> stamp_word{0};
    alignas(64) std::atomic<uint64_t> word{0};
    PinEntry* pins = pins_[static_cast<size_t>(session)];
    uint32_t chosen[kBatch];
    uint32_t leased[kBatch];
    uint64_t stamp = 0;
    uint64_t missed = 0;
    for (int batch = 0; batch < kBusyBatches; ++batch) {
      for (uint32_t& extent : chosen) extent = static_cast<uint32_t>(random() % extents_);
      size_t count = 0;
      double start = NowNanos();
      for (const uint32_t extent : chosen) {
        uint64_t place;
        uint64_t generation;
        const bool held = TryLease(table_[extent], pins[extent], &place, &generation);
        leased[count] = extent;
        count += held ? 1 : 0;
      }
      leases->push_back((NowNanos() - start) / kBatch);
      missed += kBatch - count;
      for (size_t i = 0; i < count; ++i) ReleaseLease(pins[leased[i]], stamp_word, ++stamp);
      start = NowNanos();
      for (int i = 0; i < kBatch; ++i) word.fetch_add(1);
      xadds->push_back((NowNanos() - start) / kBatch);
    }
    misses_.fetch_add(missed);
  }
  void Evict() {
    std::mt19937_64 random(99);
    uint64_t generation = 1;
    while (!stop_.load(std::memory_order_relaxed)) {
      const auto extent = static_cast<uint32_t>(random() % extents_);
      const bool gone = TryEvict(table_[extent], [&] {
        return std::any_of(pins_.begin(), pins_.end(),
                           [extent](PinEntry* pins) { return PinsHeld(pins[extent]); });
      });
      if (gone) {
        PublishResident(table_[extent], 1, 0, ++generation);
        evictions_.fetch_add(1, std::memory_order_relaxed);
      }
    }
  }

  const uint32_t extents_;
  SharedMemory states_;
  std::vector<SharedMemory> pin_memory_;
  ResidencyEntry* table_ = nullptr;
  std::vector<PinEntry*> pins_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> evictions_{0};
  std::atomic<uint64_t> misses_{0};
};

int MeasureBusy(uint32_t extents, bench::Results* results) {
  auto states = CreateSharedMemory("bench-states", extents * sizeof(ResidencyEntry), PeerAccess::kReadOnly);
  std::vector<SharedMemory> pins;
  for (int s = 0; states.ok() && s < BusyBench::kSessions; ++s) {
    auto one = CreateSharedMemory("bench-pins", extents * sizeof(PinEntry), PeerAccess::kReadWrite);
    if (one.ok()) pins.push_back(*std::move(one));
  }
  if (pins.size() != BusyBench::kSessions) {
    std::fprintf(stderr, "no memory for %u extents and four sessions\n", extents);
    return 1;
  }
  BusyBench bench(extents, *std::move(states), std::move(pins));
  std::vector<double> ratios;
  Result lease{};
  Result xadd{};
  for (int round = 0; round < 5; ++round) {
    bench.Run(&lease, &xadd);
    ratios.push_back(lease.p50 / xadd.p50);
  }
  std::printf("%u extents, four sessions leasing, weightd evicting and filling beside them (%u CPUs)\n",
              extents, std::thread::hardware_concurrency());
  std::printf("%-10s %10.1f %10.1f %12.2f  (median of 5 rounds)\n", "busy", lease.p50, lease.p99,
              Summarize(&ratios).p50);
  std::printf("%-10s %10.1f %10.1f\n", "busy xadd", xadd.p50, xadd.p99);
  std::printf("%llu evictions beside %llu leases, of which %llu found the extent gone\n",
              static_cast<unsigned long long>(bench.evictions()),
              static_cast<unsigned long long>(5 * bench.leases()),
              static_cast<unsigned long long>(bench.misses()));
  results->Add(absl::StrCat("lease, ", extents, " extents, four sessions, weightd busy, p50"),
               Summarize(&ratios).p50, "x an uncontended xadd");
  return 0;
}

int Measure(uint32_t extents, bench::Results* results) {
  auto states = CreateSharedMemory("bench-states", extents * sizeof(ResidencyEntry), PeerAccess::kReadOnly);
  auto pins = CreateSharedMemory("bench-pins", extents * sizeof(PinEntry), PeerAccess::kReadWrite);
  if (!states.ok() || !pins.ok()) {
    std::fprintf(stderr, "no memory for %u extents\n", extents);
    return 1;
  }
  Bench bench(extents, *std::move(states), *std::move(pins));
  constexpr int kRounds = 5;  // rounds are interleaved and their median counts, because the machine is shared
  struct Row {
    const char* name;
    Result (Bench::*run)();
    std::vector<double> p50;
    std::vector<double> p99;
  };
  std::vector<Row> rows = {{"xadd", &Bench::Xadd, {}, {}},
                           {"lease", &Bench::Lease, {}, {}},
                           {"release", &Bench::Release, {}, {}},
                           {"pair", &Bench::Pair, {}, {}},
                           {"expert", &Bench::Expert, {}, {}}};
  for (int round = 0; round < kRounds; ++round) {
    for (Row& row : rows) {
      const Result result = (bench.*row.run)();
      row.p50.push_back(result.p50);
      row.p99.push_back(result.p99);
    }
  }
  std::printf("%u extents, %.0f MiB of states, %.0f MiB of pins\n", extents,
              extents * sizeof(ResidencyEntry) / 1048576.0, extents * sizeof(PinEntry) / 1048576.0);
  std::printf("%-10s %10s %10s %12s\n", "operation", "p50 ns", "p99 ns", "p50 / xadd");
  double xadd = 0;
  for (Row& row : rows) {
    const double p50 = Summarize(&row.p50).p50;
    const double p99 = Summarize(&row.p99).p50;
    xadd = xadd == 0 ? p50 : xadd;
    std::printf("%-10s %10.1f %10.1f %12.2f\n", row.name, p50, p99, p50 / xadd);
    results->Add(absl::StrCat(row.name, ", ", extents, " extents, p50"), p50 / xadd, "x an uncontended xadd");
  }
  return 0;
}

// Returns the number of extents for which each table is twice the L2 cache, in whole experts.
uint32_t ExtentsPastL2() {
  const long l2 = std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 1L << 20);
  return static_cast<uint32_t>(2 * l2 / static_cast<long>(sizeof(ResidencyEntry)) / 3 * 3);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::bench::Results results("lease_bench", &argc, argv);
  const int code = sluice::Measure(sluice::ExtentsPastL2(), &results) |
                   sluice::Measure(sluice::kManyExtents, &results) |
                   sluice::MeasureBusy(sluice::kManyExtents, &results);
  return code == 0 && results.Write(std::thread::hardware_concurrency()) ? 0 : 1;
}
