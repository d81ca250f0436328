// Ends of requests: filled, failed, cancelled, or with their session.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weightd/fetch/fetcher.h"

namespace sluice::weightd {
namespace {

uint32_t Micros(int64_t from, int64_t to) {
  const int64_t micros = from == 0 || to < from ? 0 : (to - from) / 1000;
  return static_cast<uint32_t>(std::min<int64_t>(micros, UINT32_MAX));
}

template <typename Queue, typename Item>
void EraseFrom(Queue* queue, const Item& item) {
  queue->erase(std::remove(queue->begin(), queue->end(), item), queue->end());
}

}  // namespace

void Fetcher::Leave(Request* request) {
  for (uint32_t i = 0; i < count(*request); ++i) {
    const ExtentId extent_id = request->extent_ids[i];
    if (request->pinned[i]) {
      tier_->store().Unpin(extent_id);
      request->pinned[i] = false;
      continue;
    }
    auto found = fills_.find(extent_id);
    if (found == fills_.end()) {
      continue;
    }
    Fill& fill = found->second;
    const size_t before = fill.waiters.size();
    EraseFrom(&fill.waiters, request);
    if (fill.waiters.empty() && before != 0 && !fill.cancelled) {
      fill.cancelled = true;
      reader_->Cancel(fill.tag);
      if (fill.second.has_value()) {
        reader_->Cancel(fill.second->tag);
      }
    }
  }
  request->missing = 0;
}

void Fetcher::Finish(Request* request, absl::StatusCode code, uint32_t bad_extent) {
  const int64_t now = clock_->NowNanos();
  CompletionEntry entry{};
  entry.id = request->fill.id;
  entry.code = static_cast<uint16_t>(code);
  entry.extent = bad_extent;
  entry.bytes = request->bytes;
  entry.queue_us =
      Micros(request->accepted_nanos, request->started_nanos == 0 ? now : request->started_nanos);
  entry.io_us = Micros(request->started_nanos, now);
  std::vector<ExtentId> held;
  if (code == absl::StatusCode::kOk) {
    metrics_->Ended(request->fill.request_class, request->tier, entry.queue_us, entry.io_us);
    held.assign(request->extent_ids.begin(), request->extent_ids.begin() + count(*request));
    entry.extents = count(*request);
  } else {
    Leave(request);
  }
  const uint64_t session = request->fill.session;
  Erase(request);
  hooks_.complete(session, entry, std::move(held));
}

void Fetcher::Erase(Request* request) { requests_.erase({request->fill.session, request->fill.id}); }

bool Fetcher::Cancel(uint64_t session, uint64_t id) {
  auto found = requests_.find({session, id});
  if (found == requests_.end()) {
    return false;
  }
  Request* request = found->second.get();
  queue(request->fill.request_class).RemoveIf(session, [request](Request* other) {
    return other == request;
  });
  EraseFrom(&waiting_for_retirement_, request);
  ++stats_.cancelled;
  Finish(request, absl::StatusCode::kCancelled, kNoExtent);
  return true;
}

uint64_t Fetcher::CancelPrefetches(uint64_t session, uint32_t pack, uint64_t step, uint32_t layer) {
  std::vector<Request*> stale;
  prefetch_.RemoveIf(session, [&](Request* request) {
    const FillRequest& fill = request->fill;
    const bool late = fill.step > step || (fill.step == step && fill.layer > layer);
    const bool drop = fill.pack == pack && !late;
    if (drop) {
      stale.push_back(request);
    }
    return drop;
  });
  for (Request* request : stale) {
    ++stats_.cancelled;
    Finish(request, absl::StatusCode::kCancelled, kNoExtent);
  }
  return stale.size();
}

void Fetcher::DropSession(uint64_t session) {
  std::vector<Request*> gone;
  for (const auto& [key, request] : requests_) {
    if (key.first == session) {
      gone.push_back(request.get());
    }
  }
  // Sorted by id: the map's own order differs from run to run.
  std::sort(gone.begin(), gone.end(),
            [](const Request* a, const Request* b) { return a->fill.id < b->fill.id; });
  demand_.Drop(session);
  prefetch_.Drop(session);
  for (Request* request : gone) {
    EraseFrom(&waiting_for_retirement_, request);
    Leave(request);
    Erase(request);
  }
}

void Fetcher::OnFilled(ExtentId extent_id, const Fill& fill) {
  ++stats_.fills;
  tier_->Publish(extent_id);
  if (fill.started_as == RequestClass::kPrefetch) {
    ledger_.Filled(extent_id, tier_->store().UseVersion(extent_id));
  }
  for (Request* request : fill.waiters) {
    for (uint32_t i = 0; i < count(*request); ++i) {
      if (request->extent_ids[i] == extent_id) {
        tier_->store().Pin(extent_id);
        request->pinned[i] = true;
      }
    }
    --request->missing;
    if (request->fill.progress != kNoProgress) {
      hooks_.progress(request->fill.session, request->fill.progress,
                      PackProgress(request->fill.id, count(*request) - request->missing));
    }
    if (request->missing == 0) {
      Finish(request, absl::StatusCode::kOk, kNoExtent);
    }
  }
}

void Fetcher::OnFailed(ExtentId extent_id, const Fill& fill, const ReadResult& result) {
  const ExtentRef ref = tier_->store().RefOf(extent_id);
  // A file that ends early is no damage of the medium: it was cut and may be restored, and the next demand
  // detects that by a read that costs nothing while it fails.
  const bool bad = fill.reread && result.outcome == ReadOutcome::kCorrupt;
  tier_->AbandonFill(extent_id, bad);
  if (result.outcome == ReadOutcome::kCancelled) {
    return;
  }
  if (hooks_.log_error) {
    hooks_.log_error(
        absl::StrCat(NameOf(extent_id), ": ", std::string(result.status.message()),
                     bad ? "; marked bad after a reread: repair the pack and restart weightd" : ""));
  }
  for (Request* request : fill.waiters) {
    Finish(request, absl::StatusCode::kDataLoss, ref.extent);
  }
}

}  // namespace sluice::weightd
