#include "kernels/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "common/base/status.h"

namespace sluice {
namespace {

// Smaller allocations get no huge pages, which would be mostly padding.
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
// Available since Linux 5.14 and 6.1; best effort on older kernels.
constexpr int kPopulateWrite = 23;
constexpr int kCollapse = 25;

}  // namespace

MappedArray::~MappedArray() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

MappedArray::MappedArray(MappedArray&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedArray& MappedArray::operator=(MappedArray&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

absl::StatusOr<MappedArray> MappedArray::Create(uint64_t bytes, const char* what) {
  MappedArray array;
  if (bytes == 0) {
    return array;
  }
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", what, ": ", bytes, " bytes"));
  }
  if (bytes >= kHugePageBytes) {
    madvise(data, bytes, MADV_HUGEPAGE);  // best effort: fails where huge pages are off
  }
  array.data_ = static_cast<std::byte*>(data);
  array.bytes_ = bytes;
  return array;
}

absl::StatusOr<BufferId> HostMemory::Allocate(uint64_t bytes) {
  if (bytes == 0) {
    return absl::InvalidArgumentError("a buffer of 0 bytes");
  }
  Entry entry;
  ASSIGN_OR_RETURN(entry.owned, MappedArray::Create(bytes, "a buffer"));
  entry.base = entry.owned.data();
  entry.bytes = bytes;
  entry.writable = true;
  entries_.push_back(std::move(entry));
  return static_cast<BufferId>(entries_.size());
}

absl::StatusOr<BufferId> HostMemory::AllocateShared(uint64_t bytes, int* fd) {
  if (bytes == 0) {
    return absl::InvalidArgumentError("a shared buffer of 0 bytes");
  }
  Entry entry;
  ASSIGN_OR_RETURN(entry.shared, CreateSharedMemory("sluice-slab", bytes, PeerAccess::kReadWrite));
  const Mapping& map = entry.shared.map;
  if (madvise(map.data(), map.bytes(), kPopulateWrite) != 0 && errno != EINVAL) {
    return ErrnoToStatus(errno, absl::StrCat("device memory of ", bytes, " bytes"));
  }
  madvise(map.data(), map.bytes(), kCollapse);  // huge pages if there are any
  entry.base = map.data();
  entry.bytes = map.bytes();
  *fd = entry.shared.fd.get();
  entries_.push_back(std::move(entry));
  return static_cast<BufferId>(entries_.size());
}

absl::StatusOr<BufferId> HostMemory::Import(absl::Span<const std::byte> memory) {
  if (memory.data() == nullptr || memory.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("import of ", memory.size(), " bytes without a base or a size"));
  }
  Entry entry;
  entry.base = memory.data();
  entry.bytes = memory.size();
  entries_.push_back(std::move(entry));
  return static_cast<BufferId>(entries_.size());
}

absl::Status HostMemory::Free(BufferId buffer) {
  if (buffer == kNoBuffer || buffer > entries_.size() || entries_[buffer - 1].base == nullptr) {
    return absl::NotFoundError(absl::StrCat("buffer ", buffer, " does not live"));
  }
  entries_[buffer - 1] = Entry();
  return absl::OkStatus();
}

const HostMemory::Entry* HostMemory::Find(BufferRef ref, uint64_t bytes) const {
  if (ref.buffer == kNoBuffer || ref.buffer > entries_.size()) {
    return nullptr;
  }
  const Entry& entry = entries_[ref.buffer - 1];
  const bool inside = ref.offset <= entry.bytes && bytes <= entry.bytes - ref.offset;
  return entry.base != nullptr && inside ? &entry : nullptr;
}

const std::byte* HostMemory::Read(BufferRef ref, uint64_t bytes) const {
  const Entry* entry = Find(ref, bytes);
  return entry == nullptr ? nullptr : entry->base + ref.offset;
}

std::byte* HostMemory::Write(BufferRef ref, uint64_t bytes) const {
  const Entry* entry = Find(ref, bytes);
  return entry == nullptr || !entry->writable ? nullptr : entry->owned.data() + ref.offset;
}

absl::Status HostMemory::Explain(BufferRef ref, uint64_t bytes, bool writing, const char* what) const {
  if (ref.buffer == kNoBuffer || ref.buffer > entries_.size() || entries_[ref.buffer - 1].base == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": buffer ", ref.buffer, " does not live"));
  }
  const Entry& entry = entries_[ref.buffer - 1];
  if (Find(ref, bytes) == nullptr) {
    return absl::OutOfRangeError(absl::StrCat(what, ": bytes ", ref.offset, " + ", bytes, " in buffer ",
                                              ref.buffer, " of ", entry.bytes, " bytes"));
  }
  if (writing && !entry.writable) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": buffer ", ref.buffer, " is read-only"));
  }
  return absl::InternalError(absl::StrCat(what, ": buffer ", ref.buffer, " is accessible"));
}

}  // namespace sluice
