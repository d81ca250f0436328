#include "inferd/model/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

namespace sluice::inferd {

PrefixIndex::Lists::Lists(uint32_t pages)
    : mask_(std::bit_ceil(uint64_t{pages} + 1) - 1),
      heads_(mask_ + 1, kNoPage),
      next_(pages, kNoPage),
      previous_(pages, kNoPage) {}

void PrefixIndex::Lists::Add(const Digest128& digest, uint32_t page) {
  uint32_t& head = heads_[digest.low & mask_];
  next_[page] = head;
  previous_[page] = kNoPage;
  if (head != kNoPage) {
    previous_[head] = page;
  }
  head = page;
}

void PrefixIndex::Lists::Remove(const Digest128& digest, uint32_t page) {
  if (previous_[page] == kNoPage) {
    heads_[digest.low & mask_] = next_[page];
  } else {
    next_[previous_[page]] = next_[page];
  }
  if (next_[page] != kNoPage) {
    previous_[next_[page]] = previous_[page];
  }
}

PrefixIndex::PrefixIndex(uint32_t pages) : pages_(pages), behind_(pages), whole_(pages) {}

Digest128 PrefixIndex::After(const Digest128& before, absl::Span<const int32_t> tokens) {
  struct {
    uint64_t high;
    uint64_t low;
    int32_t tokens[kPageTokens];
  } content;
  static_assert(sizeof(content) == 16 + kPageTokens * sizeof(int32_t), "no padding, which has no value");
  content.high = before.high;
  content.low = before.low;
  std::memcpy(content.tokens, tokens.data(), sizeof(content.tokens));
  return DigestOf(std::as_bytes(std::span(&content, 1)));
}

void PrefixIndex::Begin(uint32_t page, const Digest128& before) {
  Forget(page);
  pages_[page].before = before;
}

bool PrefixIndex::Extend(uint32_t page, absl::Span<const int32_t> tokens) {
  Page& content = pages_[page];
  if (content.known == 0 && !tokens.empty()) {
    behind_.Add(content.before, page);
  }
  std::copy(tokens.begin(), tokens.end(), content.tokens.begin() + content.known);
  content.known += static_cast<uint32_t>(tokens.size());
  if (content.known < kPageTokens) {
    return content.known > 0;
  }
  if (FindWhole(content.before, content.tokens) != kNoPage) {
    behind_.Remove(content.before, page);
    content.known = 0;
    return false;
  }
  whole_.Add(After(content.before, content.tokens), page);
  return true;
}

void PrefixIndex::Forget(uint32_t page) {
  Page& content = pages_[page];
  if (content.known == 0) {
    return;
  }
  behind_.Remove(content.before, page);
  if (content.known == kPageTokens) {
    whole_.Remove(After(content.before, content.tokens), page);
  }
  content.known = 0;
}

uint32_t PrefixIndex::FindWhole(const Digest128& before, absl::Span<const int32_t> tokens) const {
  for (uint32_t page = whole_.First(After(before, tokens)); page != kNoPage; page = whole_.Next(page)) {
    if (pages_[page].before == before &&
        std::equal(tokens.begin(), tokens.end(), pages_[page].tokens.begin())) {
      return page;
    }
  }
  return kNoPage;
}

PrefixIndex::Part PrefixIndex::FindPart(const Digest128& before, absl::Span<const int32_t> tokens) const {
  Part best;
  uint32_t looks = 0;
  for (uint32_t page = behind_.First(before); page != kNoPage && looks < kMaxPageLooks;
       page = behind_.Next(page)) {
    if (pages_[page].before != before) {
      continue;  // another digest in the same list
    }
    ++looks;
    const absl::Span<const int32_t> there = TokensOf(pages_[page]);
    const auto [end, unused] = std::mismatch(there.begin(), there.end(), tokens.begin(), tokens.end());
    const uint32_t common = static_cast<uint32_t>(end - there.begin());
    if (common > best.tokens) {
      best = {page, common};
    }
  }
  return best;
}

}  // namespace sluice::inferd
