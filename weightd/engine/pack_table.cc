#include "weightd/engine/pack_table.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "weightd/store/prefaulter.h"

namespace sluice::weightd {
namespace {

uint64_t ModelHash(const std::string& model_id) {
  uint64_t hash = 0;
  for (size_t i = 0; i < 16 && i < model_id.size(); ++i) {
    const char c = model_id[i];
    hash = hash << 4 | static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  return hash;
}

}  // namespace

absl::StatusOr<uint32_t> PackTable::Add(std::unique_ptr<ExtentSource> source, std::vector<int> files) {
  const uint64_t budget = tier_->arena().budget();
  const uint64_t least = source->dense_bytes() + 2 * source->largest_expert_bytes();
  if (least > budget) {
    return absl::ResourceExhaustedError(
        absl::StrCat("pack ", source->model_id(), ": --dram-budget of ", budget,
                     " bytes is below its working minimum of ", least, " (dense ", source->dense_bytes(),
                     ", twice the largest expert of ", source->largest_expert_bytes(), ")"));
  }
  const uint32_t extents = source->extent_count();
  if (extents == 0 || tier_->store().extent_count() + extents >= kBadSlotOwner) {
    return absl::InvalidArgumentError(
        absl::StrCat("pack ", source->model_id(), ": ", extents, " extents cannot be served"));
  }
  std::vector<uint64_t> lengths;
  for (uint32_t i = 0; i < extents; ++i) {
    lengths.push_back(source->extent(i).length);
  }
  ASSIGN_OR_RETURN(SharedMemory residency,
                   CreateSharedMemory("sluice-residency", ResidencyBytes(extents), PeerAccess::kReadOnly));
  Populate(residency.map.data(), residency.map.bytes());
  const auto number = static_cast<uint32_t>(packs_.size());
  ResidencyHeader header{};
  header.magic = kResidencyMagic;
  header.abi_version = kAbiVersion;
  header.entry_bytes = sizeof(ResidencyEntry);
  header.boot_epoch = boot_epoch_;
  header.pack = number;
  header.extent_count = extents;
  header.model_id_hash = ModelHash(source->model_id());
  std::memcpy(residency.map.data(), &header, sizeof(header));
  tier_->AddPack(lengths, reinterpret_cast<ResidencyEntry*>(residency.map.data() + sizeof(ResidencyHeader)));
  fetcher_->AddPack(number, source.get(), std::move(files));
  packs_.push_back(Record{std::move(source), std::move(residency)});
  return number;
}

int PackTable::Find(const std::string& model_id) const {
  for (size_t i = 0; i < packs_.size(); ++i) {
    if (packs_[i].source->model_id() == model_id) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

const ResidencyEntry* PackTable::residency(uint32_t pack) const {
  return reinterpret_cast<const ResidencyEntry*>(packs_[pack].residency.map.data() + sizeof(ResidencyHeader));
}

uint64_t PackTable::DenseBytes(const std::set<uint32_t>& packs) const {
  uint64_t bytes = 0;
  for (const uint32_t pack : packs) {
    bytes += packs_[pack].source->dense_bytes();
  }
  return bytes;
}

}  // namespace sluice::weightd
