#include "inferd/forward/drafter.h"

#include <algorithm>
#include <bit>

#include "inferd/forward/sampler.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kFewestBuckets = 64;

// Number of equal tokens before the two ends, at most NgramDrafter::kLongest.
uint32_t CommonLength(absl::Span<const int32_t> text, uint32_t end, uint32_t other_end) {
  const uint32_t most = std::min({end, other_end, NgramDrafter::kLongest});
  uint32_t length = 0;
  while (length < most && text[end - 1 - length] == text[other_end - 1 - length]) {
    ++length;
  }
  return length;
}

// Short matches are chance more often than long ones.
uint32_t ConfidenceOf(uint32_t length) { return length <= 2 ? 0 : length <= 4 ? 1 : length <= 8 ? 2 : 3; }

// Class of confidence of all stated drafts: their acceptance is measured.
constexpr uint32_t kStatedConfidence = Draft::kConfidences - 2;

}  // namespace

Draft DraftStated(const StatedDrafts& stated, uint32_t generated) {
  Draft draft;
  draft.confidence = kStatedConfidence;
  const uint32_t most = std::min(stated.drafts, Draft::kMaxTokens);
  for (size_t place = generated; place < stated.answer.size() && draft.count < most; ++place) {
    const bool right = UniformAt(stated.seed, place) < stated.acceptance;
    // Another id of the vocabulary: only the first has none below it.
    const int32_t wrong = stated.answer[place] == 0 ? 1 : stated.answer[place] - 1;
    draft.tokens[draft.count++] = right ? stated.answer[place] : wrong;
  }
  return draft;
}

void NgramDrafter::Begin(uint32_t most) {
  latest_.assign(std::bit_ceil(std::max(most, kFewestBuckets)), 0);
  earlier_.clear();
  earlier_.reserve(most);
}

uint32_t NgramDrafter::BucketOf(int32_t before, int32_t last) const {
  const uint64_t key = uint64_t{static_cast<uint32_t>(before)} << 32 | static_cast<uint32_t>(last);
  return static_cast<uint32_t>((key * 0x9e3779b97f4a7c15ull) >> 32) & (latest_.size() - 1);
}

// Adds every index that has a token behind its pair; the text's end itself is no place to find.
void NgramDrafter::Index(absl::Span<const int32_t> text) {
  for (uint32_t end = static_cast<uint32_t>(earlier_.size()); end < text.size(); ++end) {
    earlier_.push_back(0);
    if (end >= kShortest) {
      uint32_t* latest = &latest_[BucketOf(text[end - 2], text[end - 1])];
      earlier_[end] = *latest;
      *latest = end;
    }
  }
}

NgramDrafter::Match NgramDrafter::FindLongest(absl::Span<const int32_t> text) const {
  Match best;
  const uint32_t size = static_cast<uint32_t>(text.size());
  uint32_t end = latest_[BucketOf(text[size - 2], text[size - 1])];
  for (uint32_t tried = 0; end != 0 && tried < kMaxPlaces; ++tried, end = earlier_[end]) {
    const uint32_t length = CommonLength(text, end, size);
    if (length >= kShortest && length > best.length) {
      best = {end, length};
    }
  }
  return best;
}

Draft NgramDrafter::Propose(absl::Span<const int32_t> text) {
  Draft draft;
  Index(text);
  if (text.size() < kShortest) {
    return draft;
  }
  const Match match = FindLongest(text);
  if (match.length == 0) {
    return draft;
  }
  draft.confidence = ConfidenceOf(match.length);
  // Behind the text's end the draft continues with itself: a short loop goes on looping.
  for (draft.count = 0; draft.count < Draft::kMaxTokens; ++draft.count) {
    const size_t from = match.end + draft.count;
    draft.tokens[draft.count] = from < text.size() ? text[from] : draft.tokens[from - text.size()];
  }
  return draft;
}

}  // namespace sluice::inferd
