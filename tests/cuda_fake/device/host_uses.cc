#include "tests/cuda_fake/device/host_uses.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

namespace sluice::cuda_fake {
namespace {

size_t HashOf(const uint8_t* bytes, uint64_t count) {
  return absl::HashOf(std::string_view(reinterpret_cast<const char*>(bytes), count));
}

}  // namespace

void HostUses::Takes(uint32_t operation, const uint8_t* host, uint64_t bytes) {
  BeforeDevice(host, bytes, false);
  uses_.push_back({operation, const_cast<uint8_t*>(host), bytes, true, HashOf(host, bytes), {}});
}

void HostUses::Brings(uint32_t operation, uint8_t* host, std::vector<uint8_t> bytes) {
  const uint64_t count = bytes.size();
  uses_.push_back({operation, host, count, false, 0, std::move(bytes)});
}

void HostUses::BeforeDevice(const uint8_t* host, uint64_t bytes, bool writes) {
  if (uses_.empty()) {
    return;
  }
  std::erase_if(uses_, [&](const Use& use) {
    if (!use.Overlaps(host, bytes) || (use.takes && !writes)) {
      return false;
    }
    if (!use.takes) {
      std::memcpy(use.host, use.brought.data(), use.bytes);
    }
    return true;
  });
}

void HostUses::HostHasLearnt(const std::function<bool(uint32_t)>& known,
                             const std::function<std::string(uint32_t)>& name, ReportSink* reports) {
  std::erase_if(uses_, [&](const Use& use) {
    if (!known(use.operation)) {
      return false;
    }
    if (!use.takes) {
      std::memcpy(use.host, use.brought.data(), use.bytes);
    } else if (HashOf(use.host, use.bytes) != use.hash) {
      reports->Add(Finding::kUnordered, absl::StrCat("host|", name(use.operation)),
                   absl::StrCat("the host has written pinned memory that ", name(use.operation),
                                " takes, before it knew that the copy was done"));
    }
    return true;
  });
}

void HostUses::Forget() { uses_.clear(); }

}  // namespace sluice::cuda_fake
