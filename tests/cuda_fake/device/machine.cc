#include "tests/cuda_fake/device/machine.h"

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
      operations(options.seed),
      modules(options.capability, &memory) {}

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
  ++calls_;
  if (options.on_call) {
    options.on_call(calls_);
  }
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

uint8_t* Machine::BytesAt(uint64_t address, uint64_t bytes, AccessKind kind, OperationId operation) {
  const Region* const region = memory.Find(address);
  if (region == nullptr || address + bytes > region->base + region->size) {
    reports.Add(Finding::kOutOfBounds, absl::StrCat(address),
                absl::StrCat("a copy or memset of ", bytes, " bytes runs at ", memory.Near(address)));
    Fail(Fault::kIllegalAddress);
    return nullptr;
  }
  uint8_t* const place = region->bytes + (address - region->base);
  if (operation == 0 || region->shadow == nullptr) {
    return place;
  }
  const Shadow::Conflict conflict =
      region->shadow->Access(address - region->base, bytes, kind, operations.BeginScope(operation), 0);
  const std::string name = operations.NameOf(operation);
  if (conflict.kind == Shadow::Conflict::Kind::kUninitialised) {
    reports.Add(Finding::kUninitialised, name,
                absl::StrCat(name, " reads bytes of ", region->name, " that nothing wrote"));
  } else if (conflict.kind != Shadow::Conflict::Kind::kNone) {
    const std::string other = operations.NameOf(conflict.operation);
    reports.Add(Finding::kUnordered, absl::StrCat(name, "|", other),
                absl::StrCat(name, " is not ordered after ", other, ", which ",
                             conflict.other_wrote ? "wrote" : "read", " the same bytes of ", region->name));
  }
  return place;
}

void Machine::Fail(Fault fault) {
  if (fault != Fault::kNone && sticky_ == cudaSuccess) {
    sticky_ = ErrorOf(fault);
    operations.Drop();
  }
}

// Host to device in two steps, so that bytes which are read too early are garbage; the other way the same.
// Behaviour towards the host: Runtime API, "API synchronization behavior".
cudaError_t Machine::Copy(void* to, const void* from, uint64_t bytes, cudaMemcpyKind kind, uint32_t stream,
                          bool async) {
  if (bytes == 0) {
    return Leave(cudaSuccess);
  }
  const Region* const target = memory.Find(AddressOf(to));
  const Region* const source = memory.Find(AddressOf(from));
  const bool to_device = target != nullptr && target->shadow != nullptr;
  const bool from_device = source != nullptr && source->shadow != nullptr;
  const cudaMemcpyKind actual = to_device ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                                          : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  if (kind != cudaMemcpyDefault && kind != actual) {
    return Misuse(cudaErrorInvalidValue,
                  absl::StrCat("copy of kind ", kind, " between addresses of kind ", actual, ": to ",
                               memory.Near(AddressOf(to)), ", from ", memory.Near(AddressOf(from))));
  }
  for (const auto& [region, address] : {std::pair{target, AddressOf(to)}, {source, AddressOf(from)}}) {
    if (region != nullptr && (address + bytes > region->base + region->size || !region->readable)) {
      return Misuse(cudaErrorInvalidValue,
                    absl::StrCat("copy of ", bytes, " bytes at ", memory.Near(address)));
    }
  }
  const bool pinned = (to_device || target != nullptr) && (from_device || source != nullptr);
  ++counters.copies;
  counters.pageable_copies += async && !pinned ? 1 : 0;
  // "The pageable buffer has been copied to the staging memory" when the call returns.
  auto staged = std::make_shared<std::vector<uint8_t>>();
  if (to_device && source == nullptr) {
    staged->assign(static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + bytes);
  }
  const OperationId id = operations.NextId();
  const auto fill = [=, this] {
    uint8_t* const there =
        to_device ? BytesAt(AddressOf(to), bytes, AccessKind::kWrite, 0) : static_cast<uint8_t*>(to);
    if (there != nullptr) {
      std::memset(there, kPoison, bytes);
    }
  };
  const auto finish = [=, this] {
    const uint8_t* const source_bytes = from_device ? BytesAt(AddressOf(from), bytes, AccessKind::kRead, id)
                                        : staged->empty() ? static_cast<const uint8_t*>(from)
                                                          : staged->data();
    uint8_t* const there =
        to_device ? BytesAt(AddressOf(to), bytes, AccessKind::kWrite, id) : static_cast<uint8_t*>(to);
    if (source_bytes != nullptr && there != nullptr) {
      std::memmove(there, source_bytes, bytes);
    }
  };
  const std::string name = absl::StrCat("copy of ", bytes, " bytes ",
                                        actual == cudaMemcpyHostToDevice   ? "to the device"
                                        : actual == cudaMemcpyDeviceToHost ? "to the host"
                                                                           : "on the device");
  if (from_device && to_device) {
    operations.Submit(stream, name, {finish});
  } else {
    operations.Submit(stream, name, {fill, finish});
  }
  // Device to pageable host memory always, pinned memory if the call is not asynchronous: done when it
  // returns.
  const bool waits = from_device && to_device ? false
                     : from_device            ? !async || target == nullptr
                                              : !async && pinned;
  if (waits || actual == cudaMemcpyHostToHost) {
    operations.Finish(id);
  }
  return Leave(sticky_);
}

cudaError_t Machine::Set(void* to, int value, uint64_t bytes, uint32_t stream) {
  const Region* const target = memory.Find(AddressOf(to));
  if (bytes == 0) {
    return Leave(cudaSuccess);
  }
  if (target == nullptr || target->shadow == nullptr || AddressOf(to) + bytes > target->base + target->size) {
    return Misuse(cudaErrorInvalidValue,
                  absl::StrCat("memset of ", bytes, " bytes at ", memory.Near(AddressOf(to))));
  }
  const OperationId id = operations.NextId();
  operations.Submit(stream, absl::StrCat("memset of ", bytes, " bytes"), {[=, this] {
                      uint8_t* const there = BytesAt(AddressOf(to), bytes, AccessKind::kWrite, id);
                      if (there != nullptr) {
                        std::memset(there, value, bytes);
                      }
                    }});
  return Leave(sticky_);
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
  const OperationId id = operations.NextId();
  spec.regions = &memory;
  spec.room = &room_;
  spec.reports = &reports;
  spec.counts = options.counts;
  spec.seed = options.seed < 2 ? options.seed : options.seed * 1000003 + launches_;
  ++launches_;
  operations.Submit(stream, absl::StrCat("kernel ", (*program)->name), {[this, spec, id] { Run(spec, id); }});
  // "A kernel launch is asynchronous; errors of its execution are returned by later calls."
  return sticky_ != cudaSuccess ? sticky_ : Leave(cudaSuccess);
}

void Machine::Run(LaunchSpec spec, OperationId operation) {
  spec.scope = operations.BeginScope(operation);
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
