// The Runtime API's calls on streams, events, devices and errors.
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/device/machine.h"

using sluice::cuda_fake::FakeEvent;
using sluice::cuda_fake::Machine;
using sluice::cuda_fake::MachineLock;
using sluice::cuda_fake::Operations;

namespace {

cudaError_t BadStream(Machine& machine) {
  return machine.Misuse(cudaErrorInvalidResourceHandle, "a stream that does not live");
}
cudaError_t BadEvent(Machine& machine) {
  return machine.Misuse(cudaErrorInvalidResourceHandle, "an event that does not live");
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  const uint64_t number = machine.operations.NewStream((flags & cudaStreamNonBlocking) == 0);
  *stream = reinterpret_cast<cudaStream_t>(number << 8);
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  const MachineLock lock;
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  uint32_t number = 0;
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (!machine.StreamOf(stream, &number) || number == Operations::kLegacy) {
    return BadStream(machine);
  }
  machine.operations.DropStream(number);
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  uint32_t number = 0;
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (!machine.StreamOf(stream, &number)) {
    return BadStream(machine);
  }
  if (machine.captures.IsCaptured(number)) {
    return machine.Leave(machine.captures.Invalidate(number, cudaErrorStreamCaptureUnsupported));
  }
  if (!machine.DropsWait("cudaStreamSynchronize", machine.operations.Last(number))) {
    machine.operations.FinishStream(number);
  }
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  uint32_t number = 0;
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (!machine.StreamOf(stream, &number)) {
    return BadStream(machine);
  }
  if (machine.captures.IsCaptured(number)) {
    return machine.Leave(machine.captures.Invalidate(number, cudaErrorStreamCaptureUnsupported));
  }
  const auto last = machine.operations.Last(number);
  if (!machine.operations.IsDone(last)) {
    machine.operations.Poll(last);
    return machine.Leave(cudaErrorNotReady);
  }
  machine.operations.HostKnows(last);
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  *event = machine.NewEvent();
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  FakeEvent* const known = machine.EventOf(event);
  if (known == nullptr) {
    return BadEvent(machine);
  }
  known->alive = false;
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  const bool external = (flags & cudaEventRecordExternal) != 0;
  const MachineLock lock;
  Machine& machine = Machine::Get();
  uint32_t number = 0;
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  FakeEvent* const known = machine.EventOf(event);
  if (known == nullptr || !machine.StreamOf(stream, &number)) {
    return known == nullptr ? BadEvent(machine) : BadStream(machine);
  }
  return machine.Leave(machine.Record(known, number, external));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

// "Computes the elapsed time between two events (in milliseconds ...). If either event has not been recorded
// ... cudaErrorInvalidResourceHandle; ... if cudaEventQuery() would return cudaErrorNotReady on at least one
// of the events, cudaErrorNotReady" (Runtime API). A warp's instruction takes a nanosecond here: an order of
// time, never a speed.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  const FakeEvent* const first = machine.EventOf(start);
  const FakeEvent* const last = machine.EventOf(end);
  if (first == nullptr || last == nullptr || first->recorded == 0 || last->recorded == 0) {
    return BadEvent(machine);
  }
  if (!machine.operations.IsDone(first->recorded) || !machine.operations.IsDone(last->recorded)) {
    return machine.Leave(cudaErrorNotReady);
  }
  *milliseconds =
      static_cast<float>(static_cast<double>(last->instructions) - static_cast<double>(first->instructions)) *
      1e-6f;
  return machine.Leave(cudaSuccess);
}

// "cudaStreamWaitEvent: makes all future work submitted to stream wait for all work captured in event"; what
// a later cudaEventRecord captures is no part of it. "If cudaEventRecord has not been called on event, this
// call acts as if the record has already completed, and so is a functional no-op" (Runtime API).
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  uint32_t number = 0;
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  const FakeEvent* const known = machine.EventOf(event);
  if (known == nullptr || !machine.StreamOf(stream, &number)) {
    return known == nullptr ? BadEvent(machine) : BadStream(machine);
  }
  if (machine.captures.IsCaptured(number) || known->point.capture != 0) {
    return machine.Leave(machine.captures.Wait(number, known->point));
  }
  machine.operations.WaitFor(number, known->recorded);
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  const FakeEvent* const known = machine.EventOf(event);
  if (known == nullptr) {
    return BadEvent(machine);
  }
  if (known->point.capture != 0) {
    return machine.Leave(machine.captures.InvalidateAll(cudaErrorCapturedEvent));
  }
  if (machine.DropsWait("cudaEventQuery", known->recorded)) {
    return machine.Leave(cudaSuccess);
  }
  if (!machine.operations.IsDone(known->recorded)) {
    machine.operations.Poll(known->recorded);
    return machine.Leave(cudaErrorNotReady);
  }
  if (known->recorded != 0 && !machine.operations.IsKnown(known->recorded) && !machine.operations.Answers()) {
    return machine.Leave(cudaErrorNotReady);
  }
  machine.operations.HostKnows(known->recorded);
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  const FakeEvent* const known = machine.EventOf(event);
  if (known == nullptr) {
    return BadEvent(machine);
  }
  if (known->point.capture != 0) {
    return machine.Leave(machine.captures.InvalidateAll(cudaErrorCapturedEvent));
  }
  if (!machine.DropsWait("cudaEventSynchronize", known->recorded)) {
    machine.operations.Finish(known->recorded);
  }
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize() {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = machine.ForbidInCapture(); error != cudaSuccess) {
    return machine.Leave(error);
  }
  machine.operations.FinishAll();
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int* count) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  *count = machine.options.devices;
  const cudaError_t error = machine.Enter();
  return error == cudaSuccess && *count == 0 ? machine.Leave(cudaErrorNoDevice) : error;
}

cudaError_t cudaGetDevice(int* device) {
  const MachineLock lock;
  *device = 0;
  return Machine::Get().Enter();
}

cudaError_t cudaSetDevice(int device) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  const cudaError_t error = machine.Enter();
  return error != cudaSuccess ? error : machine.Leave(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (device != 0) {
    return machine.Leave(cudaErrorInvalidDevice);
  }
  std::memset(properties, 0, sizeof(*properties));
  std::snprintf(properties->name, sizeof(properties->name), "fake CUDA device");
  properties->major = machine.options.capability / 10;
  properties->minor = machine.options.capability % 10;
  properties->totalGlobalMem = machine.memory.total();
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->multiProcessorCount = 4;
  properties->unifiedAddressing = 1;
  std::snprintf(properties->uuid.bytes, sizeof(properties->uuid.bytes), "fake GPU 0");
  return machine.Enter();
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (device != 0) {
    return machine.Leave(cudaErrorInvalidDevice);
  }
  if (attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin) {
    return machine.Misuse(cudaErrorInvalidValue, "an attribute of devices that the fake does not know");
  }
  *value = static_cast<int>(machine.SharedLimit());
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaGetLastError() {
  const MachineLock lock;
  return Machine::Get().TakeError();
}
cudaError_t cudaPeekAtLastError() {
  const MachineLock lock;
  return Machine::Get().PeekError();
}

const char* cudaGetErrorName(cudaError_t error) {
  const MachineLock lock;
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDeviceFunction:
      return "cudaErrorInvalidDeviceFunction";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorMisalignedAddress:
      return "cudaErrorMisalignedAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    default:
      return "a CUDA error";
  }
}

const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

}  // extern "C"
