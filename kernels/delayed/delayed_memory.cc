#include "kernels/delayed/delayed_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice {

void DelayedMemory::Add(BufferId buffer, std::byte* device, uint64_t bytes, Kind kind) {
  if (buffers_.size() < buffer) {
    buffers_.resize(buffer);
  }
  Buffer& added = buffers_[buffer - 1];
  added.device = device;
  added.bytes = bytes;
  added.kind = kind;
  if (kind == Kind::kStaging) {
    added.host = std::make_unique<std::byte[]>(bytes);
  }
}

std::vector<Access> DelayedMemory::TakeAccesses() { return std::exchange(noted_accesses_, {}); }

const DelayedMemory::Buffer* DelayedMemory::Find(BufferRef ref, uint64_t bytes) const {
  if (!Lives(ref.buffer)) {
    return nullptr;
  }
  const Buffer& buffer = buffers_[ref.buffer - 1];
  return ref.offset <= buffer.bytes && bytes <= buffer.bytes - ref.offset ? &buffer : nullptr;
}

std::byte* DelayedMemory::Host(BufferRef ref, uint64_t bytes) const {
  const Buffer* buffer = Find(ref, bytes);
  return buffer == nullptr || buffer->host == nullptr ? nullptr : buffer->host.get() + ref.offset;
}

const std::byte* DelayedMemory::Read(BufferRef ref, uint64_t bytes) const {
  const Buffer* buffer = Find(ref, bytes);
  if (buffer == nullptr) {
    return nullptr;
  }
  noted_accesses_.push_back({ref.buffer, ref.offset, ref.offset + bytes, false});
  return buffer->device + ref.offset;
}

std::byte* DelayedMemory::Write(BufferRef ref, uint64_t bytes) const {
  const Buffer* buffer = Find(ref, bytes);
  if (buffer == nullptr || buffer->kind == Kind::kOthers) {
    return nullptr;
  }
  noted_accesses_.push_back({ref.buffer, ref.offset, ref.offset + bytes, true});
  return buffer->device + ref.offset;
}

absl::Status DelayedMemory::Explain(BufferRef ref, uint64_t bytes, bool writing, const char* what) const {
  if (!Lives(ref.buffer)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": buffer ", ref.buffer, " does not live"));
  }
  if (Find(ref, bytes) == nullptr) {
    return absl::OutOfRangeError(absl::StrCat(what, ": bytes ", ref.offset, " + ", bytes, " in buffer ",
                                              ref.buffer, " of ", buffers_[ref.buffer - 1].bytes, " bytes"));
  }
  return writing ? absl::FailedPreconditionError(absl::StrCat(what, ": buffer ", ref.buffer, " is read-only"))
                 : absl::InternalError(absl::StrCat(what, ": buffer ", ref.buffer, " is accessible"));
}

}  // namespace sluice
