// Streams, events, launches and errors of the fake, by way of an object that nvcc has made.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/cuda_fake/fake_cuda.h"
#include "tests/cuda_fake/tests/vector_kernels.h"

namespace sluice::cuda_fake {
namespace {

constexpr unsigned kValues = 1000;
constexpr size_t kBytes = kValues * sizeof(float);

float* DeviceFloats(unsigned count) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, count * sizeof(float)), cudaSuccess);
  return static_cast<float*>(pointer);
}

float* PinnedFloats(unsigned count, float first) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaHostAlloc(&pointer, count * sizeof(float), cudaHostAllocDefault), cudaSuccess);
  float* const values = static_cast<float*>(pointer);
  for (unsigned i = 0; i < count; ++i) {
    values[i] = first + static_cast<float>(i);
  }
  return values;
}

bool Has(const std::vector<Report>& reports, Finding finding) {
  for (const Report& report : reports) {
    if (report.finding == finding) {
      return true;
    }
  }
  return false;
}

// a and b copied in one stream, added in another, and read back there.
struct TwoStreams {
  cudaStream_t copies;
  cudaStream_t compute;
  cudaEvent_t copied;
  float* a = DeviceFloats(kValues);
  float* b = DeviceFloats(kValues);
  float* c = DeviceFloats(kValues);
  float* host = PinnedFloats(kValues, 1);
  float* result = PinnedFloats(kValues, 0);

  TwoStreams() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming), cudaSuccess);
  }

  void Run(bool wait) {
    EXPECT_EQ(cudaMemcpyAsync(a, host, kBytes, cudaMemcpyHostToDevice, copies), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(b, host, kBytes, cudaMemcpyHostToDevice, copies), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(copied, copies), cudaSuccess);
    if (wait) {
      EXPECT_EQ(cudaStreamWaitEvent(compute, copied, 0), cudaSuccess);
    }
    EnqueueAdd(a, b, c, kValues, 0, compute);
    EXPECT_EQ(cudaMemcpyAsync(result, c, kBytes, cudaMemcpyDeviceToHost, compute), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(compute), cudaSuccess);
  }

  bool IsRight() const {
    for (unsigned i = 0; i < kValues; ++i) {
      if (result[i] != 2 * (1 + static_cast<float>(i))) {
        return false;
      }
    }
    return true;
  }
};

TEST(StreamTest, AddsOnEveryPtxInTheObject) {
  for (const int capability : {75, 80, 86, 90, 100, 120}) {
    ResetFake({.seed = 7, .capability = capability});
    TwoStreams test;
    test.Run(true);
    EXPECT_TRUE(test.IsRight()) << capability;
    EXPECT_TRUE(TakeReports().empty()) << capability;
    EXPECT_EQ(CountersOfFake().launches, 1u);
  }
}

TEST(StreamTest, CorrectWaitsAreSilentInEverySeed) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ResetFake({.seed = seed});
    TwoStreams test;
    test.Run(true);
    test.Run(true);
    EXPECT_TRUE(test.IsRight()) << seed;
    // The second round's copies overwrite what the first round's kernel has read, and the host has waited for
    // it.
    EXPECT_TRUE(TakeReports().empty()) << seed;
  }
}

TEST(StreamTest, MissingEventWaitIsFoundInEverySeed) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ResetFake({.seed = seed});
    TwoStreams test;
    test.Run(false);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(Has(TakeReports(), Finding::kUnordered)) << seed;
    wrong += test.IsRight() ? 0 : 1;
  }
  EXPECT_GT(wrong, 0);
  EXPECT_LT(wrong, 20);
}

TEST(StreamTest, AnEventWaitBindsToTheRecordBeforeIt) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    ResetFake({.seed = seed});
    TwoStreams test;
    EXPECT_EQ(cudaEventRecord(test.copied, test.copies), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(test.compute, test.copied, 0), cudaSuccess);
    test.Run(false);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(Has(TakeReports(), Finding::kUnordered)) << seed;
  }
}

TEST(StreamTest, TheLegacyStreamOrdersBlockingStreamsOnly) {
  for (const bool blocking : {true, false}) {
    ResetFake({.seed = 1});
    float* const a = DeviceFloats(kValues);
    float* const c = DeviceFloats(kValues);
    float* const host = PinnedFloats(kValues, 1);
    cudaStream_t stream;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, blocking ? cudaStreamDefault : cudaStreamNonBlocking),
              cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(a, host, kBytes, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
    EnqueueAdd(a, a, c, kValues, 0, stream);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(TakeReports().empty(), blocking);
  }
}

TEST(StreamTest, QueriesSeeTheEndWhateverTheSeed) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    ResetFake({.seed = seed});
    TwoStreams test;
    EXPECT_EQ(cudaMemcpyAsync(test.a, test.host, kBytes, cudaMemcpyHostToDevice, test.copies), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(test.copied, test.copies), cudaSuccess);
    int asked = 0;
    cudaError_t state = cudaErrorNotReady;
    for (; asked < 10 && state == cudaErrorNotReady; ++asked) {
      state = cudaEventQuery(test.copied);
    }
    EXPECT_EQ(state, cudaSuccess) << seed;
    // A host that has seen the event may use the memory in any stream.
    EnqueueAdd(test.a, test.a, test.c, kValues, 0, test.compute);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(TakeReports().empty()) << seed;
  }
}

TEST(StreamTest, AFaultSticks) {
  ResetFake({.seed = 3});
  TwoStreams test;
  EXPECT_EQ(cudaMemset(test.a, 0, kBytes), cudaSuccess);
  EXPECT_EQ(cudaMemset(test.b, 0, kBytes), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EnqueueAdd(test.a, test.b, test.c, kValues, 1, test.compute);
  EXPECT_EQ(cudaStreamSynchronize(test.compute), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 4), cudaErrorIllegalAddress);
  const std::vector<Report> reports = TakeReports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].finding, Finding::kOutOfBounds);
  EXPECT_NE(reports[0].text.find("vector_kernels.cu:"), std::string::npos) << reports[0].text;
  EXPECT_NE(reports[0].text.find("0 bytes behind the end of device memory of 4000 bytes"), std::string::npos)
      << reports[0].text;
}

TEST(StreamTest, ABadLaunchDoesNotStick) {
  ResetFake({});
  EnqueueAdd(nullptr, nullptr, nullptr, 0, 0, nullptr);  // a grid of no blocks
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(StreamTest, ConstantVariablesAreReadAndCopied) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    ResetFake({.seed = seed});
    float* const x = DeviceFloats(8);
    float* const y = DeviceFloats(8);
    const std::vector<float> ones(8, 1.0f);
    std::vector<float> result(8);
    EXPECT_EQ(cudaMemcpy(x, ones.data(), 32, cudaMemcpyHostToDevice), cudaSuccess);
    EnqueueScaleByTable(x, y, 8, nullptr);
    EXPECT_EQ(cudaMemcpy(result.data(), y, 32, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(result, (std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4}));
    const float nine = 9;
    EXPECT_EQ(cudaMemcpyToSymbol(kScaleTable, &nine, 4, 4, cudaMemcpyHostToDevice), cudaSuccess);
    EnqueueScaleByTable(x, y, 8, nullptr);
    EXPECT_EQ(cudaMemcpy(result.data(), y, 32, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(result, (std::vector<float>{1, 9, 3, 4, 1, 9, 3, 4}));
    EXPECT_TRUE(TakeReports().empty());
  }
}

// Pinned memory is the copy's until the host knows that it is done, in every seed.
TEST(StreamTest, AHostThatDoesNotWaitReadsPoison) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    ResetFake({.seed = seed});
    TwoStreams test;
    EXPECT_EQ(cudaMemcpyAsync(test.a, test.host, kBytes, cudaMemcpyHostToDevice, test.compute), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(test.result, test.a, kBytes, cudaMemcpyDeviceToHost, test.compute),
              cudaSuccess);
    EXPECT_NE(test.result[5], test.host[5]) << "seed " << seed;
    EXPECT_EQ(cudaStreamSynchronize(test.compute), cudaSuccess);
    EXPECT_EQ(test.result[5], test.host[5]) << "seed " << seed;
    EXPECT_TRUE(TakeReports().empty());
  }
}

TEST(StreamTest, HostWriteToACopySourceIsFoundInEverySeed) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (const bool waits : {false, true}) {
      ResetFake({.seed = seed});
      TwoStreams test;
      EXPECT_EQ(cudaMemcpyAsync(test.a, test.host, kBytes, cudaMemcpyHostToDevice, test.copies), cudaSuccess);
      EXPECT_EQ(cudaEventRecord(test.copied, test.copies), cudaSuccess);
      if (waits) {
        EXPECT_EQ(cudaEventSynchronize(test.copied), cudaSuccess);
      }
      test.host[kValues - 1] = 0;
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(Has(TakeReports(), Finding::kUnordered), !waits) << "seed " << seed;
    }
  }
}

// A copy reads, in order, what an earlier copy wrote to pinned memory, without the host.
TEST(StreamTest, CopiesThroughPinnedMemoryAreInOrder) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    ResetFake({.seed = seed});
    TwoStreams test;
    EXPECT_EQ(cudaMemcpyAsync(test.a, test.host, kBytes, cudaMemcpyHostToDevice, test.compute), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(test.result, test.a, kBytes, cudaMemcpyDeviceToHost, test.compute),
              cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(test.b, test.result, kBytes, cudaMemcpyHostToDevice, test.compute),
              cudaSuccess);
    EnqueueAdd(test.a, test.b, test.c, kValues, 0, test.compute);
    EXPECT_EQ(cudaMemcpyAsync(test.result, test.c, kBytes, cudaMemcpyDeviceToHost, test.compute),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(test.compute), cudaSuccess);
    EXPECT_TRUE(test.IsRight()) << "seed " << seed;
    EXPECT_TRUE(TakeReports().empty()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice::cuda_fake
