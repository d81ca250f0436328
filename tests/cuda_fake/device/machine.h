// The fake device as a whole: memory, streams, modules, its error, and the work that calls submit.
//
// Errors follow the Runtime API: "the error is returned by cudaGetLastError, which resets it to cudaSuccess";
// those that a kernel's fault leaves stick: "this leaves the process in an inconsistent state and any further
// CUDA work will return the same error" (Runtime API, cudaErrorIllegalAddress, -MisalignedAddress,
// -LaunchFailure, -IllegalInstruction).
//
// Thread safety: a call of CUDA's holds a MachineLock, so that daemons may make calls on several threads;
// their order is one of the orders that a driver's own locks allow. The calls of tests come from the test's
// thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/cuda_fake/device/graphs.h"
#include "tests/cuda_fake/device/host_uses.h"
#include "tests/cuda_fake/device/library_calls.h"
#include "tests/cuda_fake/device/memory.h"
#include "tests/cuda_fake/device/modules.h"
#include "tests/cuda_fake/device/operations.h"
#include "tests/cuda_fake/device/peer_order.h"
#include "tests/cuda_fake/fake_cuda.h"
#include "tests/cuda_fake/interp/execution.h"

namespace sluice::cuda_fake {

struct FakeEvent {
  OperationId recorded = 0;
  Captures::Point point;      // where the last record was captured, if it was
  uint64_t instructions = 0;  // run by the device when the last record ran: its clock
  bool alive = true;
};

// Memory that cuMemCreate has made or cuMemImport has brought in.
struct MemoryFile;
// Memory of cudaMalloc's that has an IPC handle, and what was opened by one (ipc_api.cc).
struct IpcFile;
struct IpcOpened {
  uint64_t number = 0;  // of the memory file
  uint64_t bytes = 0;
  int references = 0;
};

// Calls made within calls hold it twice.
class MachineLock {
 public:
  MachineLock() : lock_(TheMutex()) {}

 private:
  static std::recursive_mutex& TheMutex();
  const std::lock_guard<std::recursive_mutex> lock_;
};

// "Calling cudaFree on an exported memory region before calling cudaIpcCloseMemHandle in the importing
// context will result in undefined behavior" (Runtime API, cudaIpcGetMemHandle). Returns the report for
// cudaFree of this address; empty if it is not such a region, and the handle is forgotten.
std::string UndefinedFree(class Machine* machine, uint64_t address);

class Machine {
 public:
  explicit Machine(const FakeOptions& options);
  static Machine& Get();
  static void Reset(const FakeOptions& options);

  // Begins a call: a turn of the scheduler, and the error that sticks.
  cudaError_t Enter();
  // Ends it: notes the error for cudaGetLastError.
  cudaError_t Leave(cudaError_t error);
  cudaError_t Misuse(cudaError_t error, std::string text);  // Leave(), and a report
  cudaError_t TakeError();
  cudaError_t PeekError() const { return sticky_ != cudaSuccess ? sticky_ : LastError(); }

  // 0 for the legacy stream. False for a stream that does not live.
  bool StreamOf(cudaStream_t stream, uint32_t* number) const;
  FakeEvent* EventOf(cudaEvent_t event);
  cudaEvent_t NewEvent();

  // Submits work to a stream, or adds it to what is captured from there; 0 then.
  cudaError_t Submit(uint32_t stream, Work work, OperationId* id = nullptr);
  // The error of a call that is unsafe while streams are captured.
  cudaError_t ForbidInCapture() {
    return captures.Forbids() ? captures.InvalidateAll(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
  }
  // True if the wait for this operation by `call`, or the query of it, is the one to drop.
  bool DropsWait(const char* call, OperationId operation);
  cudaError_t Record(FakeEvent* event, uint32_t stream, bool external);
  cudaError_t Copy(void* to, const void* from, uint64_t bytes, cudaMemcpyKind kind, uint32_t stream,
                   bool async);
  cudaError_t Set(void* to, int value, uint64_t bytes, uint32_t stream);
  cudaError_t Launch(const void* stub, Dim grid, Dim block, void** args, uint64_t shared, uint32_t stream);
  // A call of a library beside the runtime (library_calls.h).
  cudaError_t CallLibrary(uint32_t stream, LibraryCall call);
  cudaError_t AllowShared(const void* stub, uint64_t bytes);
  // Shared memory that a block may ask for.
  uint64_t SharedLimit() const;

  FakeOptions options;
  ReportSink reports;
  FakeCounters counters;
  std::vector<KernelCounts> kernel_counts;
  HostUses host_uses;
  std::set<PeerOrder*> peers;  // of memory files that live
  DeviceMemory memory;
  Operations operations;
  Modules modules;
  std::map<uint64_t, std::shared_ptr<MemoryFile>> files;      // by handle
  std::map<uint64_t, std::shared_ptr<IpcFile>> ipc_exported;  // by address, as are the next
  std::map<uint64_t, IpcOpened> ipc_opened;
  Captures captures;
  std::map<uint64_t, std::shared_ptr<Graph>> graphs;  // by handle
  std::map<uint64_t, std::unique_ptr<GraphExec>> graph_execs;
  uint64_t next_handle = 1;

 private:
  void Run(LaunchSpec spec, OperationId operation);
  // The bytes that a copy or memset reads or writes, entered for it (operation 0: only looked up); nullptr,
  // and the device fails, if they are no more.
  uint8_t* BytesAt(uint64_t address, uint64_t bytes, AccessKind kind, OperationId operation);
  void Fail(Fault fault);
  // The calling thread's error: "cudaGetLastError returns the last error that has been produced by any of the
  // runtime calls in the same instance of the CUDA Runtime library in the host thread" (Runtime API).
  static cudaError_t& LastError();
  cudaError_t CheckLaunch(const Program& program, Dim grid, Dim block, uint64_t shared, const void* stub);

  cudaError_t sticky_ = cudaSuccess;
  std::vector<std::unique_ptr<FakeEvent>> events_;
  std::map<const void*, uint64_t> allowed_shared_;  // by stub
  std::set<OperationId> waited_;                    // counted, and not known to be done
  OperationId dropped_ = 0;
  ExecutionBuffers buffers_;
};

}  // namespace sluice::cuda_fake
