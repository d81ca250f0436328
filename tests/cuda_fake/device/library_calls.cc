#include "tests/cuda_fake/device/library_calls.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/device/machine.h"

namespace sluice::cuda_fake {
namespace {

class ThisDevice final : public LibraryDevice {
 public:
  cudaError_t Submit(cudaStream_t stream, LibraryCall call) override {
    const MachineLock lock;
    Machine& machine = Machine::Get();
    uint32_t number = 0;
    if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
      return error;
    }
    if (!machine.StreamOf(stream, &number)) {
      return machine.Misuse(cudaErrorInvalidResourceHandle,
                            absl::StrCat(call.name, " in a stream that does not live"));
    }
    return machine.CallLibrary(number, std::move(call));
  }
  void Report(const std::string& text) override {
    const MachineLock lock;
    Machine::Get().Misuse(cudaErrorInvalidValue, text);
  }
};

}  // namespace

void ShowDeviceToLibraries() {
  static const bool shown = [] {
    static auto* const device = new ThisDevice;
    const auto address = reinterpret_cast<uintptr_t>(static_cast<LibraryDevice*>(device));
    return setenv(kLibraryDeviceVariable, absl::StrCat(getpid(), ":", address).c_str(), 1) == 0;
  }();
  static_cast<void>(shown);
}

cudaError_t Machine::CallLibrary(uint32_t stream, LibraryCall call) {
  for (const LibraryMatrix& matrix : call.matrices) {
    const auto address = reinterpret_cast<uint64_t>(matrix.address);
    const uint64_t bytes = matrix.rows == 0 ? 0 : (matrix.rows - 1) * matrix.stride + matrix.row_bytes;
    const Region* const region = memory.Find(address);
    if (region == nullptr || region->shadow == nullptr || address + bytes > region->base + region->size) {
      return Misuse(cudaErrorInvalidValue,
                    absl::StrCat(call.name, ": a matrix of ", bytes,
                                 " bytes is no device memory: ", memory.Near(address)));
    }
  }
  if (captures.IsCaptured(stream)) {
    return Misuse(captures.Invalidate(stream, cudaErrorStreamCaptureUnsupported),
                  absl::StrCat(call.name, " in a captured stream"));
  }
  Work work{Work::Kind::kKernel, call.name, {}};
  work.steps = [this, call = std::move(call)](OperationId id) -> Steps {
    return {[this, call, id] {
      std::vector<uint8_t*> places;
      for (const LibraryMatrix& matrix : call.matrices) {
        const auto address = reinterpret_cast<uint64_t>(matrix.address);
        const AccessKind kind = matrix.written ? AccessKind::kWrite : AccessKind::kRead;
        const bool whole = matrix.stride == matrix.row_bytes;
        const uint64_t pieces = whole ? 1 : matrix.rows;
        const uint64_t bytes = whole ? matrix.rows * matrix.row_bytes : matrix.row_bytes;
        for (uint64_t piece = 0; piece < pieces; ++piece) {
          uint8_t* const place = BytesAt(address + piece * matrix.stride, bytes, kind, id);
          if (place == nullptr) {
            return;  // the device has failed
          }
          if (piece == 0) {
            places.push_back(place);
          }
        }
      }
      call.run(places);
    }};
  };
  ++counters.library_calls;
  return Leave(Submit(stream, std::move(work)));
}

}  // namespace sluice::cuda_fake
