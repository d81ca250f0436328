// The interface between a test and the fake CUDA library, beside the CUDA calls themselves.
//
// The library's state belongs to the process, as CUDA's does. Thread safety: thread-compatible; one thread
// makes CUDA calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/cuda_fake/interp/counts.h"
#include "tests/cuda_fake/report.h"

namespace sluice::cuda_fake {

struct FakeOptions {
  // Seed of every choice that a GPU leaves open. 0: as early as possible, in order; 1: as late as possible,
  // backwards; others: by chance.
  uint64_t seed = 0;
  uint64_t memory_bytes = uint64_t{1} << 30;
  int devices = 1;      // or 0: a driver without a GPU
  int capability = 80;  // 80 for 8.0; runs the newest PTX in the objects that is not newer
  // The host's wait of this number (FakeCounters::waits) is dropped: it returns as if what it waits for were
  // done, and tells the host nothing. To see that nothing works without it.
  uint64_t drop_wait = 0;
  // Every wait by this call is dropped so: "cudaEventQuery", "cudaEventSynchronize", "cudaStreamSynchronize".
  std::string drop_call;
  // A host that asks whether something is done is told something new each time that it has asked so often: a
  // device that is slow beside the host.
  uint64_t questions = 1;
  uint64_t most_graphs = 1u << 30;  // executable ones that there is memory for
  // True if allocations of virtual memory management can be exported and imported as descriptors. False on
  // WSL2 and in some containers.
  bool descriptors = true;
  // True if pages that the host may not write can be registered, as cudaHostRegisterReadOnly asks.
  bool read_only_pages = true;
  // Bytes before and behind that cuMemGetAddressRange counts to what an IPC handle has opened: the manual
  // says nothing of such addresses.
  uint64_t ipc_margin = 0;
  uint64_t context_ms = 0;  // the first call that needs a context takes so long
  bool counts = false;      // every launch's accesses are counted, for TakeKernelCounts()
};

// A fresh device: what the process had on the one before is gone, its reports too.
void ResetFake(const FakeOptions& options);

// Returns the findings of the checks since the last call. A test of correct code expects it to be empty.
std::vector<Report> TakeReports();

struct FakeCounters {
  uint64_t launches = 0;
  uint64_t warp_instructions = 0;
  uint64_t copies = 0;
  uint64_t copied_bytes = 0;     // of these
  uint64_t pageable_copies = 0;  // asynchronous by name, from or to memory that is not registered
  uint64_t graph_launches = 0;
  uint64_t library_calls = 0;  // of libraries beside the runtime (device/library_calls.h)
  uint64_t allocations = 0;    // device memory that lives
  // Pieces of work that the host has waited for or asked after by events and streams, and not known to be
  // done before.
  uint64_t waits = 0;
};
FakeCounters CountersOfFake();

// One launch and what it asked for (interp/counts.h).
struct KernelCounts {
  std::string kernel;  // its mangled name
  uint64_t blocks = 0;
  uint64_t threads = 0;  // of a block
  LaunchCounts counts;
};
// Returns the counts of the launches since the last call, in order, if FakeOptions::counts.
std::vector<KernelCounts> TakeKernelCounts();

}  // namespace sluice::cuda_fake
