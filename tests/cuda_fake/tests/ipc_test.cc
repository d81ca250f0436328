// Legacy IPC of the fake between two processes: who may open what, when, and what is found of the order
// between them. The other process is forked before this one has any memory, as no fake can be taken along.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/fake_cuda.h"

namespace sluice::cuda_fake {
namespace {

constexpr size_t kBytes = 8192;

// A process that does what `body` says, by the socket to this one; its result is the process'.
class Peer {
 public:
  explicit Peer(const std::function<int(int socket)>& body) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = ends[0];
    pid_ = fork();
    if (pid_ == 0) {
      alarm(60);
      close(ends[0]);
      ResetFake({});
      _exit(body(ends[1]));
    }
    close(ends[1]);
  }
  ~Peer() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Join();
    }
    close(socket_);
  }
  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  int Join() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  template <typename T>
  void Send(const T& value) {
    EXPECT_EQ(write(socket_, &value, sizeof(value)), static_cast<ssize_t>(sizeof(value)));
  }
  // Returns the process's next message; '?' if there is none.
  char Receive() {
    char said = '?';
    return read(socket_, &said, 1) == 1 ? said : '?';
  }
  int pid() const { return pid_; }

 private:
  int socket_ = -1;
  pid_t pid_ = 0;
};

cudaIpcMemHandle_t HandleFrom(int socket) {
  cudaIpcMemHandle_t handle{};
  return read(socket, &handle, sizeof(handle)) == static_cast<ssize_t>(sizeof(handle)) ? handle
                                                                                       : cudaIpcMemHandle_t{};
}
void Say(int socket, char what) { (void)!write(socket, &what, 1); }
void AwaitWord(int socket) {
  char word;
  (void)!read(socket, &word, 1);
}

#define SLUICE_PEER_NEEDS(condition)                                                   \
  if (!(condition)) {                                                                  \
    std::fprintf(stderr, "in the other process, line %d: %s\n", __LINE__, #condition); \
    return 1;                                                                          \
  }

void* NewMemory(cudaIpcMemHandle_t* handle) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, kBytes), cudaSuccess);
  EXPECT_EQ(cudaMemset(memory, 7, kBytes), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaIpcGetMemHandle(handle, memory), cudaSuccess);
  return memory;
}

TEST(IpcTest, AnotherProcessHasTheSameMemoryUnderOneAddress) {
  Peer peer([](int socket) {
    const cudaIpcMemHandle_t handle = HandleFrom(socket);
    void* first = nullptr;
    void* second = nullptr;
    SLUICE_PEER_NEEDS(cudaIpcOpenMemHandle(&first, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
    SLUICE_PEER_NEEDS(cudaIpcOpenMemHandle(&second, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
    SLUICE_PEER_NEEDS(first == second);
    CUdeviceptr base = 0;
    size_t bytes = 0;
    SLUICE_PEER_NEEDS(cuMemGetAddressRange(&base, &bytes, reinterpret_cast<CUdeviceptr>(first) + 5) ==
                      CUDA_SUCCESS);
    SLUICE_PEER_NEEDS(base == reinterpret_cast<CUdeviceptr>(first) && bytes == kBytes);
    std::vector<char> found(kBytes);
    SLUICE_PEER_NEEDS(cudaMemcpy(found.data(), first, kBytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    SLUICE_PEER_NEEDS(found == std::vector<char>(kBytes, 7));
    SLUICE_PEER_NEEDS(cudaMemset(first, 9, kBytes) == cudaSuccess);
    SLUICE_PEER_NEEDS(cudaDeviceSynchronize() == cudaSuccess);
    SLUICE_PEER_NEEDS(cudaFree(first) == cudaErrorInvalidValue);  // it is the other one's to free
    SLUICE_PEER_NEEDS(TakeReports().size() == 1);
    SLUICE_PEER_NEEDS(cudaIpcCloseMemHandle(first) == cudaSuccess);
    SLUICE_PEER_NEEDS(cudaMemcpy(found.data(), first, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
    SLUICE_PEER_NEEDS(cudaIpcCloseMemHandle(first) == cudaSuccess);
    SLUICE_PEER_NEEDS(cudaMemcpy(found.data(), first, 1, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    SLUICE_PEER_NEEDS(cudaIpcCloseMemHandle(first) == cudaErrorInvalidValue);
    return TakeReports().size() == 2 ? 0 : 1;
  });
  ResetFake({});
  cudaIpcMemHandle_t handle;
  void* const memory = NewMemory(&handle);
  cudaIpcMemHandle_t again;
  EXPECT_EQ(cudaIpcGetMemHandle(&again, memory), cudaSuccess);
  EXPECT_EQ(std::memcmp(&handle, &again, sizeof(handle)), 0);
  peer.Send(handle);
  EXPECT_EQ(peer.Join(), 0);
  std::vector<char> found(kBytes);
  EXPECT_EQ(cudaMemcpy(found.data(), memory, kBytes, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(found, std::vector<char>(kBytes, 9));
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_TRUE(TakeReports().empty());
}

TEST(IpcTest, HandleOfNoLivingMemoryElsewhereIsRefused) {
  Peer peer([](int socket) {
    void* place = nullptr;
    const cudaIpcMemHandle_t freed = HandleFrom(socket);
    SLUICE_PEER_NEEDS(cudaIpcOpenMemHandle(&place, freed, cudaIpcMemLazyEnablePeerAccess) ==
                      cudaErrorMapBufferObjectFailed);
    cudaIpcMemHandle_t invented;
    std::memset(&invented, 0xab, sizeof(invented));
    SLUICE_PEER_NEEDS(cudaIpcOpenMemHandle(&place, invented, cudaIpcMemLazyEnablePeerAccess) ==
                      cudaErrorInvalidResourceHandle);
    const cudaIpcMemHandle_t good = HandleFrom(socket);
    SLUICE_PEER_NEEDS(TakeReports().empty());
    SLUICE_PEER_NEEDS(cudaIpcOpenMemHandle(&place, good, 0) == cudaErrorInvalidValue);
    SLUICE_PEER_NEEDS(TakeReports().size() == 1);
    SLUICE_PEER_NEEDS(place == nullptr);
    SLUICE_PEER_NEEDS(cudaIpcOpenMemHandle(&place, good, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
    return 0;
  });
  ResetFake({});
  cudaIpcMemHandle_t freed;
  EXPECT_EQ(cudaFree(NewMemory(&freed)), cudaSuccess);
  peer.Send(freed);
  cudaIpcMemHandle_t handle;
  void* const memory = NewMemory(&handle);
  EXPECT_NE(std::memcmp(&handle, &freed, sizeof(handle)), 0);
  peer.Send(handle);
  EXPECT_EQ(peer.Join(), 0);

  void* place = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&place, handle, cudaIpcMemLazyEnablePeerAccess),
            cudaErrorDeviceUninitialized)
      << "its own";
  EXPECT_TRUE(TakeReports().empty());
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, static_cast<char*>(memory) + 256), cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostAlloc(&place, 64, cudaHostAllocDefault), cudaSuccess);
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, place), cudaErrorInvalidValue) << "the host's memory";
  EXPECT_EQ(TakeReports().size(), 2u);
}

// Behaviour that CUDA leaves undefined is an error here that names call and process; a killed process has
// nothing open.
TEST(IpcTest, MemoryThatALivingProcessHasOpenIsNotFreed) {
  const auto opens = [](int socket) {
    void* place = nullptr;
    const cudaIpcMemHandle_t handle = HandleFrom(socket);
    SLUICE_PEER_NEEDS(cudaIpcOpenMemHandle(&place, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
    Say(socket, 'o');
    AwaitWord(socket);
    SLUICE_PEER_NEEDS(cudaIpcCloseMemHandle(place) == cudaSuccess);
    Say(socket, 'c');
    AwaitWord(socket);
    return 0;
  };
  Peer closes(opens);
  Peer dies(opens);
  ResetFake({});
  cudaIpcMemHandle_t handle;
  void* memory = NewMemory(&handle);
  closes.Send(handle);
  ASSERT_EQ(closes.Receive(), 'o');
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  const std::vector<Report> reports = TakeReports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_TRUE(absl::StrContains(reports[0].text, "cudaFree of byte 0 of device memory of 8192 bytes"))
      << reports[0].text;
  EXPECT_TRUE(absl::StrContains(
      reports[0].text, absl::StrCat("which process ", closes.pid(), " has open by cudaIpcOpenMemHandle")))
      << reports[0].text;
  closes.Send('g');
  ASSERT_EQ(closes.Receive(), 'c');
  EXPECT_EQ(cudaFree(memory), cudaSuccess);

  memory = NewMemory(&handle);
  dies.Send(handle);
  ASSERT_EQ(dies.Receive(), 'o');
  dies.Kill();
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_TRUE(TakeReports().empty());
}

TEST(IpcTest, WhatNothingOrdersBetweenTheProcessesIsFound) {
  for (const bool waits : {true, false}) {
    Peer peer([waits](int socket) {
      void* place = nullptr;
      const cudaIpcMemHandle_t handle = HandleFrom(socket);
      SLUICE_PEER_NEEDS(cudaIpcOpenMemHandle(&place, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
      SLUICE_PEER_NEEDS(cudaMemset(place, 1, kBytes) == cudaSuccess);
      if (waits) {
        SLUICE_PEER_NEEDS(cudaDeviceSynchronize() == cudaSuccess);
      }
      Say(socket, 'w');
      AwaitWord(socket);
      return 0;
    });
    ResetFake({});
    cudaIpcMemHandle_t handle;
    void* const memory = NewMemory(&handle);
    peer.Send(handle);
    ASSERT_EQ(peer.Receive(), 'w');
    std::vector<char> found(kBytes);
    EXPECT_EQ(cudaMemcpy(found.data(), memory, kBytes, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<Report> reports = TakeReports();
    EXPECT_EQ(reports.size(), waits ? 0u : 1u);
    for (const Report& report : reports) {
      EXPECT_EQ(report.finding, Finding::kPeers) << report.text;
    }
    peer.Send('g');
    EXPECT_EQ(peer.Join(), 0);
  }
}

}  // namespace
}  // namespace sluice::cuda_fake
