// The packs that weightd serves, by number: their sources, and the residency tables that clients map.
//
// Thread safety: thread-compatible; the core's lock guards it. Sources and tables live as long as it does,
// never move, and may be read without the lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/session_abi.h"
#include "common/protocol/shared_memory.h"
#include "weightd/store/dram_tier.h"
#include "weightd/store/extent_source.h"
#include "weightd/store/fetcher.h"

namespace sluice::weightd {

class PackTable {
 public:
  // Adds every pack to `tier` and `fetcher` (borrowed) under the same number.
  PackTable(uint64_t boot_epoch, DramTier* tier, Fetcher* fetcher)
      : boot_epoch_(boot_epoch), tier_(tier), fetcher_(fetcher) {}

  // `files` are the reader's numbers of the source's files. RESOURCE_EXHAUSTED when the budget cannot hold
  // the pack's dense extents and one session's minimum with one thread.
  absl::StatusOr<uint32_t> Add(std::unique_ptr<ExtentSource> source, std::vector<int> files);
  // The number of the pack with this model_id, -1 if there is none.
  int Find(const std::string& model_id) const;
  size_t size() const { return packs_.size(); }

  // Null if there is no such pack.
  const ExtentSource* source(uint32_t pack) const {
    return pack < packs_.size() ? packs_[pack].source.get() : nullptr;
  }
  // REQUIRES: pack < size(), also for the next.
  const ResidencyEntry* residency(uint32_t pack) const;
  int residency_fd(uint32_t pack) const { return packs_[pack].residency.fd.get(); }
  // Bytes of all dense extents of `packs`.
  uint64_t DenseBytes(const std::set<uint32_t>& packs) const;

 private:
  struct Record {
    std::unique_ptr<ExtentSource> source;
    SharedMemory residency;
  };

  const uint64_t boot_epoch_;
  DramTier* const tier_;
  Fetcher* const fetcher_;
  std::vector<Record> packs_;
};

}  // namespace sluice::weightd
