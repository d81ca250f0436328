#include "weightd/engine/segment_notices.h"

#include <algorithm>
#include <set>
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

void SegmentNotices::Announce(Session* session, uint32_t segment,
                              const std::shared_ptr<const SharedMemory>& memory) {
  SideMessage message = side_->Message(SideType::kSegmentAdded, *session);
  message.segment = segment;
  message.bytes = memory->map.bytes();
  side_->Send(session, message, memory);
}

void SegmentNotices::Welcome(Session* session) {
  for (const auto& [segment, memory] : tier_->arena().Mapped()) {
    Announce(session, segment, memory);
  }
  side_->Send(session, side_->Message(SideType::kReady, *session), nullptr);
}

void SegmentNotices::OnAdded(uint32_t segment, const std::shared_ptr<const SharedMemory>& memory) {
  for (const auto& [id, session] : sessions_->all()) {
    if (session->side_socket.valid()) {
      Announce(session.get(), segment, memory);
    }
  }
}

void SegmentNotices::OnRetired(uint32_t segment) {
  std::set<uint64_t> waiting;
  for (const auto& [id, session] : sessions_->all()) {
    const auto unsent =
        std::find_if(session->out.begin(), session->out.end(), [segment](const Session::OutMessage& out) {
          return out.message.type == SideType::kSegmentAdded && out.message.segment == segment;
        });
    if (unsent != session->out.end()) {
      session->out.erase(unsent);  // the client never learns of it
      continue;
    }
    if (session->side_socket.valid()) {
      SideMessage message = side_->Message(SideType::kSegmentRetired, *session);
      message.segment = segment;
      side_->Send(session.get(), message, nullptr);
    }
    // A lost session's process may still have it mapped.
    if (session->side_socket.valid() || session->pidfd.valid()) {
      waiting.insert(id);
    }
  }
  if (waiting.empty()) {
    tier_->DropSegment(segment);
  } else {
    const uint64_t bytes = tier_->arena().memory(segment)->map.bytes();
    retired_.Add(segment, std::move(waiting), bytes, clock_->NowNanos());
  }
}

void SegmentNotices::OnUnmapped(uint64_t session, uint32_t segment) {
  if (retired_.Unmapped(session, segment)) {
    tier_->DropSegment(segment);
    NoteSlow(clock_->NowNanos());
    fetcher_->OnRetired();
  }
}

void SegmentNotices::OnSessionEnd(uint64_t session) {
  for (const uint32_t segment : retired_.MappedBy(session)) {
    OnUnmapped(session, segment);
  }
}

void SegmentNotices::NoteSlow(int64_t now) {
  const uint64_t slow = retired_.BytesSince(now, options_.slow_nanos);
  const uint64_t lost = retired_.BytesSince(now, options_.lost_nanos);
  if (slow != slow_bytes_ || lost != lost_bytes_) {
    slow_bytes_ = slow;
    lost_bytes_ = lost;
    tier_->SetSlow(slow, lost);
    fetcher_->OnRetired();
  }
}

}  // namespace sluice::weightd
