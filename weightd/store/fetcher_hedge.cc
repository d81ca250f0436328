// Slow and stuck reads: timeouts, hedged reads, and requests that time out.
//
// A slow read may still write to its slot, so a hedged read uses a slot of its own; the first read with good
// bytes makes its slot the extent's, and the other slot stays allocated until that read has ended.

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "weightd/store/fetcher.h"

namespace sluice::weightd {

int64_t Fetcher::next_deadline() const {
  const int64_t room = waiting_for_retirement_.empty() ? 0 : waiting_for_retirement_.front()->retire_deadline;
  const int64_t read = deadlines_.empty() ? 0 : deadlines_.begin()->first;
  return room == 0 || read == 0 ? room + read : std::min(room, read);
}

void Fetcher::SetDeadline(ExtentId extent_id, Fill* fill, int64_t nanos) {
  ClearDeadline(fill);
  if (slow_read_nanos_ > 0) {
    fill->deadline = deadlines_.emplace(clock_->NowNanos() + nanos, extent_id);
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
    const ExtentId extent_id = deadlines_.begin()->second;
    Fill& fill = fills_.at(extent_id);
    ClearDeadline(&fill);
    // The timeout is one of silence: a large extent may take long on a slow disk that answers.
    const int64_t timeout = (fill.slow ? options_.timeout_multiple - 1 : 1) * slow_read_nanos_;
    if (const int64_t progress = ProgressOf(fill); progress + timeout > now) {
      fill.deadline = deadlines_.emplace(progress + timeout, extent_id);
    } else if (fill.slow) {
      GiveUp(extent_id, &fill);
    } else {
      OnSlow(extent_id, &fill);
    }
  }
}

int64_t Fetcher::ProgressOf(const Fill& fill) const {
  const int64_t first = reader_->ProgressNanos(fill.tag);
  return fill.second.has_value() ? std::max(first, reader_->ProgressNanos(fill.second->tag)) : first;
}

void Fetcher::OnSlow(ExtentId extent_id, Fill* fill) {
  fill->slow = true;
  ++stats_.slow_reads;
  // A permanently slow disk would fill the log.
  if (hooks_.log_error && std::has_single_bit(stats_.slow_reads)) {
    hooks_.log_error(absl::StrCat(NameOf(extent_id), ": no answer from the disk for ",
                                  slow_read_nanos_ / 1'000'000, " ms; slow read number ", stats_.slow_reads));
  }
  SetDeadline(extent_id, fill, (options_.timeout_multiple - 1) * slow_read_nanos_);
  EndFill(extent_id, fill);  // others may start in its stead
  reader_->Abandon(fill->tag);
  StartHedgedRead(extent_id, fill);
}

void Fetcher::StartHedgedRead(ExtentId extent_id, Fill* fill) {
  if (fill->waiters.empty() || fill->second.has_value() || fill->first_over ||
      hedged_reads_ >= options_.hedged_reads) {
    return;
  }
  HedgedRead second;
  if (tier_->AllocateHedgeSlot(extent_id, &second.slot) != DramTier::AllocResult::kAllocated) {
    return;
  }
  second.tag = ++read_serial_ << 32 | extent_id;
  ReadJob job = JobFor(extent_id, second.tag, second.slot.data, fill->started_as);
  job.urgent = true;
  job.past_cache = fill->reread;
  fill->second = second;
  ++hedged_reads_;
  ++stats_.hedged_reads;
  reader_->Submit(std::move(job));
  reader_->Cancel(fill->tag);
}

void Fetcher::GiveUp(ExtentId extent_id, Fill* fill) {
  if (hooks_.log_error && !fill->waiters.empty()) {
    hooks_.log_error(absl::StrCat(NameOf(extent_id), ": given up after ",
                                  options_.timeout_multiple * slow_read_nanos_ / 1'000'000,
                                  " ms without an answer from the disk"));
  }
  const std::vector<Request*> waiters = fill->waiters;
  for (Request* request : waiters) {
    ++stats_.timed_out;
    Finish(request, absl::StatusCode::kDeadlineExceeded, tier_->store().RefOf(extent_id).extent);
  }
}

void Fetcher::AbandonRead(uint64_t tag, const Slot& slot) {
  abandoned_[tag] = slot;
  reader_->Cancel(tag);
}

bool Fetcher::OnHedgedResult(ExtentId extent_id, Fill* fill, const ReadResult& result) {
  if (!fill->second.has_value()) {
    return false;
  }
  const bool good = result.outcome == ReadOutcome::kOk;
  if (result.tag != fill->second->tag) {  // the first one
    if (!good) {
      fill->first_over = true;
      return true;
    }
    --hedged_reads_;
    AbandonRead(fill->second->tag, fill->second->slot);
    fill->second.reset();
    return false;
  }
  const HedgedRead second = *fill->second;
  fill->second.reset();
  --hedged_reads_;
  if (!good) {
    tier_->FreeSlot(second.slot);
    return !fill->first_over;  // otherwise both have failed
  }
  ++stats_.hedged_reads_won;
  const Slot former = tier_->MoveFill(extent_id, second.slot);
  fill->dest = second.slot.data;
  if (fill->first_over) {
    tier_->FreeSlot(former);
  } else {
    AbandonRead(fill->tag, former);
  }
  return false;
}

std::string Fetcher::NameOf(ExtentId extent_id) const {
  const ExtentRef ref = tier_->store().RefOf(extent_id);
  const ExtentSource& source = *packs_[ref.pack].source;
  return absl::StrCat("pack ", source.model_id(), ", ", source.ExtentName(ref.extent));
}

}  // namespace sluice::weightd
