#include "inferd/forward/prefix_cache.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <span>

#include "common/base/status.h"

namespace sluice::inferd {
namespace {

// Start of every digest chain: everything that cached values depend on, and a secret.
Digest128 SecretOf(const std::string& identity) {
  std::random_device random;
  Hasher128 hasher;
  hasher.UpdateSized(identity);
  for (int i = 0; i < 4; ++i) {
    hasher.UpdateU64(uint64_t{random()} << 32 | random());
  }
  return hasher.Finish();
}

}  // namespace

PrefixCache::PrefixCache(const PrefixCacheOptions& options, const Parts& parts)
    : options_(options),
      parts_(parts),
      pages_of_(&parts.kv->pages()),
      secret_(SecretOf(options.identity)),
      index_(pages_of_->total()),
      chains_(options.slots) {
  kept_.reserve(options.states);
  pages_of_->SetForget([this](uint32_t page) {
    index_.Forget(page);
    if (file_.has_value()) {
      file_->pages.Forget(page);
    }
  });
}

// Sequences with another salt, or with RoPE for another length, never share.
Digest128 PrefixCache::RootOf(const Sequence& sequence) const {
  const Digest128 salt = DigestOf(*sequence.prefix_salt());
  const bool is_long = options_.short_rope_limit > 0 && sequence.tokens().size() > options_.short_rope_limit;
  const uint64_t parts[] = {secret_.high, secret_.low, salt.high, salt.low, is_long ? 1u : 0u};
  return DigestOf(std::as_bytes(std::span(parts)));
}

PrefixCache::Match PrefixCache::Find(const Sequence& sequence) {
  // The last token is always computed: the sequence needs its logits.
  const uint32_t usable = StoredEnd(sequence, static_cast<uint32_t>(sequence.tokens().size()) - 1);
  const absl::Span<const int32_t> text = sequence.tokens().first(usable);
  FindPages(sequence, text);
  const uint32_t whole = WholePages();
  const absl::Span<const int32_t> rest = text.subspan(uint64_t{whole} * kPageTokens);
  const PrefixIndex::Part part =
      index_.FindPart(digests_[whole], rest.first(std::min<size_t>(rest.size(), kPageTokens)));
  Match match;
  match.reach = whole * kPageTokens + part.tokens;
  if (options_.recurrent) {
    FindState(text, part, &match);
  } else {
    match.positions = match.reach;
  }
  if (match.positions % kPageTokens != 0) {
    const uint32_t last = match.positions / kPageTokens;
    match.tail = last < whole ? pages_[last] : part.page;
  }
  return match;
}

void PrefixCache::FindPages(const Sequence& sequence, absl::Span<const int32_t> text) {
  pages_.clear();
  digests_.clear();
  digests_.push_back(RootOf(sequence));
  for (uint64_t at = 0; at + kPageTokens <= text.size(); at += kPageTokens) {
    const absl::Span<const int32_t> tokens = text.subspan(at, kPageTokens);
    const uint32_t page = index_.FindWhole(digests_.back(), tokens);
    if (page == kNoPage && pages_of_->window() == 0) {
      return;
    }
    pages_.push_back(page);
    digests_.push_back(PrefixIndex::After(digests_.back(), tokens));
  }
}

// Returns the largest number of whole pages after which the sequence can continue; pages left behind by a
// window may be missing.
uint32_t PrefixCache::WholePages() const {
  uint32_t whole = 0;
  uint32_t there_from = 0;
  for (uint32_t i = 0; i < pages_.size(); ++i) {
    const uint32_t end = i + 1;
    if (pages_[i] == kNoPage) {
      there_from = end;
    } else if (there_from <= KvPages::FirstVisiblePage(end * kPageTokens, pages_of_->window())) {
      whole = end;
    }
  }
  return whole;
}

// True if all pages visible to a row at `position` are cached.
bool PrefixCache::IsCovered(uint32_t position, const PrefixIndex::Part& part) const {
  const uint32_t whole = position / kPageTokens;
  const uint32_t tail = position % kPageTokens;
  for (uint32_t i = KvPages::FirstVisiblePage(position, pages_of_->window()); i < whole; ++i) {
    if (i >= pages_.size() || pages_[i] == kNoPage) {
      return false;
    }
  }
  return tail == 0 || (whole < pages_.size() && pages_[whole] != kNoPage) ||
         (whole == WholePages() && part.tokens >= tail);
}

// Finds the last position with a kept state.
void PrefixCache::FindState(absl::Span<const int32_t> text, const PrefixIndex::Part& part,
                            Match* match) const {
  for (uint32_t i = 0; i < kept_.size(); ++i) {
    const KeptState& kept = kept_[i];
    const uint32_t whole = kept.position / kPageTokens;
    if (kept.position <= match->positions || kept.position > match->reach || whole >= digests_.size() ||
        kept.before != digests_[whole]) {
      continue;
    }
    const absl::Span<const int32_t> tail =
        text.subspan(uint64_t{whole} * kPageTokens, kept.position % kPageTokens);
    if (std::equal(tail.begin(), tail.end(), kept.tail.begin()) && IsCovered(kept.position, part)) {
      match->positions = kept.position;
      match->state = i;
    }
  }
}

uint32_t PrefixCache::SharedPages(SequenceId id) {
  const Sequence& sequence = *parts_.find(id);
  if (sequence.prefix_salt() == nullptr) {
    return 0;
  }
  const Match match = Find(sequence);
  uint32_t shared = 0;
  for (uint32_t i = KvPages::FirstVisiblePage(match.positions, pages_of_->window());
       i < match.positions / kPageTokens; ++i) {
    shared += pages_of_->holders(pages_[i]) > 0 ? 1 : 0;
  }
  return shared;
}

PrefixSource::Start PrefixCache::Begin(SequenceId id, uint32_t slot) {
  Chain& chain = chains_[slot];
  chain = {};
  Sequence* sequence = parts_.find(id);
  if (sequence->prefix_salt() == nullptr) {
    return {};
  }
  Match match = Find(*sequence);
  TakePages(match, slot);
  if (match.tail != kNoPage && !TakeTail(match, sequence->tokens(), slot)) {
    pages_of_->Release(slot);
    match.positions = 0;
    match.state = kNoState;
  }
  if (match.state != kNoState) {
    kept_[match.state].used = ++uses_;
    parts_.states->Adopt(slot, kept_[match.state].state);
  }
  chain.digest = digests_[match.positions / kPageTokens];
  chain.stored = match.positions;
  const bool far = match.reach >= match.positions + kStateDistance;
  chain.stop = options_.recurrent && options_.states > 0 && far ? match.reach : 0;
  sequence->NotePrefix(match.positions);
  return {match.positions, chain.stop};
}

void PrefixCache::TakePages(const Match& match, uint32_t slot) {
  const uint32_t whole = match.positions / kPageTokens;
  const uint32_t first = std::min(whole, KvPages::FirstVisiblePage(match.positions, pages_of_->window()));
  std::fill_n(pages_.begin(), first, kNoPage);
  pages_of_->Adopt(slot, absl::MakeConstSpan(pages_).first(whole));
}

// Copies the beginning of a page into a new page of the slot. False if there is none, or the device fails.
bool PrefixCache::TakeTail(const Match& match, absl::Span<const int32_t> text, uint32_t slot) {
  const uint32_t count = match.positions % kPageTokens;
  if (pages_of_->holders(match.tail) == 0 && index_.known(match.tail) == count) {
    pages_of_->Adopt(slot, {match.tail});  // all of its known content matches, so it may be continued
    return true;
  }
  pages_of_->Hold(match.tail);
  const bool grown = pages_of_->Grow(slot, match.positions);
  if (grown) {
    const uint32_t page = pages_of_->table(slot).back();
    status_.Update(parts_.kv->CopyPage(match.tail, page, parts_.queue));
    if (status_.ok()) {
      index_.Begin(page, digests_[match.positions / kPageTokens]);
      pages_of_->SetKept(page, index_.Extend(page, text.subspan(match.positions - count, count)));
    }
  }
  pages_of_->Drop(match.tail);
  return grown && status_.ok();
}

uint32_t PrefixCache::StoredEnd(const Sequence& sequence, uint32_t computed) const {
  return options_.reuse == PrefixReuse::kAll ? computed : std::min(computed, sequence.prompt_tokens());
}

void PrefixCache::Computed(const Sequence& sequence, uint32_t slot, uint32_t computed) {
  if (sequence.prefix_salt() == nullptr) {
    return;
  }
  Store(sequence, slot, StoredEnd(sequence, computed));
  if (computed == sequence.prompt_tokens() || computed == chains_[slot].stop) {
    KeepState(sequence, slot, computed);
  }
}

// Indexes the pages as far as they are computed.
void PrefixCache::Store(const Sequence& sequence, uint32_t slot, uint32_t end) {
  Chain& chain = chains_[slot];
  const absl::Span<const uint32_t> table = pages_of_->table(slot);
  while (chain.stored < end) {
    const uint32_t page = table[chain.stored / kPageTokens];
    const uint32_t at = chain.stored % kPageTokens;
    const uint32_t count = std::min(kPageTokens - at, end - chain.stored);
    if (at == 0) {
      index_.Begin(page, chain.digest);
    }
    const bool found = index_.Extend(page, sequence.tokens().subspan(chain.stored, count));
    pages_of_->SetKept(page, found);
    if (file_.has_value() && !found) {
      file_->pages.Forget(page);
    } else if (file_.has_value() && at + count == kPageTokens) {
      file_->pages.Changed(page);
    }
    chain.stored += count;
    if (at + count == kPageTokens) {
      chain.digest = PrefixIndex::After(chain.digest,
                                        sequence.tokens().subspan(chain.stored - kPageTokens, kPageTokens));
    }
  }
}

void PrefixCache::Leave(SequenceId id, uint32_t slot, uint32_t computed) {
  const Sequence& sequence = *parts_.find(id);
  if (sequence.prefix_salt() == nullptr || computed == 0) {
    return;
  }
  KeepState(sequence, slot, computed);
  const uint32_t stored = chains_[slot].stored;
  if (file_.has_value() && stored % kPageTokens != 0) {
    const uint32_t page = pages_of_->table(slot)[stored / kPageTokens];
    if (index_.known(page) > 0) {
      file_->pages.Changed(page);
    }
  }
}

// Keeps the state from which the sequence's next step would begin.
void PrefixCache::KeepState(const Sequence& sequence, uint32_t slot, uint32_t computed) {
  const Chain& chain = chains_[slot];
  if (!options_.recurrent || options_.states == 0 || chain.stored != computed) {
    return;  // there is no state, or its tokens are not stored
  }
  KeptState state;
  state.before = chain.digest;
  state.position = computed;
  const uint32_t count = computed % kPageTokens;
  const absl::Span<const int32_t> tail = sequence.tokens().subspan(computed - count, count);
  std::copy(tail.begin(), tail.end(), state.tail.begin());
  state.used = ++uses_;
  const auto same = std::find_if(kept_.begin(), kept_.end(), [&](const KeptState& other) {
    return other.position == state.position && other.before == state.before && other.tail == state.tail;
  });
  if (same != kept_.end()) {
    same->used = state.used;
    return;
  }
  if (kept_.size() == options_.states) {
    DropState(std::min_element(kept_.begin(), kept_.end(),
                               [](const KeptState& a, const KeptState& b) { return a.used < b.used; }));
  }
  state.state = parts_.states->Keep(slot);
  kept_.push_back(state);
  if (file_.has_value()) {
    file_->states.Changed(state.state);
  }
}

void PrefixCache::DropState(std::vector<KeptState>::iterator state) {
  if (file_.has_value()) {
    file_->states.Forget(state->state);
  }
  parts_.states->Drop(state->state);
  kept_.erase(state);
}

void PrefixCache::PagesChanged() {
  index_ = PrefixIndex(pages_of_->total());
  if (file_.has_value()) {
    file_->pages.Reset(pages_of_->total());
  }
}

absl::StatusOr<PrefixFileHead> PrefixCache::FileHead(uint64_t limit) const {
  PrefixFileHead head;
  ASSIGN_OR_RETURN(head.identity, PrefixFileIdentity(options_.identity));
  head.secret = secret_;
  head.page_bytes = parts_.kv->page_bytes();
  head.state_bytes = parts_.states->state_bytes();
  DivideSlots(limit, options_.recurrent ? options_.states : 0, &head);
  return head;
}

absl::StatusOr<PrefixCache::Saved> PrefixCache::OpenFile(const std::string& path, uint64_t limit,
                                                         absl::Status* rejected) {
  ASSIGN_OR_RETURN(PrefixFileHead head, FileHead(limit));
  Saved saved;
  absl::StatusOr<PrefixFile> file = PrefixFile::Open(path, head);
  if (!file.ok()) {
    const absl::Status& why = file.status();
    if (!absl::IsNotFound(why) && !absl::IsFailedPrecondition(why) && !absl::IsDataLoss(why)) {
      return why;
    }
    *rejected = absl::IsNotFound(why) ? absl::OkStatus() : why;
    RETURN_IF_ERROR(CreateFile(path, head));
    return saved;
  }
  const bool fits =
      file->head().page_slots == head.page_slots && file->head().state_slots == head.state_slots;
  head.secret = secret_ = file->head().secret;
  file_.emplace(
      SaveFile{*std::move(file), PrefixSlots(pages_of_->total()), PrefixSlots(parts_.states->total()), 0});
  absl::Status status = LoadRecords(&saved);
  if (status.ok() && !fits) {  // written with another limit
    file_.reset();
    status = CreateFile(path, head);
  }
  if (!status.ok()) {
    file_.reset();
    return status;
  }
  return saved;
}

// Makes an empty file, and queues everything that is cached.
absl::Status PrefixCache::CreateFile(const std::string& path, const PrefixFileHead& head) {
  ASSIGN_OR_RETURN(PrefixFile file, PrefixFile::Create(path, head));
  file_.emplace(
      SaveFile{std::move(file), PrefixSlots(pages_of_->total()), PrefixSlots(parts_.states->total()), 0});
  for (uint64_t slot = 0; slot < head.page_slots + head.state_slots; ++slot) {
    (slot < head.page_slots ? file_->pages : file_->states).AddFree(slot);
  }
  for (const uint32_t page : pages_of_->IdleKept()) {
    file_->pages.Changed(page);
  }
  for (const uint32_t number : StatesByUse()) {
    file_->states.Changed(number);
  }
  return absl::OkStatus();
}

absl::Status PrefixCache::LoadRecords(Saved* saved) {
  const PrefixFileHead& head = file_->file.head();
  ASSIGN_OR_RETURN(const std::vector<uint64_t> pages,
                   SlotsToLoad(0, head.page_slots, pages_of_->total(), &file_->pages));
  ASSIGN_OR_RETURN(const std::vector<uint64_t> states,
                   SlotsToLoad(head.page_slots, head.state_slots, options_.states, &file_->states));
  PrefixRecord record;
  const auto load = [&](uint64_t slot, bool is_page) -> absl::Status {
    const absl::Status read = file_->file.Read(slot, &record, &content_);
    if (absl::IsDataLoss(read)) {
      ++saved->damaged;
      (is_page ? file_->pages : file_->states).AddFree(slot);
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(read);
    file_->stamp = std::max(file_->stamp, record.stamp);
    return is_page ? TakePage(slot, record, content_, saved) : TakeState(slot, record, content_, saved);
  };
  for (const uint64_t slot : pages) {
    RETURN_IF_ERROR(load(slot, /*is_page=*/true));
  }
  for (const uint64_t slot : states) {
    RETURN_IF_ERROR(load(slot, /*is_page=*/false));
  }
  return absl::OkStatus();
}

// Returns the slots with the newest records, oldest first, `room` at most; frees the others.
absl::StatusOr<std::vector<uint64_t>> PrefixCache::SlotsToLoad(uint64_t first, uint64_t count, uint64_t room,
                                                               PrefixSlots* slots) {
  ASSIGN_OR_RETURN(const std::vector<uint64_t> stamps, file_->file.Stamps(first, count));
  std::vector<uint64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) { return stamps[a] < stamps[b]; });
  std::vector<uint64_t> wanted;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t slot = first + order[i];
    if (stamps[order[i]] == 0 || i + room < count) {
      slots->AddFree(slot);
    } else {
      wanted.push_back(slot);
    }
  }
  return wanted;
}

absl::Status PrefixCache::TakePage(uint64_t slot, const PrefixRecord& record,
                                   absl::Span<const std::byte> content, Saved* saved) {
  const uint32_t page = pages_of_->Take();
  if (page == kNoPage) {
    return absl::InternalError("no page of an empty cache is free");
  }
  const absl::Status status = parts_.kv->WritePage(page, content, parts_.queue);
  bool found = false;
  if (status.ok()) {
    index_.Begin(page, record.before);
    found = index_.Extend(page, absl::MakeConstSpan(record.tokens).first(record.known));
    pages_of_->SetKept(page, found);
    saved->pages += found ? 1 : 0;
  }
  if (found) {
    file_->pages.Assign(page, slot);
  } else {
    file_->pages.AddFree(slot);
  }
  pages_of_->Drop(page);
  return status;
}

absl::Status PrefixCache::TakeState(uint64_t slot, const PrefixRecord& record,
                                    absl::Span<const std::byte> content, Saved* saved) {
  if (kept_.size() == options_.states || record.position % kPageTokens != record.known) {
    file_->states.AddFree(slot);
    return absl::OkStatus();
  }
  KeptState state;
  state.before = record.before;
  state.tail = record.tokens;
  state.position = record.position;
  state.state = parts_.states->KeepNew();
  state.used = ++uses_;
  kept_.push_back(state);
  ++saved->states;
  file_->states.Assign(state.state, slot);
  return parts_.states->Write(state.state, content, parts_.queue);
}

absl::StatusOr<bool> PrefixCache::SaveNext() {
  if (!file_.has_value()) {
    return false;
  }
  absl::Status status;
  if (const std::optional<uint32_t> page = file_->pages.Next()) {
    status = SavePage(*page);
  } else if (const std::optional<uint32_t> number = file_->states.Next()) {
    status = SaveState(*number);
  } else {
    return false;
  }
  if (!status.ok()) {
    file_.reset();
    return status;
  }
  return true;
}

absl::Status PrefixCache::SavePage(uint32_t page) {
  const std::vector<uint32_t> victims =
      file_->pages.HasRoomFor(page) ? std::vector<uint32_t>() : pages_of_->IdleKept();
  const std::optional<uint64_t> slot = file_->pages.SlotFor(page, victims);
  if (!slot.has_value()) {
    return absl::OkStatus();
  }
  content_.resize(parts_.kv->page_bytes());
  RETURN_IF_ERROR(parts_.kv->ReadPage(page, absl::MakeSpan(content_), parts_.queue));
  RETURN_IF_ERROR(parts_.queue->Wait(parts_.queue->Record()));
  PrefixRecord record;
  record.stamp = ++file_->stamp;
  record.before = index_.before(page);
  record.known = index_.known(page);
  const absl::Span<const int32_t> tokens = index_.tokens(page);
  std::copy(tokens.begin(), tokens.end(), record.tokens.begin());
  return file_->file.Write(*slot, record, content_);
}

// Returns the numbers of the kept states, least recently used first.
std::vector<uint32_t> PrefixCache::StatesByUse() const {
  std::vector<KeptState> states = kept_;
  std::sort(states.begin(), states.end(),
            [](const KeptState& a, const KeptState& b) { return a.used < b.used; });
  std::vector<uint32_t> numbers;
  for (const KeptState& state : states) {
    numbers.push_back(state.state);
  }
  return numbers;
}

absl::Status PrefixCache::SaveState(uint32_t number) {
  const auto state =
      std::find_if(kept_.begin(), kept_.end(), [&](const KeptState& kept) { return kept.state == number; });
  const std::optional<uint64_t> slot = file_->states.SlotFor(number, StatesByUse());
  if (state == kept_.end() || !slot.has_value()) {
    return absl::OkStatus();
  }
  content_.resize(parts_.states->state_bytes());
  RETURN_IF_ERROR(parts_.states->Read(number, absl::MakeSpan(content_), parts_.queue));
  RETURN_IF_ERROR(parts_.queue->Wait(parts_.queue->Record()));
  return file_->file.Write(
      *slot, {++file_->stamp, state->before, state->position, state->position % kPageTokens, state->tail},
      content_);
}

absl::StatusOr<PrefixCache::Saved> PrefixCache::CloseFile() {
  for (absl::StatusOr<bool> more = true; *more;) {
    more = SaveNext();
    RETURN_IF_ERROR(more.status());
  }
  if (!file_.has_value()) {
    return absl::NotFoundError("no file is open to save the prefix cache");
  }
  const Saved saved{file_->pages.assigned(), file_->states.assigned(), 0};
  const absl::Status status = file_->file.Sync();
  file_.reset();
  RETURN_IF_ERROR(status);
  return saved;
}

}  // namespace sluice::inferd
