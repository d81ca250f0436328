// Copies and memsets, and what the host may do with memory that they use.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/device/machine.h"

namespace sluice::cuda_fake {
namespace {

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

const char* DirectionOf(cudaMemcpyKind kind) {
  return kind == cudaMemcpyHostToDevice   ? "to the device"
         : kind == cudaMemcpyDeviceToHost ? "to the host"
         : kind == cudaMemcpyHostToHost   ? "on the host"
                                          : "on the device";
}

}  // namespace

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
  region->TellPeers(operation, address - region->base, bytes, kind != AccessKind::kRead);
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
  counters.copied_bytes += bytes;
  counters.pageable_copies += async && !pinned ? 1 : 0;
  // "The pageable buffer has been copied to the staging memory" when the call returns.
  auto staged = std::make_shared<std::vector<uint8_t>>();
  if (to_device && source == nullptr) {
    staged->assign(static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + bytes);
  }
  Work work{Work::Kind::kCopy, absl::StrCat("copy of ", bytes, " bytes ", DirectionOf(actual)), {}};
  if (captures.IsCaptured(stream) && !pinned) {
    return Misuse(captures.Invalidate(stream, cudaErrorStreamCaptureUnsupported),
                  absl::StrCat(work.name, ": of pageable memory in a captured stream"));
  }
  const bool takes = to_device && source != nullptr && !from_device;
  const bool brings = from_device && !to_device;
  work.steps = [=, this](OperationId id) -> Steps {
    if (takes) {
      host_uses.Takes(id, static_cast<const uint8_t*>(from), bytes);
    }
    const auto fill = [=, this] {
      uint8_t* const there =
          to_device ? BytesAt(AddressOf(to), bytes, AccessKind::kWrite, 0) : static_cast<uint8_t*>(to);
      if (!to_device) {
        host_uses.BeforeDevice(there, bytes, true);
      }
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
      if (source_bytes == nullptr || there == nullptr) {
        return;
      }
      if (takes) {
        host_uses.BeforeDevice(source_bytes, bytes, false);
      }
      if (brings) {
        host_uses.Brings(id, there, {source_bytes, source_bytes + bytes});
      } else {
        std::memmove(there, source_bytes, bytes);
      }
    };
    return from_device && to_device ? Steps{finish} : Steps{fill, finish};
  };
  OperationId id = 0;
  if (const cudaError_t error = Submit(stream, std::move(work), &id); error != cudaSuccess) {
    return Leave(error);
  }
  if (id != 0 && to_device) {
    // Its writes are announced now, so that an access before it has run is found too.
    target->TellPeers(id, AddressOf(to) - target->base, bytes, true);
  }
  // Device to pageable host memory always, pinned memory if the call is not asynchronous: done when it
  // returns.
  const bool waits = from_device && to_device ? false
                     : from_device            ? !async || target == nullptr
                                              : !async && pinned;
  if (id != 0 && (waits || actual == cudaMemcpyHostToHost)) {
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
  Work work{Work::Kind::kSet, absl::StrCat("memset of ", bytes, " bytes"), {}};
  work.steps = [=, this](OperationId id) -> Steps {
    return {[=, this] {
      uint8_t* const there = BytesAt(AddressOf(to), bytes, AccessKind::kWrite, id);
      if (there != nullptr) {
        std::memset(there, value, bytes);
      }
    }};
  };
  return Leave(Submit(stream, std::move(work)));
}

}  // namespace sluice::cuda_fake
