#include "inferd/residency/slots/slot_keeper.h"

#include <algorithm>

namespace sluice::inferd {

SlotKeeper::SlotKeeper(const SlotEvictionOptions& options, const std::vector<uint32_t>& experts,
                       SlotTable* table)
    : table_(table), experts_(experts), policy_(options, experts) {
  scores_.reserve(experts.empty() ? 0 : *std::max_element(experts.begin(), experts.end()));
}

void SlotKeeper::SetScores(absl::Span<const float> scores) {
  scores_.assign(scores.begin(), scores.begin() + std::min(scores.size(), scores_.capacity()));
}

void SlotKeeper::BeginLayer(uint32_t layer, absl::Span<const uint32_t> chosen, bool streams) {
  const bool scored = scores_.size() == experts_[layer] && !streams;
  policy_.BeginLayer(layer, scored ? absl::MakeConstSpan(scores_) : absl::Span<const float>(),
                     streams ? absl::Span<const uint32_t>() : chosen);
  scores_.clear();
}

void SlotKeeper::NoteUse(uint32_t layer, absl::Span<const uint32_t> used) {
  policy_.BeginLayer(layer, {}, used);
  policy_.EndLayer(layer);
}

void SlotKeeper::EndLayer(uint32_t layer) {
  policy_.EndLayer(layer);
  table_->TrimLayer(layer, *this);
}

}  // namespace sluice::inferd
