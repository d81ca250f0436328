// Launches of sparse attention: the choice of an indexer, and attention over the keys of a list
// (ARITHMETIC.md sections 6 and 11).
//
// Thread safety: pure but for the work they enqueue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/attention.h"
#include "kernels/cuda/device/launch.h"

namespace sluice::cuda {

// Entries of a compressed cache (ops.h: EntryView). Rate 0: none.
struct DeviceEntries {
  uint8_t* base = nullptr;
  uint64_t page_stride = 0;
  uint32_t head_dim = 0;
  uint32_t rate = 0;
  KvKind kind = KvKind::kF16;
  constexpr uint32_t APage() const { return rate < kPagePositions ? kPagePositions / rate : 1; }
  // The place in a sequence's pages, and in its page, of entry `e`.
  constexpr uint32_t PageOf(uint32_t e) const { return ((e + 1) * rate - 1) / kPagePositions; }
  constexpr uint32_t RowOf(uint32_t e) const { return e % APage(); }
  constexpr uint64_t RowOffset(uint32_t row) const { return uint64_t{row} * head_dim * ValueBytes(kind); }
  constexpr uint64_t ScaleOffset(uint32_t row) const {
    return (uint64_t{APage()} * head_dim + 3) / 4 * 4 + 4 * uint64_t{row};
  }
  bool operator==(const DeviceEntries& other) const = default;
};

// Lists of blocks of positions (ops.h: ChosenBlocks).
struct DeviceLists {
  int32_t* blocks = nullptr;  // [rows of the batch][lists][top]; nullptr: every key is seen
  uint32_t lists = 1;
  uint32_t top = 0;
  uint32_t block = 1;
  bool whole = false;
  // The list of a row, nullptr where all are seen.
  constexpr int32_t* Of(uint32_t row, uint32_t list, uint32_t position) const {
    return blocks == nullptr || (whole ? position + 1 : position) / block < top
               ? nullptr
               : blocks + (uint64_t{row} * lists + list) * top;
  }
  bool operator==(const DeviceLists& other) const = default;
};

// Attention over keys that are not neighbours: the positions of a row's chosen blocks, or with a window its
// last positions followed by entries, all or the chosen ones. A row's keys are numbered 0..last_visible.
struct ListedAttentionLaunch : AttentionLaunch {
  DeviceLists chosen;
  uint32_t window = 0;    // 0: no entries
  DeviceEntries entries;  // of one head, keys and values at once
  bool operator==(const ListedAttentionLaunch& other) const = default;
};
// As EnqueueAttention().
cudaError_t EnqueueListedAttention(const ListedAttentionLaunch& launch, Launcher& launcher);

// The choice of blocks for rows whose lists are not of all. Keys: index keys of positions, or entries. A
// row's keys are numbered 0..last_visible.
struct IndexLaunch {
  const RowPlace* places = nullptr;  // [rows], device
  uint32_t rows = 0;
  uint32_t most_keys = 0;  // of a row
  const float* q = nullptr;
  uint64_t q_stride = 0;
  const float* weights = nullptr;  // [tokens, heads], nullptr: a list a head, or with `summed` weights of 1
  uint64_t weights_stride = 0;
  bool summed = false;
  uint32_t heads = 0;
  float scale = 1;
  uint32_t local = 0;
  DeviceKv keys;
  DeviceEntries entries;  // instead of keys if rate > 0
  DeviceLists chosen;
  float* scores = nullptr;  // [rows][lists][ScoreFloats()]
  constexpr uint32_t Dim() const { return entries.rate > 0 ? entries.head_dim : keys.head_dim; }
  constexpr KvKind Kind() const { return entries.rate > 0 ? entries.kind : keys.kind; }
  // Candidates are blocks of positions whose scores are maxima.
  constexpr bool HasMaxima() const { return !chosen.whole && chosen.block > 1; }
  // Floats of a list: scores of keys, and behind them the blocks' maxima.
  constexpr uint64_t ScoreFloats() const {
    return uint64_t{most_keys} + (HasMaxima() ? most_keys / chosen.block + 1 : 0);
  }
  bool operator==(const IndexLaunch& other) const = default;
};
// Shared memory of a block of the first launch.
uint64_t IndexShared(const IndexLaunch& launch);
// Two launches.
cudaError_t EnqueueIndexSelect(const IndexLaunch& launch, Launcher& launcher);

}  // namespace sluice::cuda
