#include "tests/cuda_fake/device/memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::cuda_fake {
namespace {

constexpr uint64_t kWindowSize = uint64_t{256} << 30;
// Nothing lies within this behind an allocation; cudaMalloc's addresses are "aligned to at least 256 bytes"
// (Programming Guide, Device Memory Accesses).
constexpr uint64_t kGap = 4096;
constexpr uint64_t kAlignment = 256;

uint64_t AlignTo(uint64_t value, uint64_t align) { return (value + align - 1) / align * align; }

uint8_t* NewBytes(uint64_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<uint8_t*>(memory);
}

}  // namespace

DeviceMemory::DeviceMemory(uint64_t total) : total_(total) {
  void* const window =
      mmap(nullptr, kWindowSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (window == MAP_FAILED) {
    std::perror("cuda_fake: no room for device addresses");
    std::abort();
  }
  window_ = reinterpret_cast<uint64_t>(window);
  next_ = AlignTo(window_, kGranularity);
}

DeviceMemory::~DeviceMemory() {
  for (auto& [base, entry] : entries_) {
    Release(&entry);
  }
  munmap(reinterpret_cast<void*>(window_), kWindowSize);
}

void DeviceMemory::Release(Entry* entry) {
  if (entry->kind != Entry::Kind::kHost) {
    munmap(entry->region.bytes, entry->region.size);
  }
}

uint64_t DeviceMemory::Allocate(uint64_t bytes, absl::string_view what) {
  const uint64_t counted = AlignTo(bytes, kAlignment);
  uint8_t* const memory = counted <= total_ - used_ ? NewBytes(bytes) : nullptr;
  if (memory == nullptr) {
    return 0;
  }
  std::memset(memory, kPoison, bytes);
  used_ += counted;
  ++allocations_;
  const uint64_t base = next_;
  next_ = AlignTo(base + bytes + kGap, kAlignment);
  Entry& entry = entries_[base];
  entry.shadow = std::make_unique<Shadow>(bytes);
  entry.region = {base,    bytes, memory, entry.shadow.get(),
                  nullptr, true,  true,   absl::StrCat(what, " of ", bytes, " bytes"),
                  nullptr, 0};
  return base;
}

bool DeviceMemory::IsAllocation(uint64_t address) const {
  const auto it = entries_.find(address);
  return it != entries_.end() && it->second.kind == Entry::Kind::kAllocation;
}

bool DeviceMemory::Free(uint64_t address) {
  const auto it = entries_.find(address);
  if (it == entries_.end() || it->second.kind != Entry::Kind::kAllocation) {
    return false;
  }
  Release(&it->second);
  used_ -= AlignTo(it->second.region.size, kAlignment);
  --allocations_;
  freed_[address] = it->second.region.name;
  freed_bytes_[address] = it->second.region.size;
  entries_.erase(it);
  return true;
}

// In place, so that whoever looked up where the bytes are finds them there.
bool DeviceMemory::MoveToFile(uint64_t address, int fd, std::shared_ptr<void> owner, PeerWatch* peers) {
  const auto it = entries_.find(address);
  if (it == entries_.end() || it->second.kind != Entry::Kind::kAllocation) {
    return false;
  }
  Region& region = it->second.region;
  if (pwrite(fd, region.bytes, region.size, 0) != static_cast<ssize_t>(region.size) ||
      mmap(region.bytes, region.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    return false;
  }
  it->second.owner = std::move(owner);
  region.peers = peers;
  return true;
}

bool DeviceMemory::RegisterHost(void* base, uint64_t bytes) {
  const uint64_t begin = reinterpret_cast<uint64_t>(base);
  const auto after = entries_.lower_bound(begin);
  const bool overlaps = (after != entries_.end() && after->first < begin + bytes) || Find(begin) != nullptr;
  if (bytes == 0 || overlaps) {
    return false;
  }
  Entry& entry = entries_[begin];
  entry.kind = Entry::Kind::kHost;
  entry.region = {begin,
                  bytes,
                  static_cast<uint8_t*>(base),
                  nullptr,
                  host_watch,
                  true,
                  true,
                  absl::StrCat("registered host memory of ", bytes, " bytes"),
                  nullptr,
                  0};
  return true;
}

bool DeviceMemory::UnregisterHost(void* base) {
  const auto it = entries_.find(reinterpret_cast<uint64_t>(base));
  if (it == entries_.end() || it->second.kind != Entry::Kind::kHost) {
    return false;
  }
  entries_.erase(it);
  return true;
}

bool DeviceMemory::IsRegistered(const void* base, uint64_t bytes) const {
  const uint64_t begin = reinterpret_cast<uint64_t>(base);
  const Region* const region = Find(begin);
  return region != nullptr && region->shadow == nullptr && begin + bytes <= region->base + region->size;
}

uint64_t DeviceMemory::ReserveAddresses(uint64_t bytes, uint64_t alignment) {
  const uint64_t base = AlignTo(next_, std::max(alignment, kGranularity));
  next_ = base + bytes + kGap;
  return base;
}

bool DeviceMemory::Map(uint64_t address, uint64_t bytes, int fd, uint64_t offset, std::shared_ptr<void> owner,
                       bool foreign, PeerWatch* peers) {
  const auto after = entries_.lower_bound(address);
  if (Find(address) != nullptr || (after != entries_.end() && after->first < address + bytes)) {
    return false;
  }
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (memory == MAP_FAILED) {
    return false;
  }
  struct stat about {};
  if (fstat(fd, &about) != 0) {
    munmap(memory, bytes);
    return false;
  }
  Entry& entry = entries_[address];
  entry.kind = Entry::Kind::kMapping;
  entry.owner = std::move(owner);
  // Mapped twice, where this process has imported its own, it is one memory.
  std::weak_ptr<Shadow>& known = file_shadows_[{about.st_ino, offset, bytes}];
  entry.shadow = known.lock();
  if (entry.shadow == nullptr) {
    known = entry.shadow = std::make_shared<Shadow>(bytes);
    if (foreign) {
      entry.shadow->MarkWritten();
    }
  }
  // "cuMemMap: mapping the address range does not make it accessible; that needs cuMemSetAccess" (Driver
  // API).
  entry.region = {address,
                  bytes,
                  static_cast<uint8_t*>(memory),
                  entry.shadow.get(),
                  nullptr,
                  false,
                  false,
                  absl::StrCat("a mapping of ", bytes, " bytes"),
                  peers,
                  offset};
  return true;
}

bool DeviceMemory::Unmap(uint64_t address, uint64_t bytes) {
  const auto it = entries_.find(address);
  if (it == entries_.end() || it->second.kind != Entry::Kind::kMapping || it->second.region.size != bytes) {
    return false;
  }
  Release(&it->second);
  freed_[address] = it->second.region.name;
  freed_bytes_[address] = bytes;
  entries_.erase(it);
  return true;
}

bool DeviceMemory::SetAccess(uint64_t address, uint64_t bytes, bool readable, bool writable) {
  for (uint64_t at = address; at < address + bytes;) {
    const auto it = entries_.find(at);
    if (it == entries_.end() || it->second.kind != Entry::Kind::kMapping) {
      return false;
    }
    it->second.region.readable = readable;
    it->second.region.writable = writable;
    at += it->second.region.size;
  }
  return true;
}

const Region* DeviceMemory::Find(uint64_t address) const {
  auto it = entries_.upper_bound(address);
  if (it == entries_.begin()) {
    return nullptr;
  }
  --it;
  const Region& region = it->second.region;
  return address - region.base < region.size ? &region : nullptr;
}

std::string DeviceMemory::Near(uint64_t address) const {
  if (const Region* const region = Find(address); region != nullptr) {
    return absl::StrCat("byte ", address - region->base, " of ", region->name,
                        region->readable ? "" : ", without access set");
  }
  auto freed = freed_.upper_bound(address);
  if (freed != freed_.begin()) {
    --freed;
    if (address - freed->first < freed_bytes_.at(freed->first)) {
      return absl::StrCat("byte ", address - freed->first, " of ", freed->second, ", which was freed");
    }
  }
  auto after = entries_.upper_bound(address);
  if (after != entries_.begin()) {
    const Region& region = std::prev(after)->second.region;
    const uint64_t beyond = address - region.base - region.size;
    if (beyond < kGap) {
      return absl::StrCat(beyond, " bytes behind the end of ", region.name);
    }
  }
  return "near no allocation";
}

}  // namespace sluice::cuda_fake
