#include "inferd/forward/scheduler.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "inferd/forward/drafter.h"

namespace sluice::inferd {
namespace {

// A priority below every request's.
constexpr int64_t kAnyPriority = std::numeric_limits<int64_t>::min();

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, KvPages* pages, PrefixSource* prefixes,
                     DraftSource* drafts)
    : options_(options),
      prefill_rows_(options.prefill_chunk),
      pages_(pages),
      prefixes_(prefixes),
      drafts_(drafts),
      leaving_holders_(pages->total(), 0) {
  running_.reserve(options.parallel);
  plan_.sequences.reserve(options.parallel);
  plan_.admitted.reserve(options.parallel);
  plan_.preempted.reserve(options.parallel);
  free_slots_.reserve(options.parallel);
  for (uint32_t slot = options.parallel; slot > 0; --slot) {
    free_slots_.push_back(slot - 1);
  }
}

Scheduler::~Scheduler() = default;

bool Scheduler::Older(const Entry& a, const Entry& b) {
  return std::make_tuple(-int64_t{a.request.priority}, a.arrival) <
         std::make_tuple(-int64_t{b.request.priority}, b.arrival);
}

Scheduler::Client* Scheduler::ClientNamed(const std::string& name) {
  uint64_t least_served = ~uint64_t{0};
  for (const std::unique_ptr<Client>& client : clients_) {
    if (client->name == name) {
      return client.get();
    }
    least_served = std::min(least_served, client->served);
  }
  // A newcomer starts level with the client served least: earlier absence earns no credit.
  clients_.push_back(std::make_unique<Client>());
  clients_.back()->name = name;
  clients_.back()->served = clients_.size() == 1 ? 0 : least_served;
  return clients_.back().get();
}

void Scheduler::Add(const ScheduleRequest& request) {
  auto entry = std::make_unique<Entry>();
  entry->request = request;
  entry->client = ClientNamed(request.client);
  entry->client->live++;
  entry->arrival = arrivals_++;
  waiting_.push_back(entry.get());
  entries_.emplace(request.id, std::move(entry));
}

void Scheduler::StopRunning(Entry* entry) {
  if (prefixes_ != nullptr) {
    prefixes_->Leave(entry->request.id, entry->slot, entry->computed);
  }
  pages_->Release(entry->slot);
  free_slots_.push_back(entry->slot);
  entry->slot = kNoSlot;
  entry->client->running--;
  running_.erase(std::find(running_.begin(), running_.end(), entry));
}

void Scheduler::Remove(SequenceId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    return;
  }
  Entry* entry = found->second.get();
  if (entry->slot != kNoSlot) {
    StopRunning(entry);
  } else {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), entry));
  }
  Client* client = entry->client;
  if (--client->live == 0) {
    clients_.erase(std::find_if(clients_.begin(), clients_.end(),
                                [client](const std::unique_ptr<Client>& c) { return c.get() == client; }));
  }
  entries_.erase(found);
}

const std::vector<SequenceId>& Scheduler::Expired(absl::Time now) {
  expired_.clear();
  for (const std::vector<Entry*>* list : {&running_, &waiting_}) {
    for (const Entry* entry : *list) {
      if (entry->request.deadline <= now) {
        expired_.push_back(entry->request.id);
      }
    }
  }
  return expired_;
}

const std::vector<SequenceId>& Scheduler::Overdue(absl::Time now) {
  overdue_.clear();
  for (const Entry* entry : waiting_) {
    if (!entry->has_run && entry->request.start_by <= now) {
      overdue_.push_back(entry->request.id);
    }
  }
  return overdue_;
}

absl::Time Scheduler::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const std::vector<Entry*>* list : {&running_, &waiting_}) {
    for (const Entry* entry : *list) {
      next = std::min(
          {next, entry->request.deadline, entry->has_run ? absl::InfiniteFuture() : entry->request.start_by});
    }
  }
  return next;
}

void Scheduler::SetBlocked(SequenceId id, bool blocked) {
  const auto found = entries_.find(id);
  if (found != entries_.end()) {
    found->second->blocked = blocked;
  }
}

const StepPlan& Scheduler::Plan() {
  plan_.sequences.clear();
  plan_.admitted.clear();
  plan_.preempted.clear();
  plan_.rows = 0;
  plan_.prefill_rows = 0;
  plan_.draft_rows = 0;
  for (Entry* entry : running_) {
    entry->planned = false;
    // A blocked sequence (its reader is slow) keeps its slot for kPatience plans, since readers mostly come
    // back soon.
    entry->blocked_plans = entry->blocked ? entry->blocked_plans + 1 : 0;
  }
  chunk_left_ = prefill_rows_;
  // Decoding comes first, so that prompts never delay a running answer's next token; the rest of the step
  // goes to running prompts, and only then to waiting requests.
  PreemptForPriority();
  PlanDecode();
  PlanPrefill();
  PreemptBlocked();
  AdmitWaiting();
  if (drafts_ != nullptr && plan_.prefill_rows == 0) {
    PlanDrafts();
  }
  return plan_;
}

// Adds rows for drafts to the sequences of a step without prompt rows. The rows take the place of prompt
// rows, so a step grows no longer than one with a prompt.
void Scheduler::PlanDrafts() {
  drafts_->BeginStep(plan_.sequences);
  for (ScheduledRows& rows : plan_.sequences) {
    const auto end = [&rows](uint32_t drafts) { return rows.known() + drafts; };
    // Redone rows are committed first: with drafts they might have to be redone again and again.
    uint32_t most = rows.redone > 0 ? 0 : std::min(chunk_left_, Draft::kMaxTokens);
    while (most > 0 && pages_->Missing(rows.slot, end(most)) > pages_->free_pages()) {
      --most;
    }
    const absl::Span<const int32_t> drafts = drafts_->DraftsFor(rows.id, most);
    if (drafts.empty() || !pages_->Grow(rows.slot, end(static_cast<uint32_t>(drafts.size())))) {
      continue;
    }
    const uint32_t count = static_cast<uint32_t>(drafts.size());
    rows.drafts = drafts;
    rows.rows += count;
    chunk_left_ -= count;
    plan_.rows += count;
    plan_.draft_rows += count;
  }
}

void Scheduler::PlanDecode() {
  // Older entries come first, and MakeRoom() takes pages from the youngest entry without rows, so planned
  // rows stay.
  for (size_t i = 0; i < running_.size();) {
    Entry* entry = running_[i];
    // Rows to redo take the place of prompt rows; without room for them they are planned like a prompt.
    if (entry->blocked || entry->missing() != 1 + entry->redo || entry->redo > chunk_left_) {
      ++i;
      continue;
    }
    if (MakeRoom(entry, entry->request.length)) {
      chunk_left_ -= entry->redo;
      PlanRows(entry, 1 + entry->redo);
      plan_.sequences.back().redone = entry->redo;
      ++i;
    } else {
      Preempt(entry);  // the next entry moved to index i
    }
  }
}

void Scheduler::PlanPrefill() {
  while (chunk_left_ > 0) {
    Entry* entry = NextPrefill();
    if (entry == nullptr) {
      return;
    }
    const uint32_t limit = entry->request.row_limit == 0 ? chunk_left_ : entry->request.row_limit;
    const uint32_t until_stop = entry->stop > entry->computed ? entry->stop - entry->computed : ~0u;
    const uint32_t rows = std::min({chunk_left_, limit, entry->missing(), until_stop});
    if (!MakeRoom(entry, entry->computed + rows)) {
      return;  // it stays first in line until pages come back
    }
    chunk_left_ -= rows;
    plan_.prefill_rows += rows;
    PlanRows(entry, rows);
  }
}

Scheduler::Entry* Scheduler::NextPrefill() {
  Entry* best = nullptr;
  // Among equal priorities the client that was served the fewest rows goes first.
  const auto order = [](const Entry* e) {
    return std::make_tuple(-int64_t{e->request.priority}, e->client->served, e->arrival);
  };
  for (Entry* entry : running_) {
    if (!entry->planned && !entry->blocked && entry->missing() > 1 &&
        (best == nullptr || order(entry) < order(best))) {
      best = entry;
    }
  }
  return best;
}

void Scheduler::AdmitWaiting() {
  while (!waiting_.empty()) {
    Entry* entry = NextWaiting();
    if (entry == nullptr || !Fits(*entry)) {
      return;
    }
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), entry));
    const uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    StartIn(entry, slot);
    entry->planned = false;
    entry->has_run = true;
    entry->client->running++;
    running_.insert(std::upper_bound(running_.begin(), running_.end(), entry,
                                     [](const Entry* a, const Entry* b) { return Older(*a, *b); }),
                    entry);
    plan_.admitted.push_back(entry->request.id);
    if (entry->missing() == 1 && MakeRoom(entry, entry->request.length)) {
      PlanRows(entry, 1);
    } else {
      PlanPrefill();
    }
  }
}

// A new sequence must fit beside the future needs of the running ones, else it would be preempted before its
// answer. A single one is always admitted: its fit was checked when it was accepted.
bool Scheduler::Fits(const Entry& entry) const {
  if (free_slots_.empty() || running_.empty()) {
    return !free_slots_.empty();
  }
  return PagesToStart(entry) + PagesCommitted(kAnyPriority) <= pages_->free_pages();
}

// Number of free pages that a waiting entry needs for its known tokens and one more.
uint32_t Scheduler::PagesToStart(const Entry& entry) const {
  const uint32_t peak = PeakPages(entry.request.length + 1);
  const uint32_t shared = prefixes_ == nullptr ? 0 : prefixes_->SharedPages(entry.request.id);
  return peak - std::min(peak, shared);
}

void Scheduler::StartIn(Entry* entry, uint32_t slot) {
  const PrefixSource::Start start =
      prefixes_ == nullptr ? PrefixSource::Start() : prefixes_->Begin(entry->request.id, slot);
  entry->slot = slot;
  entry->computed = start.computed;
  entry->redo = 0;
  entry->stop = start.stop;
}

Scheduler::Entry* Scheduler::NextWaiting() {
  const auto order = [](const Entry* e) {
    return std::make_tuple(-int64_t{e->request.priority}, e->client->running, e->client->served, e->arrival);
  };
  Entry* best = nullptr;
  for (Entry* entry : waiting_) {
    if (!entry->blocked && (best == nullptr || order(entry) < order(best))) {
      best = entry;
    }
  }
  return best;
}

// While others wait, preempts a sequence whose reader has been slow for long. One per plan: a single slot may
// be enough.
void Scheduler::PreemptBlocked() {
  if (NextWaiting() == nullptr) {
    return;
  }
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    if ((*it)->blocked_plans > kPatience) {
      Preempt(*it);
      return;
    }
  }
}

// Preempts running sequences of lower priority than the first waiting one, if that makes enough room: their
// results are found in the prefix cache or recomputed, to the same bits.
void Scheduler::PreemptForPriority() {
  const Entry* first = NextWaiting();
  if (first == nullptr || Fits(*first) || !WouldFit(*first)) {
    return;
  }
  while (!Fits(*first)) {
    Preempt(running_.back());
  }
}

// True if `entry` fits after every sequence of lower priority is preempted.
bool Scheduler::WouldFit(const Entry& entry) {
  const int32_t priority = entry.request.priority;
  if (running_.empty() || running_.back()->request.priority >= priority) {
    return false;
  }
  const uint32_t free = FreePagesWithout([=](const Entry& e) { return e.request.priority < priority; });
  return running_.front()->request.priority < priority ||
         PagesToStart(entry) + PagesCommitted(priority) <= free;
}

uint32_t Scheduler::PeakPages(uint32_t positions) const {
  return KvPages::PeakPages(positions, pages_->window(), options_.prefill_chunk);
}

// Number of pages that running sequences of this priority and above still need for their known tokens. Future
// answer tokens are unknown and not reserved: preemption makes up for that.
uint32_t Scheduler::PagesCommitted(int64_t priority) const {
  uint32_t pages = 0;
  for (const Entry* entry : running_) {
    if (entry->request.priority >= priority) {
      const uint32_t peak = PeakPages(entry->request.length);
      pages += std::max(peak, pages_->held(entry->slot)) - pages_->held(entry->slot);
    }
  }
  return pages;
}

// Grows `entry` to `end` positions, preempting younger sequences that have no rows in this plan. The gain is
// counted first, so that no sequence is preempted in vain.
bool Scheduler::MakeRoom(Entry* entry, uint32_t end) {
  pages_->Trim(entry->slot, entry->computed);
  const uint32_t missing = pages_->Missing(entry->slot, end);
  const auto may_leave = [entry](const Entry& e) { return Older(*entry, e) && !e.planned; };
  if (missing > pages_->free_pages() && missing > FreePagesWithout(may_leave)) {
    return false;
  }
  while (!pages_->Grow(entry->slot, end)) {
    auto victim = running_.rbegin();
    while ((*victim)->planned || pages_->held((*victim)->slot) == 0) {
      ++victim;
    }
    Preempt(*victim);
  }
  return true;
}

// Number of pages free without those sequences. A shared page becomes free when all its holders leave.
uint32_t Scheduler::FreePagesWithout(absl::FunctionRef<bool(const Entry&)> leaves) {
  uint32_t free = pages_->free_pages();
  const auto for_each_page = [&](auto action) {
    for (const Entry* entry : running_) {
      for (const uint32_t page : leaves(*entry) ? pages_->table(entry->slot) : absl::Span<const uint32_t>()) {
        if (page != kNoPage) {
          action(page);
        }
      }
    }
  };
  for_each_page([&](uint32_t page) { free += ++leaving_holders_[page] == pages_->holders(page) ? 1 : 0; });
  for_each_page([&](uint32_t page) { leaving_holders_[page] = 0; });
  return free;
}

void Scheduler::Preempt(Entry* entry) {
  StopRunning(entry);
  entry->computed = 0;
  waiting_.push_back(entry);
  // A sequence admitted in this plan has computed nothing, so it only returns to the queue and does not count
  // as preempted.
  const auto admitted = std::find(plan_.admitted.begin(), plan_.admitted.end(), entry->request.id);
  if (admitted != plan_.admitted.end()) {
    plan_.admitted.erase(admitted);
  } else {
    plan_.preempted.push_back(entry->request.id);
  }
}

void Scheduler::PlanRows(Entry* entry, uint32_t rows) {
  entry->planned = true;
  plan_.rows += rows;
  plan_.sequences.push_back(
      {entry->request.id, entry->slot, entry->computed, rows, /*redone=*/0, rows == entry->missing(), {}});
}

void Scheduler::Commit(SequenceId id, uint32_t rows) {
  Entry* entry = entries_.at(id).get();
  entry->computed += rows;
  entry->redo = 0;
  entry->client->served += rows;
}

void Scheduler::Append(SequenceId id, uint32_t tokens) { entries_.at(id)->request.length += tokens; }

void Scheduler::Redo(SequenceId id) {
  Entry* entry = entries_.at(id).get();
  entry->redo = entry->missing() - 1;
}

void Scheduler::WithoutPages(absl::FunctionRef<void()> change) {
  while (!running_.empty()) {
    Entry* entry = running_.back();
    StopRunning(entry);
    entry->computed = 0;
    waiting_.push_back(entry);
  }
  change();
  leaving_holders_.assign(pages_->total(), 0);
}

void Scheduler::Restart(SequenceId id) {
  Entry* entry = entries_.at(id).get();
  pages_->Release(entry->slot);
  StartIn(entry, entry->slot);
}

}  // namespace sluice::inferd
