// Device memory of the fake: errors, poison, copies, and allocations shared by their file.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "tests/cuda_fake/fake_cuda.h"
#include "tests/cuda_fake/tests/vector_kernels.h"

namespace sluice::cuda_fake {
namespace {

constexpr size_t kMiB = 1 << 20;

TEST(MemoryTest, OutOfMemoryAtTheTotalDoesNotStick) {
  ResetFake({.memory_bytes = kMiB});
  void* a = nullptr;
  void* b = nullptr;
  EXPECT_EQ(cudaMalloc(&a, kMiB / 2), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&b, kMiB), cudaErrorMemoryAllocation);
  EXPECT_EQ(b, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  size_t free = 0;
  size_t total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, kMiB / 2);
  EXPECT_EQ(cudaFree(a), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&b, kMiB), cudaSuccess);
  EXPECT_NE(a, b);  // addresses are never given out twice
  EXPECT_TRUE(TakeReports().empty());
}

TEST(MemoryDeathTest, TheHostCannotTouchDeviceMemory) {
  ResetFake({});
  void* a = nullptr;
  ASSERT_EQ(cudaMalloc(&a, 4096), cudaSuccess);
  EXPECT_DEATH(*static_cast<volatile int*>(a) = 1, "");
}

TEST(MemoryTest, WhatNothingWroteIsFoundWhenItIsRead) {
  ResetFake({});
  void* a = nullptr;
  int value = 0;
  ASSERT_EQ(cudaMalloc(&a, 4), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(&value, a, 4, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(value, static_cast<int>(0xCBCBCBCB));
  const std::vector<Report> reports = TakeReports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].finding, Finding::kUninitialised);
}

TEST(MemoryTest, MisuseIsRefusedAndNamed) {
  ResetFake({});
  void* a = nullptr;
  std::vector<char> host(64);
  ASSERT_EQ(cudaMalloc(&a, 32), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(a, host.data(), 64, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host.data(), a, 32, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(static_cast<char*>(a) + 8), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(a), cudaSuccess);
  EXPECT_EQ(cudaFree(a), cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostRegister(host.data(), 64, cudaHostRegisterDefault), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(host.data(), 64, cudaHostRegisterDefault), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(cudaHostUnregister(host.data()), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(host.data()), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(TakeReports().size(), 4u);
}

TEST(MemoryTest, UseAfterFreeIsNamed) {
  ResetFake({});
  float* a = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&a), 400), cudaSuccess);
  ASSERT_EQ(cudaFree(a), cudaSuccess);
  EnqueueAdd(a, a, a, 100, 0, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  const std::vector<Report> reports = TakeReports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_NE(reports[0].text.find("which was freed"), std::string::npos) << reports[0].text;
}

TEST(MemoryTest, AsynchronousCopiesFromPinnedMemoryReadItLate) {
  ResetFake({.seed = 1});
  char* host = nullptr;
  void* a = nullptr;
  cudaStream_t stream;
  ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&host), 16, cudaHostAllocDefault), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&a, 16), cudaSuccess);
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  std::memset(host, 1, 16);
  EXPECT_EQ(cudaMemcpyAsync(a, host, 16, cudaMemcpyHostToDevice, stream), cudaSuccess);
  std::memset(host, 2, 16);  // too early
  char back[16];
  EXPECT_EQ(cudaMemcpyAsync(back, a, 16, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(back[0], 2);
  EXPECT_EQ(CountersOfFake().pageable_copies, 1u);
}

CUdeviceptr MapAt(CUmemGenericAllocationHandle handle, size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAddressReserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemMap(address, bytes, 0, handle, 0), CUDA_SUCCESS);
  return address;
}

CUresult Allow(CUdeviceptr address, size_t bytes) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return cuMemSetAccess(address, bytes, &access, 1);
}

TEST(MemoryTest, AnAllocationIsSharedByItsFile) {
  ResetFake({.memory_bytes = 4 * kMiB});
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle made = 0;
  EXPECT_EQ(cuMemCreate(&made, kMiB, &properties, 0), CUDA_ERROR_INVALID_VALUE);  // no multiple of 2 MiB
  EXPECT_EQ(TakeReports().size(), 1u);
  EXPECT_EQ(cuMemCreate(&made, 6 * kMiB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemCreate(&made, 2 * kMiB, &properties, 0), CUDA_SUCCESS);
  int fd = -1;
  ASSERT_EQ(cuMemExportToShareableHandle(&fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  close(fd);
  const CUdeviceptr here = MapAt(made, 2 * kMiB);
  const CUdeviceptr there = MapAt(imported, 2 * kMiB);
  EXPECT_EQ(Allow(here, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cudaMemset(reinterpret_cast<void*>(here), 7, 16), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  char back[16];
  // The other mapping has no access yet.
  EXPECT_EQ(cudaMemcpy(back, reinterpret_cast<void*>(there), 16, cudaMemcpyDeviceToHost),
            cudaErrorInvalidValue);
  EXPECT_EQ(TakeReports().size(), 1u);
  EXPECT_EQ(Allow(there, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cudaMemcpy(back, reinterpret_cast<void*>(there), 16, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(back[15], 7);
  EXPECT_EQ(cuMemUnmap(there, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(imported), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(made), CUDA_SUCCESS);
  size_t free = 0;
  size_t total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, 2 * kMiB);  // the mapping holds it
  EXPECT_EQ(cuMemUnmap(here, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, 4 * kMiB);
  EXPECT_TRUE(TakeReports().empty());
}

}  // namespace
}  // namespace sluice::cuda_fake
