// Captured streams and graphs: what they run, what they keep, and which calls are refused meanwhile.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/cuda_fake/fake_cuda.h"
#include "tests/cuda_fake/tests/vector_kernels.h"

namespace sluice::cuda_fake {
namespace {

constexpr unsigned kValues = 500;
constexpr size_t kBytes = kValues * sizeof(float);

template <typename T>
T* Device(size_t count) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, count * sizeof(T)), cudaSuccess);
  return static_cast<T*>(pointer);
}

float* Pinned() {
  void* pointer = nullptr;
  EXPECT_EQ(cudaHostAlloc(&pointer, kBytes, cudaHostAllocDefault), cudaSuccess);
  return static_cast<float*>(pointer);
}

cudaStream_t Stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

cudaEvent_t NewEvent() {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  return event;
}

// y = (x + x) + table * x: a copy, then two kernels side by side, then one behind both, and a copy back.
struct Forked {
  cudaStream_t stream = Stream();
  cudaStream_t side = Stream();
  cudaEvent_t fork = NewEvent();
  cudaEvent_t join = NewEvent();
  float* host = Pinned();
  float* result = Pinned();
  float* x = Device<float>(kValues);
  float* twice = Device<float>(kValues);
  float* scaled = Device<float>(kValues);
  float* y = Device<float>(kValues);

  void Submit(bool joins) {
    EXPECT_EQ(cudaMemcpyAsync(x, host, kBytes, cudaMemcpyHostToDevice, stream), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(fork, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(side, fork, 0), cudaSuccess);
    EnqueueScaleByTable(x, scaled, kValues, side);
    EXPECT_EQ(cudaEventRecord(join, side), cudaSuccess);
    EnqueueAdd(x, x, twice, kValues, 0, stream);
    if (joins) {
      EXPECT_EQ(cudaStreamWaitEvent(stream, join, 0), cudaSuccess);
    }
    EnqueueAdd(twice, scaled, y, kValues, 0, stream);
    EXPECT_EQ(cudaMemcpyAsync(result, y, kBytes, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  }

  cudaGraph_t Capture() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    Submit(true);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    return graph;
  }

  void Fill(float first) {
    for (unsigned i = 0; i < kValues; ++i) {
      host[i] = first + static_cast<float>(i);
    }
  }
  bool IsRight() const {
    for (unsigned i = 0; i < kValues; ++i) {
      if (result[i] != 2 * host[i] + static_cast<float>(i % 4 + 1) * host[i]) {
        return false;
      }
    }
    return true;
  }
};

TEST(GraphTest, LaunchRunsCapturedWorkWithCurrentBytes) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    ResetFake({.seed = seed});
    Forked work;
    const cudaGraph_t graph = work.Capture();
    EXPECT_EQ(CountersOfFake().launches, 0u) << "captured, not run";
    size_t nodes = 0;
    EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
    EXPECT_EQ(nodes, 5u);
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    for (const float first : {1.0f, 7.0f, 100.0f}) {
      work.Fill(first);
      EXPECT_EQ(cudaGraphLaunch(exec, work.stream), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(work.stream), cudaSuccess);
      EXPECT_TRUE(work.IsRight()) << "seed " << seed;
    }
    EXPECT_EQ(CountersOfFake().launches, 9u);
    EXPECT_EQ(CountersOfFake().graph_launches, 3u);
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_TRUE(TakeReports().empty()) << "seed " << seed;
  }
}

TEST(GraphTest, AForkThatIsNotJoinedIsRefused) {
  ResetFake({});
  Forked work;
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(work.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  work.Submit(false);
  EXPECT_EQ(cudaStreamEndCapture(work.stream, &graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph, nullptr);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  EXPECT_EQ(cudaStreamIsCapturing(work.side, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
}

// Another stream may write memory that a graph reads: the check treats nodes as operations.
TEST(GraphTest, WriterNotWaitingForLaunchIsFoundInEverySeed) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    ResetFake({.seed = seed});
    Forked work;
    work.Fill(1);
    const cudaGraph_t graph = work.Capture();
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(exec, work.stream), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(work.twice, 0, kBytes, work.side), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<Report> reports = TakeReports();
    ASSERT_FALSE(reports.empty()) << "seed " << seed;
    EXPECT_EQ(reports[0].finding, Finding::kUnordered) << reports[0].text;
  }
}

// Launches of one graph are ordered, whatever streams they are in.
TEST(GraphTest, LaunchesOfAGraphComeOneBehindTheOther) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    ResetFake({.seed = seed});
    Forked work;
    work.Fill(3);
    const cudaGraph_t graph = work.Capture();
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(exec, work.stream), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(exec, Stream()), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(work.IsRight());
    EXPECT_TRUE(TakeReports().empty()) << "seed " << seed;
  }
}

TEST(GraphTest, AnUpdateTakesOtherArgumentsOfTheSameShape) {
  ResetFake({.seed = 3});
  Forked first;
  Forked second;
  first.Fill(1);
  second.Fill(50);
  const cudaGraph_t graph = first.Capture();
  const cudaGraph_t other = second.Capture();
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  cudaGraphExecUpdateResultInfo info;
  EXPECT_EQ(cudaGraphExecUpdate(exec, other, &info), cudaSuccess);
  EXPECT_EQ(info.result, cudaGraphExecUpdateSuccess);
  EXPECT_EQ(cudaGraphLaunch(exec, first.stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(first.stream), cudaSuccess);
  EXPECT_TRUE(second.IsRight());

  cudaGraph_t shorter = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(first.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EnqueueAdd(first.x, first.x, first.y, kValues, 0, first.stream);
  EXPECT_EQ(cudaStreamEndCapture(first.stream, &shorter), cudaSuccess);
  EXPECT_EQ(cudaGraphExecUpdate(exec, shorter, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  EXPECT_EQ(cudaGetLastError(), cudaErrorGraphExecUpdateFailure);
}

// "Already enqueued or running launches of hGraphExec are not affected by this call" (Runtime API,
// cudaGraphExecKernelNodeSetParams; the Programming Guide says the same of whole updates).
TEST(GraphTest, AnUpdateOrAnEndLeavesWhatWasLaunchedAlone) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    ResetFake({.seed = seed});
    Forked first;
    Forked second;
    first.Fill(1);
    second.Fill(50);
    const cudaGraph_t graph = first.Capture();
    const cudaGraph_t other = second.Capture();
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(exec, first.stream), cudaSuccess);
    cudaGraphExecUpdateResultInfo info;
    EXPECT_EQ(cudaGraphExecUpdate(exec, other, &info), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(exec, first.stream), cudaSuccess);
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(first.stream), cudaSuccess);
    EXPECT_TRUE(first.IsRight()) << "seed " << seed;
    EXPECT_TRUE(second.IsRight()) << "seed " << seed;
    EXPECT_TRUE(TakeReports().empty()) << "seed " << seed;
  }
}

TEST(GraphTest, GraphsWithoutMemoryAreRefused) {
  ResetFake({.most_graphs = 1});
  Forked work;
  const cudaGraph_t graph = work.Capture();
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  cudaGraphExec_t another = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&another, graph, 0), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&another, graph, 0), cudaSuccess);
}

TEST(GraphTest, CallsThatWaitOrAllocateVoidACapture) {
  const auto voided = [](cudaError_t (*call)(Forked&), cudaError_t expected) {
    ResetFake({});
    Forked work;
    EXPECT_EQ(cudaEventRecord(work.fork, work.side), cudaSuccess);  // outside of the capture
    EXPECT_EQ(cudaStreamBeginCapture(work.stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(work.join, work.stream), cudaSuccess);
    EXPECT_EQ(call(work), expected);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(work.stream, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    // The stream works as before.
    EXPECT_EQ(cudaStreamSynchronize(work.stream), cudaSuccess);
  };
  voided([](Forked& work) { return cudaStreamSynchronize(work.stream); }, cudaErrorStreamCaptureUnsupported);
  voided([](Forked& work) { return cudaStreamQuery(work.stream); }, cudaErrorStreamCaptureUnsupported);
  voided([](Forked&) { return cudaDeviceSynchronize(); }, cudaErrorStreamCaptureUnsupported);
  voided([](Forked& work) { return cudaFree(work.x); }, cudaErrorStreamCaptureUnsupported);
  voided([](Forked& work) { return cudaEventQuery(work.join); }, cudaErrorCapturedEvent);
  voided([](Forked& work) { return cudaEventSynchronize(work.join); }, cudaErrorCapturedEvent);
  // A wait for what is not in the capture.
  voided([](Forked& work) { return cudaStreamWaitEvent(work.stream, work.fork, 0); },
         cudaErrorStreamCaptureIsolation);
}

TEST(GraphTest, LegacyStreamIsRefusedDuringBlockingCapture) {
  ResetFake({});
  cudaStream_t blocking = nullptr;
  EXPECT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  float* const x = Device<float>(kValues);
  EXPECT_EQ(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(x, 0, kBytes, nullptr), cudaErrorStreamCaptureImplicit);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureUnmatched);
}

}  // namespace
}  // namespace sluice::cuda_fake
