#include "lab/cache_replay.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace sluice::inferd {
namespace {

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

class Slots {
 public:
  Slots(uint32_t experts, uint32_t slots) : slots_(slots), holds_(experts, false) {}
  bool Holds(uint32_t expert) const { return holds_[expert]; }
  bool full() const { return list_.size() >= slots_; }
  const std::vector<uint32_t>& list() const { return list_; }
  void Insert(uint32_t expert) {
    list_.push_back(expert);
    holds_[expert] = true;
  }
  void Remove(size_t place) {
    holds_[list_[place]] = false;
    list_[place] = list_.back();
    list_.pop_back();
  }

 private:
  const uint32_t slots_;
  std::vector<uint32_t> list_;
  std::vector<bool> holds_;
};

// Every access is a pass of its own; the token's scores are counted once.
ReplayCount ReplaySequential(const TraceLayer& layer, uint32_t slots, const SlotEvictionOptions& options) {
  const uint32_t experts[] = {layer.experts};
  SlotEvictionPolicy policy(options, experts);
  Slots cache(layer.experts, slots);
  ReplayCount count;
  for (uint64_t token = 0; token < layer.tokens(); ++token) {
    absl::Span<const float> scores = layer.Scores(token);
    for (const uint32_t& expert : layer.Chosen(token)) {
      count.accesses++;
      count.hits += cache.Holds(expert);
      policy.BeginLayer(0, scores, absl::MakeConstSpan(&expert, 1));
      scores = {};
      if (!cache.Holds(expert) && slots > 0) {
        if (cache.full()) cache.Remove(policy.Victim(0, cache.list()));
        cache.Insert(expert);
      }
      policy.EndLayer(0);
    }
  }
  return count;
}

}  // namespace

ReplayCount ReplayEviction(const TraceLayer& layer, uint32_t slots, const SlotEvictionOptions& options,
                           ReplayOrder order) {
  if (order == ReplayOrder::kSequential || slots < layer.top_k) {
    return ReplaySequential(layer, slots, options);
  }
  const uint32_t experts[] = {layer.experts};
  SlotEvictionPolicy policy(options, experts);
  Slots cache(layer.experts, slots);
  ReplayCount count;
  std::vector<uint32_t> by_use;  // best expert last
  for (uint64_t token = 0; token < layer.tokens(); ++token) {
    const absl::Span<const uint32_t> chosen = layer.Chosen(token);
    by_use.assign(chosen.rbegin(), chosen.rend());
    policy.BeginLayer(0, layer.Scores(token), by_use);
    for (const uint32_t expert : chosen) count.hits += cache.Holds(expert);
    count.accesses += chosen.size();
    for (const uint32_t expert : chosen) {
      if (cache.Holds(expert)) continue;
      if (cache.full()) cache.Remove(policy.Victim(0, cache.list()));
      cache.Insert(expert);
    }
    policy.EndLayer(0);
  }
  return count;
}

ReplayCount ReplayOracle(const TraceLayer& layer, uint32_t slots) {
  // By access: index of the token in which its expert is chosen next.
  std::vector<uint64_t> next(layer.chosen.size(), kNever);
  std::vector<uint64_t> seen(layer.experts, kNever);
  for (uint64_t token = layer.tokens(); token-- > 0;) {
    for (uint32_t i = layer.begin[token]; i < layer.begin[token + 1]; ++i) {
      next[i] = seen[layer.chosen[i]];
    }
    for (const uint32_t expert : layer.Chosen(token)) seen[expert] = token;
  }
  std::vector<uint64_t> again(layer.experts, kNever);  // next use of each cached expert
  Slots cache(layer.experts, slots);
  ReplayCount count;
  for (uint64_t token = 0; token < layer.tokens(); ++token) {
    const absl::Span<const uint32_t> chosen = layer.Chosen(token);
    for (const uint32_t expert : chosen) count.hits += cache.Holds(expert);
    count.accesses += chosen.size();
    for (uint32_t i = layer.begin[token]; i < layer.begin[token + 1]; ++i) again[layer.chosen[i]] = next[i];
    const auto pinned = [&](uint32_t expert) {
      return std::find(chosen.begin(), chosen.end(), expert) != chosen.end();
    };
    for (const uint32_t expert : chosen) {
      if (cache.Holds(expert) || slots < chosen.size()) continue;
      if (cache.full()) {
        size_t victim = cache.list().size();
        for (size_t i = 0; i < cache.list().size(); ++i) {
          const uint32_t held = cache.list()[i];
          if (!pinned(held) && (victim == cache.list().size() || again[held] > again[cache.list()[victim]])) {
            victim = i;
          }
        }
        cache.Remove(victim);
      }
      cache.Insert(expert);
    }
  }
  return count;
}

}  // namespace sluice::inferd
