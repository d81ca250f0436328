#include "common/text/bpe.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/base/utf8.h"

namespace sluice {
namespace {

constexpr char32_t kDenseCharacters = 0x800;
// Longer words are rarely repeated; the bounds keep a scratch below about 20 MB.
constexpr size_t kMaxCachedWordBytes = 256;
constexpr size_t kMaxCachedWords = 1 << 16;
constexpr int32_t kNone = -1;

uint64_t Pair(uint32_t left, uint32_t right) { return (static_cast<uint64_t>(left) << 32) | right; }

char32_t FirstChar(std::string_view token) {
  size_t position = 0;
  return NextCodePoint(token, &position);
}

char32_t LastChar(std::string_view token) {
  size_t begin = token.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(token[begin]) & 0xC0) == 0x80) {
    --begin;
  }
  return NextCodePoint(token, &begin);
}

}  // namespace

std::unique_ptr<const BpeModel> BpeModel::Create(const Vocabulary& vocabulary, const BpeSpec& spec,
                                                 const absl::flat_hash_set<int32_t>& special_ids) {
  return std::unique_ptr<const BpeModel>(new BpeModel(vocabulary, spec, special_ids));
}

BpeModel::BpeModel(const Vocabulary& vocabulary, const BpeSpec& spec,
                   const absl::flat_hash_set<int32_t>& special_ids)
    : vocabulary_(vocabulary),
      special_ids_(special_ids),
      added_only_(spec.added_only),
      unknown_(spec.unknown),
      fuse_unknown_(spec.fuse_unknown),
      ignore_merges_(spec.ignore_merges) {
  IndexCharacters();
  IndexMerges(spec);
  if (spec.byte_fallback) {
    ids_of_bytes_.resize(256, kNone);
    for (int byte = 0; byte < 256; ++byte) {
      ids_of_bytes_[static_cast<size_t>(byte)] =
          FindInModel(absl::StrFormat("<0x%02X>", byte)).value_or(kNone);
    }
  }
}

void BpeModel::IndexCharacters() {
  ids_of_characters_.assign(kDenseCharacters, kNone);
  for (int32_t id = 0; id < vocabulary_.end(); ++id) {
    const std::string_view token = vocabulary_.TokenOf(id).value_or("");
    if (token.empty() || token.size() != Utf8Length(token[0]) || added_only_.contains(id)) {
      continue;
    }
    const char32_t c = FirstChar(token);
    if (c < kDenseCharacters) {
      ids_of_characters_[c] = id;
    } else {
      ids_of_other_characters_.emplace(c, id);
    }
  }
}

void BpeModel::IndexMerges(const BpeSpec& spec) {
  merges_.reserve(spec.merges.size());
  for (const MergeRule& rule : spec.merges) {
    merges_[Pair(static_cast<uint32_t>(rule.left), static_cast<uint32_t>(rule.right))] = {
        rule.rank, rule.result, special_ids_.contains(rule.result)};
    // Last character of the left part and first of the right part: candidates for a merge (MayMerge()).
    merge_boundaries_.insert(
        Pair(LastChar(*vocabulary_.TokenOf(rule.left)), FirstChar(*vocabulary_.TokenOf(rule.right))));
  }
}

std::optional<int32_t> BpeModel::FindInModel(std::string_view token) const {
  const std::optional<int32_t> id = vocabulary_.Find(token);
  return id.has_value() && added_only_.contains(*id) ? std::nullopt : id;
}

int32_t BpeModel::IdOfCharacter(char32_t c) const {
  if (c < kDenseCharacters) {
    return ids_of_characters_[c];
  }
  const auto it = ids_of_other_characters_.find(c);
  return it == ids_of_other_characters_.end() ? kNone : it->second;
}

// True if some merge can join a token ending in `left` with one beginning with `right`. A character outside
// the vocabulary is replaced by other tokens, which may fuse with its neighbour, so it counts as mergeable.
bool BpeModel::MayMerge(char32_t left, char32_t right) const {
  return merge_boundaries_.contains(Pair(left, right)) || IdOfCharacter(left) == kNone ||
         IdOfCharacter(right) == kNone;
}

void BpeModel::Encode(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const {
  if (word.empty()) {
    return;
  }
  if (ignore_merges_) {
    const std::optional<int32_t> id = FindInModel(word);
    if (id.has_value() && (scratch->allow_special || !special_ids_.contains(*id))) {
      ids->push_back(*id);
      return;
    }
  }
  if (word.size() <= kMaxCachedWordBytes) {
    EncodeCached(word, scratch, ids);
    return;
  }
  // Splits a long word (SentencePiece models treat a whole text as one) where no merge can reach across: the
  // parts encode as they would in the whole, and most of them are in the cache.
  size_t begin = 0;
  size_t position = 0;
  char32_t previous = NextCodePoint(word, &position);
  while (position < word.size()) {
    const size_t here = position;
    const char32_t c = NextCodePoint(word, &position);
    if (!MayMerge(previous, c)) {
      EncodeCached(word.substr(begin, here - begin), scratch, ids);
      begin = here;
    }
    previous = c;
  }
  EncodeCached(word.substr(begin), scratch, ids);
}

void BpeModel::EncodeCached(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const {
  if (word.size() > kMaxCachedWordBytes) {
    EncodeWord(word, scratch, ids);
    return;
  }
  const auto it = scratch->cache.find(absl::string_view(word.data(), word.size()));
  if (it != scratch->cache.end()) {
    const auto first = scratch->cached_ids.begin() + it->second.begin;
    ids->insert(ids->end(), first, first + it->second.count);
    return;
  }
  const size_t before = ids->size();
  EncodeWord(word, scratch, ids);
  // A full cache is not changed any more: repeated words of natural text come early.
  if (scratch->cache.size() < kMaxCachedWords) {
    const BpeScratch::CachedWord cached{static_cast<uint32_t>(scratch->cached_ids.size()),
                                        static_cast<uint32_t>(ids->size() - before)};
    scratch->cached_ids.insert(scratch->cached_ids.end(), ids->begin() + static_cast<ptrdiff_t>(before),
                               ids->end());
    scratch->cache.emplace(std::string(word), cached);
  }
}

void BpeModel::EncodeWord(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const {
  SplitIntoSymbols(word, &scratch->symbols);
  MergeAll(scratch);
  for (const BpeScratch::Symbol& symbol : scratch->symbols) {
    if (symbol.alive) {
      ids->push_back(symbol.id);
    }
  }
}

// Splits a word into symbols: one for each character, byte token or unknown. A pending unknown that may fuse
// is written when the next known character comes, after byte tokens, which is the order of Hugging Face
// `tokenizers`.
void BpeModel::SplitIntoSymbols(std::string_view word, std::vector<BpeScratch::Symbol>* symbols) const {
  symbols->clear();
  const auto add = [symbols](int32_t id) {
    const auto index = static_cast<int32_t>(symbols->size());
    symbols->push_back({id, index - 1, index + 1, true});
  };
  bool waiting = false;
  for (size_t position = 0; position < word.size();) {
    const size_t begin = position;
    const int32_t id = IdOfCharacter(NextCodePoint(word, &position));
    if (id != kNone) {
      if (waiting) {
        add(*unknown_);
        waiting = false;
      }
      add(id);
      continue;
    }
    const std::string_view bytes = word.substr(begin, position - begin);
    const auto has_token = [this](char byte) { return ids_of_bytes_[static_cast<uint8_t>(byte)] != kNone; };
    if (!ids_of_bytes_.empty() && std::all_of(bytes.begin(), bytes.end(), has_token)) {
      for (const char byte : bytes) {
        add(ids_of_bytes_[static_cast<uint8_t>(byte)]);
      }
    } else if (unknown_.has_value()) {
      if (waiting && !fuse_unknown_) {
        add(*unknown_);
      }
      waiting = true;
    }
  }
  if (waiting) {
    add(*unknown_);
  }
  if (!symbols->empty()) {
    symbols->back().next = kNone;
  }
}

const BpeModel::Merge* BpeModel::FindMerge(int32_t left, int32_t right, const BpeScratch& scratch) const {
  const auto it = merges_.find(Pair(static_cast<uint32_t>(left), static_cast<uint32_t>(right)));
  if (it == merges_.end() || (it->second.makes_special && !scratch.allow_special)) {
    return nullptr;
  }
  return &it->second;
}

namespace {

// Orders the heap so that the lowest rank, then the leftmost position, is on top.
struct ComesLater {
  template <typename Candidate>
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }
};

}  // namespace

void BpeModel::Queue(int32_t position, BpeScratch* scratch) const {
  const BpeScratch::Symbol& left = scratch->symbols[static_cast<size_t>(position)];
  if (left.next == kNone) {
    return;
  }
  const BpeScratch::Symbol& right = scratch->symbols[static_cast<size_t>(left.next)];
  if (const Merge* merge = FindMerge(left.id, right.id, *scratch); merge != nullptr) {
    scratch->heap.push_back({merge->rank, position, merge->result});
    std::push_heap(scratch->heap.begin(), scratch->heap.end(), ComesLater());
  }
}

// Applies the merge of the lowest rank, leftmost first, until none applies: a heap of candidates over a
// linked list of symbols needs O(n log n), a new search after each merge O(n^2).
void BpeModel::MergeAll(BpeScratch* scratch) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch->symbols;
  std::vector<BpeScratch::Candidate>& heap = scratch->heap;
  heap.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    if (const Merge* merge = FindMerge(symbols[i].id, symbols[i + 1].id, *scratch); merge != nullptr) {
      heap.push_back({merge->rank, static_cast<int32_t>(i), merge->result});
    }
  }
  std::make_heap(heap.begin(), heap.end(), ComesLater());
  while (!heap.empty()) {
    const BpeScratch::Candidate top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), ComesLater());
    heap.pop_back();
    BpeScratch::Symbol& left = symbols[static_cast<size_t>(top.position)];
    if (!left.alive || left.next == kNone) {
      continue;
    }
    BpeScratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    // A candidate is stale once either side was merged with another symbol.
    const Merge* merge = FindMerge(left.id, right.id, *scratch);
    if (merge == nullptr || merge->result != top.result) {
      continue;
    }
    left.id = top.result;
    left.next = right.next;
    right.alive = false;
    if (left.next != kNone) {
      symbols[static_cast<size_t>(left.next)].previous = top.position;
    }
    if (left.previous != kNone) {
      Queue(left.previous, scratch);
    }
    Queue(top.position, scratch);
  }
}

}  // namespace sluice
