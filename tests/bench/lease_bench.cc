// Leases on resident extents, visited at random over tables larger than the L2 cache, beside an uncontended
// `lock xadd` of the same run. Target: lease p50 <= 8 x xadd. Once over tables of twice the L2 cache each,
// once over 1.5 million extents (a pack of 400 GB); both in sealed memory files on huge pages, as weightd
// makes them.
//
// Workloads: `xadd` one private line; `lease` TryLease alone; `release` ReleaseLease alone; `pair` both in
// turn, as one client does; `expert` the three extents of one expert leased together, per lease.
//
// Thread safety: one thread.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "common/ring/lease.h"
#include "common/ring/shared_memory.h"
#include "weightd/prefaulter.h"

namespace sluice {
namespace {

constexpr uint32_t kManyExtents = 3u << 19;
constexpr int kBatch = 64;  // operations between two looks at the clock
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
    Populate(states_.map.data(), states_.map.bytes());
    Populate(pin_memory_.map.data(), pin_memory_.map.bytes());
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

int Measure(uint32_t extents) {
  auto states = CreateSharedMemory("bench-states", extents * sizeof(ResidencyEntry), PeerAccess::kReadOnly);
  auto pins = CreateSharedMemory("bench-pins", extents * sizeof(PinEntry), PeerAccess::kReadWrite);
  if (!states.ok() || !pins.ok()) {
    std::fprintf(stderr, "no memory for %u extents\n", extents);
    return 1;
  }
  Bench bench(extents, *std::move(states), *std::move(pins));
  constexpr int kRounds = 5;  // interleaved, the median round counts: the machine is shared
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
  }
  return 0;
}

// Each table twice the L2 cache, in whole experts.
uint32_t ExtentsPastL2() {
  const long l2 = std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 1L << 20);
  return static_cast<uint32_t>(2 * l2 / static_cast<long>(sizeof(ResidencyEntry)) / 3 * 3);
}

}  // namespace
}  // namespace sluice

int main() { return sluice::Measure(sluice::ExtentsPastL2()) | sluice::Measure(sluice::kManyExtents); }
