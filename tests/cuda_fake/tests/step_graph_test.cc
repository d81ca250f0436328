// Launches that are kept and handed over as graphs, with their tables: what is made, changed and launched
// again, and that a wait which is left out is found.
#include "kernels/cuda/step_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/device/row_kernels.h"
#include "kernels/cuda/tables.h"
#include "tests/cuda_fake/fake_cuda.h"

namespace sluice::cuda {
namespace {

using cuda_fake::CountersOfFake;
using cuda_fake::ResetFake;
using cuda_fake::TakeReports;

constexpr uint32_t kValues = 8192;  // of a table: half of the shortest segment
constexpr uint64_t kBytes = kValues * sizeof(float);

template <typename T>
T* Place(cudaError_t (*allocate)(void**, size_t), uint64_t count) {
  void* place = nullptr;
  EXPECT_EQ(allocate(&place, count * sizeof(T)), cudaSuccess);
  return static_cast<T*>(place);
}
cudaError_t Pinned(void** place, size_t bytes) { return cudaHostAlloc(place, bytes, cudaHostAllocDefault); }
cudaError_t OnDevice(void** place, size_t bytes) { return cudaMalloc(place, bytes); }

// y = norm(ones) * table, as many times as there are kernels in a step, and a copy of y for the host.
class Steps {
 public:
  explicit Steps(const cuda_fake::FakeOptions& options) {
    ResetFake(options);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    absl::StatusOr<std::unique_ptr<Tables>> tables =
        Tables::Create({.call = kBytes, .kept = {4 * kBytes, 4 * kBytes}}, stream_);
    EXPECT_TRUE(tables.ok()) << tables.status();
    tables_ = *std::move(tables);
    graph_ = std::make_unique<StepGraph>(stream_);
    launcher_ = Launcher(stream_);
    x_ = Place<float>(OnDevice, kValues);
    y_ = Place<float>(OnDevice, kValues);
    const std::vector<float> ones(kValues, 1.0f);
    EXPECT_EQ(cudaMemcpy(x_, ones.data(), kBytes, cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    launcher_.KeepIn(&graph_->kept());
    tables_->KeepCalls(true);
  }
  ~Steps() {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    graph_.reset();
    tables_.reset();
  }

  // A kernel whose table has `value` everywhere.
  void Multiply(float value, uint32_t rows = 1, Tables::Change change = Tables::Change::kByStep) {
    ASSERT_TRUE(tables_->Begin(kBytes, change).ok());
    PrepareLaunch launch;
    float* const table = tables_->Take(kValues, &launch.norm.weight);
    std::fill_n(table, kValues, value);
    ASSERT_TRUE(tables_->Send().ok());
    launch.norm.on = true;
    launch.x = x_;
    launch.x_stride = launch.y_stride = kValues;
    launch.rows = rows;
    launch.cols = kValues;
    launch.y = y_;
    ASSERT_EQ(EnqueuePrepare(launch, launcher_), cudaSuccess);
  }
  // Tables that no kernel reads.
  void Skip(uint32_t tables) {
    for (uint32_t i = 0; i < tables; ++i) {
      const float* table = nullptr;
      ASSERT_TRUE(tables_->Begin(kBytes).ok());
      *tables_->Take(1, &table) = 1;
      ASSERT_TRUE(tables_->Send().ok());
    }
  }
  absl::Status HandOver() {
    const absl::Status sent = tables_->SendKept();
    return sent.ok() ? graph_->HandOver() : sent;
  }
  // One step, whose result lies in the returned memory once the stream is waited for.
  const float* Run(float value, uint32_t kernels = 1) {
    for (uint32_t k = 0; k < kernels; ++k) {
      Multiply(value, 1, k % 2 == 0 ? Tables::Change::kByStep : Tables::Change::kByWeights);
    }
    EXPECT_TRUE(HandOver().ok());
    auto* const result = Place<float>(Pinned, kValues);
    EXPECT_EQ(cudaMemcpyAsync(result, y_, kBytes, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
    return result;
  }
  void WriteResult(cudaStream_t stream) { EXPECT_EQ(cudaMemsetAsync(y_, 0, kBytes, stream), cudaSuccess); }
  cudaStream_t stream() { return stream_; }
  const StepGraph::Counters& counters() { return graph_->counters(); }

 private:
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Tables> tables_;
  std::unique_ptr<StepGraph> graph_;
  Launcher launcher_;
  float* x_ = nullptr;
  float* y_ = nullptr;
};

bool AllAre(const float* values, float value) {
  for (uint32_t i = 0; i < kValues; ++i) {
    if (std::abs(values[i] - value) > 1e-4f * value) {
      return false;
    }
  }
  return true;
}

TEST(StepGraphTest, SecondRunIsAGraphWithCurrentTables) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Steps steps({.seed = seed});
    std::vector<const float*> results;
    for (uint32_t step = 0; step < 20; ++step) {
      results.push_back(steps.Run(static_cast<float>(step + 1), 3));
    }
    ASSERT_EQ(cudaStreamSynchronize(steps.stream()), cudaSuccess);
    for (uint32_t step = 0; step < 20; ++step) {
      EXPECT_TRUE(AllAre(results[step], static_cast<float>(step + 1)))
          << "step " << step << ", seed " << seed;
    }
    EXPECT_EQ(steps.counters().launches, 19u);
    EXPECT_EQ(steps.counters().made, 1u);
    EXPECT_EQ(steps.counters().updated, 0u);
    EXPECT_EQ(CountersOfFake().graph_launches, 19u);
    EXPECT_EQ(CountersOfFake().launches, 60u);
    EXPECT_TRUE(TakeReports().empty()) << "seed " << seed;
  }
}

TEST(StepGraphTest, TablesThatAreAsTheyWereAreNotSent) {
  Steps steps({});
  steps.Run(1, 2);
  EXPECT_EQ(cudaStreamSynchronize(steps.stream()), cudaSuccess);
  const cuda_fake::FakeCounters before = CountersOfFake();
  const float* const same = steps.Run(1, 2);
  EXPECT_EQ(CountersOfFake().copies - before.copies, 1u) << "the result alone";
  const float* const others = steps.Run(2, 2);
  EXPECT_EQ(CountersOfFake().copies - before.copies, 4u) << "one for each region, and the result";
  EXPECT_EQ(CountersOfFake().copied_bytes - before.copied_bytes, 4 * kBytes);
  ASSERT_EQ(cudaStreamSynchronize(steps.stream()), cudaSuccess);
  EXPECT_TRUE(AllAre(same, 1));
  EXPECT_TRUE(AllAre(others, 2));
  EXPECT_TRUE(TakeReports().empty());
}

// With more kinds the oldest kind's graph is dropped, because it cannot be changed to another number of
// kernels.
TEST(StepGraphTest, KindsThatTakeTurnsKeepTheirGraphs) {
  Steps steps({.seed = 3});
  std::vector<const float*> results;
  for (uint32_t step = 0; step < 12; ++step) {
    results.push_back(steps.Run(static_cast<float>(step), 1 + step % 2));
  }
  EXPECT_EQ(steps.counters().made, 2u);
  EXPECT_EQ(steps.counters().updated, 0u);
  EXPECT_EQ(steps.counters().launches, 10u);
  for (uint32_t kernels = 3; kernels <= 6; ++kernels) {
    for (uint32_t step = 0; step < 3; ++step) {
      results.push_back(steps.Run(static_cast<float>(results.size()), kernels));
    }
  }
  EXPECT_EQ(steps.counters().made, 6u) << "other numbers of kernels";
  EXPECT_EQ(steps.counters().updated, 0u);
  ASSERT_EQ(cudaStreamSynchronize(steps.stream()), cudaSuccess);
  for (size_t step = 0; step < results.size(); ++step) {
    EXPECT_TRUE(AllAre(results[step], static_cast<float>(step))) << "step " << step;
  }
  EXPECT_TRUE(TakeReports().empty());
}

// Tables at other places: another argument, and the same shape.
TEST(StepGraphTest, OldestGraphIsChangedIntoTheNewestKinds) {
  Steps steps({.seed = 4});
  std::vector<const float*> results;
  for (uint32_t kind = 0; kind < 6; ++kind) {
    for (uint32_t step = 0; step < 3; ++step) {
      steps.Skip(kind);
      results.push_back(steps.Run(static_cast<float>(results.size())));
    }
  }
  EXPECT_EQ(steps.counters().made, 4u);
  EXPECT_EQ(steps.counters().updated, 2u);
  EXPECT_EQ(steps.counters().launches, 12u);
  ASSERT_EQ(cudaStreamSynchronize(steps.stream()), cudaSuccess);
  for (size_t step = 0; step < results.size(); ++step) {
    EXPECT_TRUE(AllAre(results[step], static_cast<float>(step))) << "step " << step;
  }
  EXPECT_TRUE(TakeReports().empty());
}

TEST(StepGraphTest, WithoutMemoryForGraphsLaunchesGoByThemselves) {
  Steps steps({.seed = 2, .most_graphs = 0});
  std::vector<const float*> results;
  for (uint32_t step = 0; step < 5; ++step) {
    results.push_back(steps.Run(static_cast<float>(step), 2));
  }
  ASSERT_EQ(cudaStreamSynchronize(steps.stream()), cudaSuccess);
  for (uint32_t step = 0; step < 5; ++step) {
    EXPECT_TRUE(AllAre(results[step], static_cast<float>(step))) << "step " << step;
  }
  EXPECT_EQ(steps.counters().launches, 0u);
  EXPECT_EQ(CountersOfFake().launches, 10u);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_TRUE(TakeReports().empty());
}

// CUDA's error of a kept launch is returned by the hand-over, and the next error belongs to another launch.
TEST(StepGraphTest, AnErrorOfAKeptLaunchComesWithTheHandOver) {
  Steps steps({});
  steps.Multiply(1, 0);
  const absl::Status status = steps.HandOver();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  const float* const result = steps.Run(2);
  ASSERT_EQ(cudaStreamSynchronize(steps.stream()), cudaSuccess);
  EXPECT_TRUE(AllAre(result, 2));
  EXPECT_TRUE(TakeReports().empty());
}

// The waits for the ring that tables go through, left out one at a time: the host writes over what a copy
// before an unfinished graph has yet to take, in every seed.
TEST(StepGraphTest, OverwrittenGraphTablesAreFoundInEverySeed) {
  struct Result {
    uint64_t before = 0;  // waits before the steps
    uint64_t waits = 0;   // of the steps
    bool found = false;
  };
  const auto run = [](uint64_t seed, uint64_t drop_wait) {
    Steps steps({.seed = seed, .drop_wait = drop_wait});
    Result result;
    result.before = CountersOfFake().waits;
    for (uint32_t step = 0; step < 16; ++step) {
      steps.Run(static_cast<float>(step + 1));
    }
    result.waits = CountersOfFake().waits - result.before;
    EXPECT_EQ(cudaStreamSynchronize(steps.stream()), cudaSuccess);
    result.found = !TakeReports().empty();
    return result;
  };
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const Result whole = run(seed, 0);
    EXPECT_FALSE(whole.found) << "seed " << seed;
    EXPECT_GE(whole.waits, 3u) << "segments are used again";
    for (uint64_t number = whole.before + 1; number <= whole.before + whole.waits; ++number) {
      EXPECT_TRUE(run(seed, number).found) << "seed " << seed << ", wait " << number;
    }
  }
}

// A graph's kernel is an operation like any other: another stream that writes what it reads is found.
TEST(StepGraphTest, WriterBesideRelaunchedGraphIsFound) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Steps steps({.seed = seed});
    cudaStream_t other = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    for (uint32_t step = 0; step < 3; ++step) {
      steps.Run(1);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(TakeReports().empty());
    steps.Multiply(2);
    ASSERT_TRUE(steps.HandOver().ok());
    EXPECT_EQ(steps.counters().launches, 3u);
    steps.WriteResult(other);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<cuda_fake::Report> reports = TakeReports();
    ASSERT_FALSE(reports.empty()) << "seed " << seed;
    EXPECT_EQ(reports[0].finding, cuda_fake::Finding::kUnordered) << reports[0].text;
  }
}

// Padding between members holds whatever was in memory before.
TEST(StepGraphTest, BytesBetweenMembersMakeNoDifference) {
  const auto list_of = [](int fill, uint32_t cols) {
    alignas(PrepareLaunch) unsigned char place[sizeof(PrepareLaunch)];
    std::memset(place, fill, sizeof(place));
    auto* const launch = reinterpret_cast<PrepareLaunch*>(place);
    launch->x = nullptr;
    launch->x_stride = launch->x_head_stride = launch->y_stride = 64;
    launch->ids = nullptr;
    launch->heads = launch->rows = launch->group = 1;
    launch->cols = cols;
    launch->norm.on = true;
    launch->norm.kind = NormKind::kRms;
    launch->norm.weight = launch->norm.bias = nullptr;
    launch->norm.epsilon = 1;
    launch->y = nullptr;
    launch->rounded = nullptr;
    const KernelCall::Argument argument = {launch, sizeof(*launch), EqualValues<PrepareLaunch>};
    LaunchList list;
    list.Add({nullptr, 1, 1, 0, &argument, 1});
    return list;
  };
  EXPECT_TRUE(list_of(0, 64) == list_of(0xff, 64));
  EXPECT_FALSE(list_of(0, 64) == list_of(0, 65));
}

}  // namespace
}  // namespace sluice::cuda
