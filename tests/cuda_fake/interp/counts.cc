#include "tests/cuda_fake/interp/counts.h"

#include <algorithm>

namespace sluice::cuda_fake {
namespace {

constexpr uint64_t kSectorBytes = 32;
constexpr uint64_t kBanks = 32;

}  // namespace

void RequestCounter::NoteGlobal(uint64_t address, uint32_t bytes) {
  for (uint64_t sector = address / kSectorBytes; sector <= (address + bytes - 1) / kSectorBytes; ++sector) {
    sectors_.push_back(sector);
  }
}

void RequestCounter::NoteShared(int lane, uint64_t address, uint32_t bytes) {
  shared_.push_back({lane, address / 4, (bytes + 3) / 4});
}

void RequestCounter::Drop() {
  sectors_.clear();
  shared_.clear();
}

void RequestCounter::EndRequest(LaunchCounts* counts) {
  if (!sectors_.empty()) {
    std::sort(sectors_.begin(), sectors_.end());
    sectors_.erase(std::unique(sectors_.begin(), sectors_.end()), sectors_.end());
    ++counts->global_requests;
    counts->global_sectors += sectors_.size();
    unique_.insert(sectors_.begin(), sectors_.end());
    sectors_.clear();
  }
  if (!shared_.empty()) {
    ++counts->shared_requests;
    counts->shared_waves += Waves();
    shared_.clear();
  }
}

// A bank gives one word a turn, to all lanes that want that word; accesses of 8 bytes are served for half a
// warp at a time, of 16 for a quarter.
uint64_t RequestCounter::Waves() {
  const int lanes_a_turn = 32 / static_cast<int>(shared_[0].words);
  uint64_t waves = 0;
  for (size_t i = 0; i < shared_.size();) {
    words_.clear();
    const int turn = shared_[i].lane / lanes_a_turn;
    for (; i < shared_.size() && shared_[i].lane / lanes_a_turn == turn; ++i) {
      for (uint32_t word = 0; word < shared_[i].words; ++word) {
        words_.push_back(shared_[i].word + word);
      }
    }
    std::sort(words_.begin(), words_.end());
    words_.erase(std::unique(words_.begin(), words_.end()), words_.end());
    uint64_t of_bank[kBanks] = {};
    uint64_t most = 0;
    for (const uint64_t word : words_) {
      most = std::max(most, ++of_bank[word % kBanks]);
    }
    waves += most;
  }
  return waves;
}

}  // namespace sluice::cuda_fake
