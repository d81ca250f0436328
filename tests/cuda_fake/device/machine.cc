#include "tests/cuda_fake/device/machine.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::cuda_fake {
namespace {

std::unique_ptr<Machine>& TheMachine() {
  static auto* const machine = new std::unique_ptr<Machine>;
  return *machine;
}

cudaError_t ErrorOf(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return cudaSuccess;
    case Fault::kIllegalAddress:
      return cudaErrorIllegalAddress;
    case Fault::kMisaligned:
      return cudaErrorMisalignedAddress;
    case Fault::kIllegalInstruction:
      return cudaErrorIllegalInstruction;
    case Fault::kLaunchFailure:
      return cudaErrorLaunchFailure;
    case Fault::kAssert:
      return cudaErrorAssert;
  }
  return cudaErrorUnknown;
}

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace

void ResetFake(const FakeOptions& options) { Machine::Reset(options); }
std::vector<Report> TakeReports() { return Machine::Get().reports.Take(); }
FakeCounters CountersOfFake() {
  FakeCounters counters = Machine::Get().counters;
  counters.allocations = Machine::Get().memory.allocations();
  return counters;
}

std::vector<KernelCounts> TakeKernelCounts() { return std::exchange(Machine::Get().kernel_counts, {}); }

Machine::Machine(const FakeOptions& options)
    : options(options),
      memory(options.memory_bytes),
      operations(options.seed, options.questions),
      modules(options.capability, &memory) {
  ShowDeviceToLibraries();
  memory.host_watch = &host_uses;
  operations.on_host_knows = [this] {
    host_uses.HostHasLearnt([this](OperationId id) { return operations.IsKnown(id); },
                            [this](OperationId id) { return operations.NameOf(id); }, &reports);
    for (PeerOrder* const order : peers) {
      order->HostHasLearnt();
    }
  };
}

std::recursive_mutex& MachineLock::TheMutex() {
  static auto* const mutex = new std::recursive_mutex;
  return *mutex;
}

cudaError_t& Machine::LastError() {
  static thread_local cudaError_t error = cudaSuccess;
  return error;
}

Machine& Machine::Get() {
  if (TheMachine() == nullptr) {
    Reset({});
  }
  return *TheMachine();
}

void Machine::Reset(const FakeOptions& options) {
  TheMachine() = nullptr;
  LastError() = cudaSuccess;
  TheMachine() = std::make_unique<Machine>(options);
}

cudaError_t Machine::Enter() {
  // "The first time a CUDA runtime function that needs it is called" the context is made (Programming Guide,
  // initialization); on a GPU that nobody holds that takes seconds.
  usleep(static_cast<useconds_t>(1000 * std::exchange(options.context_ms, 0)));
  if (sticky_ == cudaSuccess) {
    operations.Turn();
  }
  return sticky_;
}

cudaError_t Machine::Leave(cudaError_t error) {
  if (sticky_ != cudaSuccess) {
    return sticky_;
  }
  if (error != cudaSuccess && error != cudaErrorNotReady) {
    LastError() = error;
  }
  return error;
}

cudaError_t Machine::Misuse(cudaError_t error, std::string text) {
  const std::string place = text;
  reports.Add(Finding::kApi, place, std::move(text));
  return Leave(error);
}

cudaError_t Machine::TakeError() {
  const cudaError_t error = PeekError();
  LastError() = cudaSuccess;
  return error;
}

bool Machine::StreamOf(cudaStream_t stream, uint32_t* number) const {
  const uint64_t handle = AddressOf(stream);
  *number = handle <= AddressOf(cudaStreamLegacy) ? Operations::kLegacy : static_cast<uint32_t>(handle >> 8);
  return (*number == Operations::kLegacy && handle <= AddressOf(cudaStreamLegacy)) ||
         (*number != Operations::kLegacy && operations.IsStream(*number));
}

FakeEvent* Machine::EventOf(cudaEvent_t event) {
  const uint64_t handle = AddressOf(event) >> 8;
  return handle == 0 || handle > events_.size() || !events_[handle - 1]->alive ? nullptr
                                                                               : events_[handle - 1].get();
}

cudaEvent_t Machine::NewEvent() {
  events_.push_back(std::make_unique<FakeEvent>());
  return reinterpret_cast<cudaEvent_t>(events_.size() << 8);
}

void Machine::Fail(Fault fault) {
  if (fault != Fault::kNone && sticky_ == cudaSuccess) {
    sticky_ = ErrorOf(fault);
    operations.Drop();
    host_uses.Forget();
    for (PeerOrder* const order : peers) {
      order->Forget();
    }
  }
}

// Dynamic shared memory a block may have (Programming Guide, Compute Capabilities): 64, 163, 99 and 227 KiB.
uint64_t Machine::SharedLimit() const {
  switch (options.capability) {
    case 75:
      return 64 << 10;
    case 80:
    case 87:
      return 163 << 10;
    case 86:
    case 89:
    case 120:
      return 99 << 10;
    default:
      return 227 << 10;
  }
}

cudaError_t Machine::AllowShared(const void* stub, uint64_t bytes) {
  const absl::StatusOr<const Program*> program = modules.Kernel(stub);
  if (!program.ok()) {
    return Misuse(cudaErrorInvalidDeviceFunction, std::string(program.status().message()));
  }
  if (bytes + (*program)->static_shared > SharedLimit()) {
    return Leave(cudaErrorInvalidValue);
  }
  allowed_shared_[stub] = bytes;
  return Leave(cudaSuccess);
}

// Limits of Programming Guide, Compute Capabilities: 1024 threads a block, z up to 64, grid x up to 2^31 - 1,
// y and z up to 65535; 48 KiB of shared memory a block unless cudaFuncSetAttribute has allowed more.
cudaError_t Machine::CheckLaunch(const Program& program, Dim grid, Dim block, uint64_t shared,
                                 const void* stub) {
  constexpr uint64_t kDefaultShared = 48 << 10;
  const auto allowed = allowed_shared_.find(stub);
  const uint64_t most = allowed == allowed_shared_.end()
                            ? kDefaultShared
                            : std::max(kDefaultShared, allowed->second + program.static_shared);
  if (block.Count() == 0 || block.Count() > 1024 || block.z > 64 || grid.Count() == 0 ||
      grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  if (shared + program.static_shared > most) {
    return cudaErrorInvalidValue;
  }
  // "If a kernel is launched with more threads than its __launch_bounds__, the launch fails" (Programming
  // Guide).
  return program.kernel->max_threads != 0 && block.Count() > program.kernel->max_threads
             ? cudaErrorInvalidValue
             : cudaSuccess;
}

cudaError_t Machine::Launch(const void* stub, Dim grid, Dim block, void** args, uint64_t shared,
                            uint32_t stream) {
  const absl::StatusOr<const Program*> program = modules.Kernel(stub);
  if (!program.ok()) {
    reports.Add(Finding::kUnknown, program.status().message(), std::string(program.status().message()));
    return Leave(cudaErrorInvalidDeviceFunction);
  }
  if (const cudaError_t error = CheckLaunch(**program, grid, block, shared, stub); error != cudaSuccess) {
    return Leave(error);
  }
  LaunchSpec spec;
  spec.program = *program;
  spec.grid = grid;
  spec.block = block;
  spec.dynamic_shared = shared;
  // "Kernel arguments are copied at the launch" (Programming Guide, __global__ function parameters).
  spec.params.resize((*program)->kernel->param_bytes);
  for (size_t i = 0; i < (*program)->kernel->params.size(); ++i) {
    const Variable& param = (*program)->kernel->params[i];
    std::memcpy(spec.params.data() + param.offset, args[i], param.bytes);
  }
  spec.regions = &memory;
  spec.buffers = &buffers_;
  spec.reports = &reports;
  spec.counts = options.counts;
  Work work{Work::Kind::kKernel, absl::StrCat("kernel ", (*program)->name), {}};
  work.steps = [this, spec](OperationId id) -> Steps { return {[this, spec, id] { Run(spec, id); }}; };
  // "A kernel launch is asynchronous; errors of its execution are returned by later calls."
  return Leave(Submit(stream, std::move(work)));
}

cudaError_t Machine::Submit(uint32_t stream, Work work, OperationId* id) {
  if (id != nullptr) {
    *id = 0;
  }
  // "The operation would have resulted in a disallowed implicit dependency on a current capture sequence from
  // cudaStreamLegacy" (Runtime API, cudaErrorStreamCaptureImplicit).
  if (stream == Operations::kLegacy &&
      operations.AnyBlocking([&](uint32_t s) { return captures.IsCaptured(s); })) {
    return captures.InvalidateAll(cudaErrorStreamCaptureImplicit);
  }
  if (captures.IsCaptured(stream)) {
    return captures.Append(stream, std::move(work));
  }
  const OperationId next = operations.NextId();
  operations.Submit(stream, std::move(work.name), work.steps(next));
  if (id != nullptr) {
    *id = next;
  }
  return sticky_;
}

bool Machine::DropsWait(const char* call, OperationId operation) {
  if (operation == 0 || operations.IsKnown(operation)) {
    waited_.erase(operation);
    return false;
  }
  if (options.drop_call == call) {
    return true;
  }
  if (waited_.insert(operation).second && ++counters.waits == options.drop_wait) {
    dropped_ = operation;
    std::fprintf(stderr, "cuda_fake: dropped %s of %s\n", call, operations.NameOf(operation).c_str());
  }
  return operation == dropped_;
}

// A record in a captured stream says where the capture is; one that is external is a part of the graph.
cudaError_t Machine::Record(FakeEvent* event, uint32_t stream, bool external) {
  if (captures.IsCaptured(stream) && !external) {
    event->point = captures.PointOf(stream);
    return cudaSuccess;
  }
  event->point = {};
  Work work{Work::Kind::kEvent, "event record", {}};
  work.steps = [this, event](OperationId id) -> Steps {
    event->recorded = id;
    return {[this, event] { event->instructions = counters.warp_instructions; }};
  };
  return Submit(stream, std::move(work));
}

void Machine::Run(LaunchSpec spec, OperationId operation) {
  spec.scope = operations.BeginScope(operation);
  spec.seed = options.seed < 2 ? options.seed : options.seed * 1000003 + counters.launches;
  Execution execution(spec);
  const Fault fault = execution.Run();
  ++counters.launches;
  counters.warp_instructions += execution.counts().warp_instructions;
  if (options.counts) {
    kernel_counts.push_back({spec.program->name, spec.grid.Count(), spec.block.Count(), execution.counts()});
  }
  Fail(fault);
}

}  // namespace sluice::cuda_fake
