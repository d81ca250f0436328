#include "weightd/session/retired_segments.h"

#include <algorithm>
#include <utility>

namespace sluice::weightd {

void RetiredSegments::Add(uint32_t segment, std::set<uint64_t> sessions, uint64_t bytes, int64_t now) {
  retired_[segment] = Retired{std::move(sessions), bytes, now};
}

bool RetiredSegments::Unmapped(uint64_t session, uint32_t segment) {
  const auto found = retired_.find(segment);
  if (found == retired_.end() || found->second.sessions.erase(session) == 0 ||
      !found->second.sessions.empty()) {
    return false;
  }
  retired_.erase(found);
  return true;
}

std::vector<uint32_t> RetiredSegments::MappedBy(uint64_t session) const {
  std::vector<uint32_t> segments;
  for (const auto& [segment, retired] : retired_) {
    if (retired.sessions.contains(session)) {
      segments.push_back(segment);
    }
  }
  return segments;
}

uint64_t RetiredSegments::BytesSince(int64_t now, int64_t nanos) const {
  uint64_t bytes = 0;
  for (const auto& [segment, retired] : retired_) {
    bytes += now - retired.since_nanos >= nanos ? retired.bytes : 0;
  }
  return bytes;
}

int64_t RetiredSegments::NextSince(int64_t now, int64_t nanos) const {
  int64_t next = 0;
  for (const auto& [segment, retired] : retired_) {
    const int64_t then = retired.since_nanos + nanos;
    if (then > now) {
      next = next == 0 ? then : std::min(next, then);
    }
  }
  return next;
}

}  // namespace sluice::weightd
