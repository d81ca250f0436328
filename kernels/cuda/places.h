// Parts of launches over the pages of sequences: the place of each row, copied to the device, and the
// operands of caches and of attention.
//
// Thread safety: as Device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device/attention.h"
#include "kernels/cuda/device/compress.h"
#include "kernels/cuda/device/sparse.h"

namespace sluice::cuda {

// Keys that a row sees, by position or by their number in the row's list.
struct KeyRange {
  uint32_t first = 0;
  uint32_t last = 0;
};
inline std::optional<KeyRange> OwnPosition(const RowPlace& row) {
  return KeyRange{row.position, row.position};
}

struct Places {
  const RowPlace* device = nullptr;
  uint32_t rows = 0;
  uint32_t most_spans = 1;  // that a row sees
  uint32_t most_keys = 1;   // keys up to the last one that a row sees
};

// Copies every row's place, and its sequence's pages, to the device. `keys_of` returns the KeyRange of a row
// whose `row` and `position` are set, or nothing: the row takes no part.
template <typename KeysOf>
absl::StatusOr<Places> PutPlaces(Device& device, absl::Span<const SequenceRows> sequences, KeysOf keys_of) {
  Places places;
  uint64_t bytes = 0;
  const auto for_each_row = [&](const SequenceRows& sequence, const auto& use) {
    for (uint32_t i = 0; i < sequence.rows; ++i) {
      RowPlace place{nullptr, sequence.first_row + i, sequence.first_position + i, 0, 0};
      if (const std::optional<KeyRange> keys = keys_of(place); keys.has_value()) {
        place.first_visible = keys->first;
        place.last_visible = keys->last;
        use(place);
      }
    }
  };
  for (const SequenceRows& sequence : sequences) {
    for_each_row(sequence, [&](const RowPlace& place) {
      ++places.rows;
      places.most_spans = std::max(places.most_spans,
                                   place.last_visible / kSpanTokens - place.first_visible / kSpanTokens + 1);
      places.most_keys = std::max(places.most_keys, place.last_visible + 1);
    });
    bytes += 4 * sequence.pages.size() + 16;
  }
  RETURN_IF_ERROR(device.tables->Begin(bytes + places.rows * sizeof(RowPlace) + 16));
  RowPlace* row = device.tables->Take(places.rows, &places.device);
  for (const SequenceRows& sequence : sequences) {
    const uint32_t* const pages = device.tables->Put(sequence.pages);
    for_each_row(sequence, [&](RowPlace place) {
      place.pages = pages;
      *row++ = place;
    });
  }
  RETURN_IF_ERROR(device.tables->Send());
  return places;
}

DeviceKv KvOf(const CallKv& kv);
DeviceEntries EntriesOf(const CallEntries& entries);
DeviceRope RopeOf(const CallRope& rope);

// Fills a launch of attention from AttentionCall or CompressedAttentionCall.
template <typename Call>
void FillAttention(const Call& call, const Places& places, AttentionLaunch* launch) {
  launch->places = places.device;
  launch->rows = places.rows;
  launch->q = call.q.base;
  launch->q_stride = call.q.stride;
  launch->heads = call.heads;
  launch->scale = call.scale;
  launch->sinks = call.sinks;
  launch->kv = KvOf(call.kv);
  launch->out = call.out.base;
  launch->out_stride = call.out.stride;
}

// Lets blocks compute the launch's spans side by side where their partial sums have room, as those of a
// decode step do; a prompt has rows enough to fill a GPU.
absl::Status SplitSpans(Workspace* workspace, const Places& places, AttentionLaunch* launch);

// Attention over chosen blocks.
absl::Status RunListed(Device& device, const AttentionCall& call);

}  // namespace sluice::cuda
