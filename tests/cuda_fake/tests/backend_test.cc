// Tests of the cuda backend's queue and memory that do not apply to every backend.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda_fake/fake_cuda.h"

namespace sluice {
namespace {

class CudaBackendTest : public testing::TestWithParam<uint64_t> {
 protected:
  CudaBackendTest() {
    cuda_fake::ResetFake({.seed = GetParam()});
    BackendLimits limits;
    limits.max_tokens = 4;
    limits.hidden = 64;
    limits.max_cols = 64;
    auto backend = CreateCudaBackend(limits);
    EXPECT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }
  ~CudaBackendTest() override {
    backend_.reset();
    EXPECT_TRUE(cuda_fake::TakeReports().empty());
  }

  Queue& queue() { return backend_->queue(); }
  BufferRef New(const std::vector<float>& values, BufferKind kind = BufferKind::kActivations) {
    const BufferRef ref{*backend_->Allocate(values.size() * 4, kind), 0};
    EXPECT_TRUE(queue().Upload(values.data(), values.size() * 4, ref).ok());
    return ref;
  }
  void Norm(BufferRef x, BufferRef weight, BufferRef y) {
    EXPECT_TRUE(queue().Norm({{x, 64}, 1, 64, {weight}, {y, 64}}).ok());
  }

  std::unique_ptr<Backend> backend_;
};
INSTANTIATE_TEST_SUITE_P(Seeds, CudaBackendTest, testing::Values(0, 1, 2, 3));

TEST_P(CudaBackendTest, WaitsAreCountedOnlyForUnknownEnds) {
  EXPECT_FALSE(queue().RunsAtCall());
  const BufferRef x = New(std::vector<float>(64, 1.0f));
  const BufferRef weight = New(std::vector<float>(64, 2.0f));
  Norm(x, weight, x);
  const Event event = queue().Record();
  const uint64_t before = backend_->Counters().waits;
  ASSERT_TRUE(queue().Wait(event).ok());
  EXPECT_EQ(backend_->Counters().waits, before + 1);
  ASSERT_TRUE(queue().Wait(event).ok());
  EXPECT_TRUE(queue().IsDone(event));
  EXPECT_EQ(backend_->Counters().waits, before + 1);
  EXPECT_EQ(queue().Wait({event.value + 1}).code(), absl::StatusCode::kInvalidArgument);
}

// The error of a call that its caller has handled or never asked after, as of cudaEventElapsedTime's.
TEST_P(CudaBackendTest, AnErrorLeftByAnotherCallIsNoLaunchs) {
  const BufferRef x = New(std::vector<float>(64, 1.0f));
  const BufferRef weight = New(std::vector<float>(64, 2.0f));
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(cudaHostUnregister(&queue()), cudaErrorHostMemoryNotRegistered);
    Norm(x, weight, x);
    ASSERT_TRUE(queue().Wait(queue().Record()).ok());
  }
  EXPECT_EQ(cudaGetLastError(), cudaErrorHostMemoryNotRegistered) << "nobody took it away";
}

TEST_P(CudaBackendTest, TimesOfTheLastPointsAreKnownAndOfOlderOnesNot) {
  const BufferRef x = New(std::vector<float>(64, 1.0f));
  const BufferRef weight = New(std::vector<float>(64, 2.0f));
  const Event first = queue().Record();
  Norm(x, weight, x);
  const Event second = queue().Record();
  ASSERT_TRUE(queue().Wait(second).ok());
  const absl::StatusOr<double> seconds = queue().Seconds(first, second);
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_GT(*seconds, 0);
  EXPECT_EQ(queue().Seconds(second, first).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(queue().Seconds({0}, second).status().code(), absl::StatusCode::kOutOfRange);
  Event last;
  for (uint64_t i = 0; i < Queue::kTimedEvents; ++i) {
    Norm(x, weight, x);
    last = queue().Record();
  }
  ASSERT_TRUE(queue().Wait(last).ok());
  EXPECT_EQ(queue().Seconds(second, last).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(queue().Seconds({second.value + 1}, last).ok());
  EXPECT_GT(backend_->Counters().kernel_seconds, *seconds);
}

TEST_P(CudaBackendTest, SharedDescriptorMapsZeroedReadOnlyMemory) {
  const absl::StatusOr<SharedBuffer> shared = backend_->AllocateShared(100);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_GE(shared->bytes, 100u);
  EXPECT_EQ(shared->kind, HandleKind::kCudaFd);
  EXPECT_NE(shared->device, DeviceUuid{});
  EXPECT_EQ(backend_->HostRead({shared->buffer, 0}, 4), nullptr);
  const float one = 1;
  EXPECT_EQ(queue().Upload(&one, 4, {shared->buffer, 0}).code(), absl::StatusCode::kFailedPrecondition);
  std::vector<float> values(16, one);
  ASSERT_TRUE(queue().Download({shared->buffer, 0}, 64, values.data()).ok());
  ASSERT_TRUE(queue().Wait(queue().Record()).ok());
  EXPECT_EQ(values, std::vector<float>(16, 0.0f));

  // As another process has it: imported by the descriptor, mapped, written.
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t{shared->fd}),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  ASSERT_EQ(cuMemAddressReserve(&address, shared->bytes, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(address, shared->bytes, 0, handle, 0), CUDA_SUCCESS);
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_EQ(cuMemSetAccess(address, shared->bytes, &access, 1), CUDA_SUCCESS);
  std::vector<float> weight(64);
  for (uint32_t i = 0; i < 64; ++i) {
    weight[i] = static_cast<float>(i);
  }
  ASSERT_EQ(cudaMemcpy(reinterpret_cast<void*>(address), weight.data(), 256, cudaMemcpyHostToDevice),
            cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the copy may still run, and no stream waits for it
  const BufferRef x = New(std::vector<float>(64, 1.0f));
  Norm(x, {shared->buffer, 0}, x);
  ASSERT_TRUE(queue().Download(x, 64, values.data()).ok());
  ASSERT_TRUE(queue().Wait(queue().Record()).ok());
  EXPECT_NEAR(values[10], 10.0f, 1e-3);
  EXPECT_EQ(cuMemUnmap(address, shared->bytes), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_TRUE(backend_->Free(shared->buffer).ok());
  EXPECT_EQ(backend_->Free(shared->buffer).code(), absl::StatusCode::kNotFound);
}

TEST_P(CudaBackendTest, SharedIpcHandleMapsZeroedReadOnlyMemory) {
  BackendLimits limits;
  limits.shared_handle = SharedHandle::kIpc;
  const auto backend = CreateCudaBackend(limits);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_NE((*backend)->Describe().find("slabs shared by ipc"), std::string::npos) << (*backend)->Describe();
  const absl::StatusOr<SharedBuffer> shared = (*backend)->AllocateShared(100);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(shared->kind, HandleKind::kCudaIpc);
  EXPECT_EQ(shared->bytes, uint64_t{2} << 20) << "a block of cudaMalloc's, which no other allocation shares";
  EXPECT_EQ(shared->fd, -1);
  EXPECT_NE(shared->ipc, HandleBytes{});
  EXPECT_NE(shared->device, DeviceUuid{});
  const float one = 1;
  EXPECT_EQ((*backend)->queue().Upload(&one, 4, {shared->buffer, 0}).code(),
            absl::StatusCode::kFailedPrecondition);
  std::vector<float> values(16, one);
  ASSERT_TRUE((*backend)->queue().Download({shared->buffer, 0}, 64, values.data()).ok());
  ASSERT_TRUE((*backend)->queue().Wait((*backend)->queue().Record()).ok());
  EXPECT_EQ(values, std::vector<float>(16, 0.0f));
  EXPECT_TRUE((*backend)->Free(shared->buffer).ok());
}

TEST_P(CudaBackendTest, WithoutDescriptorsMemoryIsSharedByIpc) {
  backend_.reset();
  cuda_fake::ResetFake({.seed = GetParam(), .descriptors = false});
  BackendLimits limits;
  const auto best = CreateCudaBackend(limits);
  ASSERT_TRUE(best.ok()) << best.status();
  EXPECT_EQ((*best)->AllocateShared(100)->kind, HandleKind::kCudaIpc);
  limits.shared_handle = SharedHandle::kVmm;
  const absl::Status refused = CreateCudaBackend(limits).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("exports no descriptors"), absl::string_view::npos) << refused;
}

TEST_P(CudaBackendTest, UploadFromStagingHasReadItsSourceAtReturn) {
  const BufferRef staging = New(std::vector<float>(64, 3.0f), BufferKind::kStaging);
  const BufferRef weight = New(std::vector<float>(64, 0.0f));
  auto* const source = reinterpret_cast<float*>(backend_->HostWrite(staging, 256));
  ASSERT_NE(source, nullptr);
  ASSERT_TRUE(queue().Upload(source, 256, weight).ok());
  std::fill_n(source, 64, 7.0f);
  std::vector<float> values(64);
  ASSERT_TRUE(queue().Download(weight, 256, values.data()).ok());
  ASSERT_TRUE(queue().Wait(queue().Record()).ok());
  EXPECT_EQ(values, std::vector<float>(64, 3.0f));
}

TEST_P(CudaBackendTest, MemoryThatIsNotThereIsSaidInBytes) {
  const absl::Status status = backend_->Allocate(uint64_t{1} << 50, BufferKind::kTables).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("1125899906842624 bytes"), absl::string_view::npos) << status;
  EXPECT_EQ(backend_->AllocateShared(uint64_t{1} << 50).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(backend_->Allocate(64, BufferKind::kTables).ok());  // and the device goes on
}

}  // namespace
}  // namespace sluice
