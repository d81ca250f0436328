// The device interface: memory by handles, one in-order queue, and about a dozen coarse operations. One
// implementation per device (reference/, cpu/, cuda/), one test body for all. Arguments and shapes are
// in ops.h, the arithmetic in ARITHMETIC.md.
//
// Enqueued work runs in order. On `reference` and `host` it has run when the call returns (RunsAtCall); on
// other devices spans are copied at the call, and results are valid once an Event recorded after it is known
// to be done. A call that returns an error has computed nothing; errors of work already enqueued are returned
// by Wait().
//
// Thread safety: thread-compatible; a backend and its queue belong to one thread (the engine's), which is
// compute worker 0 of the host backend. Counters() and Describe() may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/encoding.h"
#include "common/protocol/memory_handle.h"
#include "kernels/buffer.h"
#include "kernels/ops.h"

namespace sluice {

// The kind of handle by which another process maps a device's memory: the best that device and driver
// support, a descriptor of CUDA's virtual memory management, or a handle of legacy IPC.
enum class SharedHandle : uint8_t { kBest = 0, kVmm = 1, kIpc = 2 };

// Arithmetic of dense products of many rows, as prompts have. kExact: the device's own kernels, whose bits
// are those of `host`. kFast: a library's product in 16-bit floats (device cuda: cuBLASLt), equal to kExact's
// within a tolerance (kernels/cuda/fast_products.h). kAuto: kFast where the library is there and passes its
// self-test, otherwise kExact; Describe() says which and why.
enum class PrefillMath : uint8_t { kExact = 0, kFast = 1, kAuto = 2 };

// A dense matrix that PrefillMath may apply to.
struct DenseShape {
  EncodingDescriptor encoding;
  uint32_t rows = 0;
  uint32_t cols = 0;
  bool operator==(const DenseShape&) const = default;
};

// Maximum shapes; scratch memory is sized by them once, so that no operation allocates. A call beyond them is
// INVALID_ARGUMENT naming the limit. 0 where a model lacks the feature.
struct BackendLimits {
  uint32_t max_tokens = 0;     // T of one call
  uint32_t max_sequences = 0;  // SequenceRows of one call
  uint32_t max_cols = 0;       // the longest row of MatMul: max(hidden, heads * head_dim)
  uint32_t hidden = 0;
  uint32_t heads = 0;        // query heads, and the delta rule's value heads
  uint32_t head_dim = 0;     // the longest K row of a head, and the delta rule's key_dim and value_dim
  uint32_t max_context = 0;  // positions of one sequence
  uint32_t experts = 0;
  uint32_t top_k = 0;
  uint32_t expert_width = 0;  // the widest expert (shared and dense ones too)
  uint32_t vocab = 0;
  uint32_t index_heads = 0;   // heads of an indexer
  uint32_t chosen_lists = 0;  // lists of chosen blocks for a row, or KV heads beside them, the more of them
  uint32_t layers = 0;        // layers that may come between BeginGraph() and EndGraph()

  // The kind of handle for memory of AllocateShared(), on a device with a choice.
  SharedHandle shared_handle = SharedHandle::kBest;

  // Arithmetic of products with weights of `dense_shapes`; others are always exact. A device without a choice
  // ignores both.
  PrefillMath prefill_math = PrefillMath::kExact;
  std::vector<DenseShape> dense_shapes;
};

// Device memory that another process can map and write. Lives until Free(buffer).
struct SharedBuffer {
  BufferId buffer = kNoBuffer;
  uint64_t bytes = 0;  // the requested bytes, rounded up to whole granules of the device
  HandleKind kind = HandleKind::kMemoryFile;
  int fd = -1;           // for kinds with a descriptor: owned by the backend, open until Free()
  HandleBytes ipc = {};  // for kCudaIpc
  uint64_t own = 0;      // the device's address in this process; 0: host memory
  DeviceUuid device = {};
};

// A point in the queue; points are ordered by value. Point 0 is before everything.
struct Event {
  uint64_t value = 0;
};

// The in-order queue. Operations: ops.h.
class Queue {
 public:
  virtual ~Queue() = default;

  // Host memory to buffer and back. The source may be reused when Upload returns; the destination of a
  // Download is filled once an Event recorded behind it is known to be done. OUT_OF_RANGE beyond the buffer,
  // FAILED_PRECONDITION for an Upload into imported or shared memory.
  virtual absl::Status Upload(const void* source, uint64_t bytes, BufferRef destination) = 0;
  virtual absl::Status Download(BufferRef source, uint64_t bytes, void* destination) = 0;

  // Enqueues any operation; its arguments are not needed after the call. The one function that a device, or a
  // decorator of one, implements for all operations.
  virtual absl::Status Enqueue(const Operation& operation) = 0;

  // The operations by their names: Embed(const EmbedArgs&) and so on, in the order of ops.h.
#define SLUICE_QUEUE_METHOD(Name) \
  absl::Status Name(const Name##Args& args) { return Enqueue(&args); }
  SLUICE_OPERATIONS(SLUICE_QUEUE_METHOD)
#undef SLUICE_QUEUE_METHOD

  // True if operations have run when their call returns, so that no wait is ever needed.
  virtual bool RunsAtCall() const = 0;

  // Between the two calls a device may keep operations, where handing over many at once is cheaper. They are
  // submitted by EndGraph() at the latest, and earlier by any call that needs a result: Wait() and IsDone()
  // of a later point, Upload(), Download(), Free(). A point among them is done when the whole batch is done.
  // For operations that come in the same order again and again and whose results the host does not wait for.
  // Either may be called twice.
  virtual absl::Status BeginGraph() { return absl::OkStatus(); }
  virtual absl::Status EndGraph() { return absl::OkStatus(); }

  // Returns a point after everything enqueued so far.
  virtual Event Record() = 0;
  // True if all work enqueued before the event has run. Does not wait; used to find memory that may be
  // reused. Once true it stays true, and holds for every earlier point too.
  virtual bool IsDone(Event event) = 0;
  // Blocks until the event is done. Returns the first error of work enqueued before it; the error sticks.
  virtual absl::Status Wait(Event event) = 0;
  // Seconds from one point to a later one, by the device's clock. Only for the last kTimedEvents points:
  // OUT_OF_RANGE for others, FAILED_PRECONDITION while the later one is not done.
  static constexpr uint64_t kTimedEvents = 256;
  virtual absl::StatusOr<double> Seconds(Event from, Event to) = 0;
};

// Monotonic since creation.
struct BackendCounters {
  uint64_t fork_joins = 0;       // parallel regions run on more than one thread
  double region_seconds = 0;     // seconds from fork to join, measured on the calling thread
  double join_wait_seconds = 0;  // part of it: the calling thread had no tiles and waited
  double kernel_seconds = 0;     // in operations, parallel or not; checking their arguments is not counted
  uint64_t serial_ops = 0;       // operations small enough to run on the calling thread alone
  // Number of Wait() calls for points not known to be done; 0 for a device that runs at the call.
  uint64_t waits = 0;
  // For a device with launches, else 0: kernels, in a graph or alone; graph launches; graphs that were made,
  // or changed in place.
  uint64_t kernels = 0;
  uint64_t graph_launches = 0;
  uint64_t graphs_made = 0;
  uint64_t graphs_updated = 0;
  uint64_t library_products = 0;  // calls of a library's product (PrefillMath::kFast)
};

class Backend {
 public:
  virtual ~Backend() = default;

  // New memory, zeroed, aligned to 64 bytes at least. RESOURCE_EXHAUSTED naming the bytes.
  virtual absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) = 0;

  // Allocates memory that another process writes through its handle; read-only for operations and uploads.
  // Its pages are populated. UNIMPLEMENTED if the device does not support it.
  virtual absl::StatusOr<SharedBuffer> AllocateShared(uint64_t bytes) = 0;

  // Registers host memory, mapped in this process until Free(), for reading. UNIMPLEMENTED if the device
  // cannot reach it.
  virtual absl::StatusOr<BufferId> Import(absl::Span<const std::byte> memory) = 0;

  // Frees memory, or forgets an import. NOT_FOUND if `buffer` does not live. All enqueued work that uses it
  // must be known to be done.
  virtual absl::Status Free(BufferId buffer) = 0;

  // Direct access where the host can see the buffer (always on host and reference; kStaging on every device);
  // nullptr if not, or if [ref, ref + bytes) is outside. Call it, and read, once an Event after the last
  // writer is known to be done; write once an Event after the last reader is.
  virtual const std::byte* HostRead(BufferRef ref, uint64_t bytes) = 0;
  // The same for writing; nullptr for imported memory too.
  virtual std::byte* HostWrite(BufferRef ref, uint64_t bytes) = 0;

  // The backend's only queue.
  virtual Queue& queue() = 0;

  // Brackets a step: workers spin between the two and sleep outside. Call EndStep/BeginStep around a wait for
  // bytes too. Work outside of a step is correct but wakes the workers for every region.
  virtual void BeginStep() = 0;
  virtual void EndStep() = 0;

  // Sets when masked experts are computed densely (ops.h); replaces earlier entries. Experts
  // without an entry of their kind use SparseSwitch's defaults. INVALID_ARGUMENT above kMaxSparseSwitches. A
  // device without such a choice ignores it.
  virtual absl::Status SetSparseSwitches(absl::Span<const SparseSwitchEntry> /*entries*/) {
    return absl::OkStatus();
  }

  virtual BackendCounters Counters() const = 0;
  // One line for the start-up log: device, instruction set, threads.
  virtual std::string Describe() const = 0;
};

// Instruction set of the host backend. kBest is the best that the CPU and the system support.
enum class CpuIsa : uint8_t { kBest = 0, kAvx2 = 1, kAvx512 = 2, kAvx2Vnni = 3 };

// Creates the scalar oracle: one thread, slow, ARITHMETIC.md in code.
absl::StatusOr<std::unique_ptr<Backend>> CreateReferenceBackend(const BackendLimits& limits);

// Creates the CPU backend. `threads` >= 1 counts the calling thread; 0: the CPUs in the affinity mask.
// FAILED_PRECONDITION naming the missing instructions when the CPU lacks AVX2, FMA and F16C, or what `isa`
// asks for.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const BackendLimits& limits, uint32_t threads,
                                                          CpuIsa isa = CpuIsa::kBest);

// True if this CPU runs `isa` (kBest: any instruction set).
bool CpuIsaSupported(CpuIsa isa);

// The host backend with its threads pinned.
//
// Thread safety: as backend.h's makers.

// CreateCpuBackend() with as many threads as `cpus`; thread i runs on cpus[i] alone. The calling thread is
// thread 0 and is pinned from its first step on. Results are the same to the bit. Errors of
// CreateCpuBackend(); INVALID_ARGUMENT naming a CPU that this process may not use.
absl::StatusOr<std::unique_ptr<Backend>> CreatePinnedCpuBackend(const BackendLimits& limits,
                                                                absl::Span<const uint32_t> cpus,
                                                                CpuIsa isa = CpuIsa::kBest);

}  // namespace sluice
