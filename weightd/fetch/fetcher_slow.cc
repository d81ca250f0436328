// Slow and stuck reads: timeouts, hedged reads, and requests that time out.
//
// A slow read may still write to its slot, so a hedged read uses a slot of its own; the first read with good
// bytes makes its slot the extent's, and the other slot stays allocated until that read has ended.
#include <bit>

#include "absl/strings/str_cat.h"
#include "weightd/fetch/fetcher.h"

namespace sluice {

int64_t Fetcher::next_deadline() const {
  const int64_t room = waiting_room_.empty() ? 0 : waiting_room_.front()->room_deadline;
  const int64_t read = deadlines_.empty() ? 0 : deadlines_.begin()->first;
  return room == 0 || read == 0 ? room + read : std::min(room, read);
}

void Fetcher::SetDeadline(Gid gid, Fill* fill, int64_t nanos) {
  ClearDeadline(fill);
  if (slow_read_nanos_ > 0) {
    fill->deadline = deadlines_.emplace(clock_->NowNanos() + nanos, gid);
  }
}

void Fetcher::ClearDeadline(Fill* fill) {
  if (fill->deadline.has_value()) {
    deadlines_.erase(*fill->deadline);
    fill->deadline.reset();
  }
}

void Fetcher::PassDeadlines(int64_t now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const Gid gid = deadlines_.begin()->second;
    Fill& fill = fills_.at(gid);
    ClearDeadline(&fill);
    if (fill.slow) {
      GiveUp(gid, &fill);
    } else {
      OnSlow(gid, &fill);
    }
  }
}

void Fetcher::OnSlow(Gid gid, Fill* fill) {
  fill->slow = true;
  ++stats_.slow_reads;
  // A permanently slow disk would fill the log.
  if (hooks_.log_error && std::has_single_bit(stats_.slow_reads)) {
    hooks_.log_error(absl::StrCat(NameOf(gid), ": no answer from the disk for ", slow_read_nanos_ / 1'000'000,
                                  " ms; slow read number ", stats_.slow_reads));
  }
  SetDeadline(gid, fill, (options_.give_up_after - 1) * slow_read_nanos_);
  EndFill(gid, fill);  // others may start in its stead
  reader_->WriteOff(fill->tag);
  ReadAgainBeside(gid, fill);
}

void Fetcher::ReadAgainBeside(Gid gid, Fill* fill) {
  if (fill->waiters.empty() || fill->second.has_value() || fill->first_over ||
      second_reads_ >= options_.second_reads) {
    return;
  }
  SecondRead second;
  if (tier_->SecondPlace(gid, &second.place) != DramTier::Room::kPlaced) {
    return;
  }
  second.tag = ++read_serial_ << 32 | gid;
  ReadJob job = JobFor(gid, second.tag, second.place.data, fill->started_as);
  job.urgent = true;
  fill->second = second;
  ++second_reads_;
  ++stats_.second_reads;
  reader_->Submit(std::move(job));
  reader_->Cancel(fill->tag);
}

void Fetcher::GiveUp(Gid gid, Fill* fill) {
  if (hooks_.log_error && !fill->waiters.empty()) {
    hooks_.log_error(absl::StrCat(NameOf(gid), ": given up after ",
                                  options_.give_up_after * slow_read_nanos_ / 1'000'000,
                                  " ms without an answer from the disk"));
  }
  const std::vector<Request*> waiters = fill->waiters;
  for (Request* request : waiters) {
    ++stats_.timed_out;
    Finish(request, absl::StatusCode::kDeadlineExceeded, tier_->store().RefOf(gid).extent);
  }
}

void Fetcher::Orphan(uint64_t tag, const Slot& place) {
  orphans_[tag] = place;
  reader_->Cancel(tag);
}

bool Fetcher::TakeSecond(Gid gid, Fill* fill, const ReadResult& result) {
  if (!fill->second.has_value()) {
    return false;
  }
  const bool good = result.outcome == ReadOutcome::kOk;
  if (result.tag != fill->second->tag) {  // the first one
    if (!good) {
      fill->first_over = true;
      return true;
    }
    --second_reads_;
    Orphan(fill->second->tag, fill->second->place);
    fill->second.reset();
    return false;
  }
  const SecondRead second = *fill->second;
  fill->second.reset();
  --second_reads_;
  if (!good) {
    tier_->FreePlace(second.place);
    return !fill->first_over;  // otherwise both have failed
  }
  ++stats_.second_reads_won;
  const Slot former = tier_->MoveFill(gid, second.place);
  fill->dest = second.place.data;
  if (fill->first_over) {
    tier_->FreePlace(former);
  } else {
    Orphan(fill->tag, former);
  }
  return false;
}

std::string Fetcher::NameOf(Gid gid) const {
  const ExtentRef ref = tier_->store().RefOf(gid);
  const ExtentSource& source = *packs_[ref.pack].source;
  return absl::StrCat("pack ", source.model_id(), ", ", source.ExtentName(ref.extent));
}

}  // namespace sluice
