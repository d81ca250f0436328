// What the next layer will probably want (importance-driven 5.2), or after the last layer the next token's
// first, found while experts of this one travel.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/status.h"
#include "inferd/forward/forward.h"

namespace sluice {

void Forward::MarkComputed(uint32_t layer, const ReadyTile& tile) {
  const uint32_t width = config_.layers[layer].moe.expert_width;
  if (tile.neuron_end == 0 || tile.neuron_end >= width) {
    computed_[tile.demand] = 1;
  }
}

// Experts of the running layer.
uint32_t Forward::Missing() const {
  const auto end = computed_.begin() + static_cast<std::ptrdiff_t>(plan_.demands().size());
  return static_cast<uint32_t>(std::count(computed_.begin(), end, 0));
}

// What is there of the layer has been computed, and something is missing.
absl::Status Forward::UseWait(uint32_t layer, bool look_ahead, const StepBatch& batch) {
  if (look_ahead) {
    return LookAhead(layer, batch);
  }
  if (!options_.guess_tokens || tap_ == nullptr) {
    return absl::OkStatus();
  }
  FindFollowed(batch);
  if (followed_.empty()) {
    return absl::OkStatus();
  }
  const int64_t now = clock_.NowNanos();
  if (layer + 1 == config_.layers.size() && guess_timing_.Pays(Missing()) && tap_->WantsNextTokens()) {
    RETURN_IF_ERROR(GuessTokens(layer, batch));
    guess_timing_.AddGuess(clock_.NowNanos() - now);
  } else {
    wait_begin_ = now;
    wait_missing_ = Missing();
  }
  return absl::OkStatus();
}

void Forward::EndWait() {
  if (const int64_t begin = std::exchange(wait_begin_, 0); begin != 0) {
    guess_timing_.AddWait(wait_missing_, clock_.NowNanos() - begin);
  }
}

// ahead_ = the residual after `layer` without the experts that are still missing.
absl::Status Forward::CombineComputed(uint32_t layer, const StepBatch& batch) {
  const uint32_t tokens = batch.tokens();
  const uint32_t ranks = RanksOf(config_.layers[layer].moe);
  const uint64_t bytes = uint64_t{tokens} * ranks * sizeof(float);
  const std::byte* weights = backend_->HostRead(expert_weights_, bytes);
  std::byte* known = backend_->HostWrite(ahead_weights_, bytes);
  if (weights == nullptr || known == nullptr) {
    return absl::InternalError("the router's staging memory cannot be read or written");
  }
  std::memcpy(known, weights, bytes);
  float* known_weights = reinterpret_cast<float*>(known);
  for (uint32_t demand = 0; demand < plan_.demands().size(); ++demand) {
    for (const uint32_t slot : computed_[demand] != 0 ? absl::Span<const uint32_t>() : plan_.slots(demand)) {
      known_weights[slot] = 0.0f;
    }
  }
  return queue_->Combine(
      {outputs_, ahead_weights_, tokens, ranks, config_.hidden, x_, ahead_, config_.residual_scale});
}

// That residual goes through the next layer's attention. K and V that the rows have there by this guess stand
// where that attention writes the rows' own in the same step, before anybody reads them, and a recurrent
// state is replaced the same way: nothing of the guess is kept.
absl::Status Forward::LookAhead(uint32_t layer, const StepBatch& batch) {
  RETURN_IF_ERROR(CombineComputed(layer, batch));
  RETURN_IF_ERROR(Attend(layer + 1, ahead_, batch));
  RouterTap tap;
  tap.layer = layer;
  tap.residual = ahead_;
  tap.routing.tokens = batch.tokens();
  tap.batch = &batch;
  return tap_->LookAhead(tap);
}

// Rows whose next token has a place in the KV cache already: generated ones, since only their texts go on
// for certain, whose page is not full.
void Forward::FindFollowed(const StepBatch& batch) {
  followed_.clear();
  if (batch.decode_rows() != batch.sequences().size() || batch.decode_rows() != batch.tokens() ||
      batch.tokens() > options_.logit_rows) {
    return;
  }
  for (const SequenceRows& text : batch.sequences()) {
    const uint32_t next = text.first_position + 1;
    if (next % kPageTokens != 0 && next < options_.context && !batch.lost(text.first_row)) {
      followed_.push_back(text.first_row);
    }
  }
}

// The head's choice by that residual is the guess. K and V of the guessed tokens in the first layer stand
// where the next step writes those of the real ones, before anybody reads them. If it begins with just these
// tokens they are the same to the bit, as is what attention made of them, so that is not computed again.
absl::Status Forward::GuessTokens(uint32_t layer, const StepBatch& batch) {
  const uint32_t count = static_cast<uint32_t>(followed_.size());
  RETURN_IF_ERROR(CombineComputed(layer, batch));
  RETURN_IF_ERROR(RunHead(ahead_, followed_, /*k=*/1));
  const std::byte* best = backend_->HostRead(top_ids_, uint64_t{count} * sizeof(int32_t));
  if (best == nullptr) {
    return absl::InternalError("the logits' staging memory cannot be read");
  }
  guessed_.Clear(batch.step());
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t index = batch.sequence_of(followed_[i]);
    const SequenceRows& text = batch.sequences()[index];
    const BatchPlace place = {.first_position = text.first_position + 1,
                              .pages = text.pages,
                              .long_text = index >= batch.short_texts().size(),
                              .decode_from = 0,
                              .number = batch.number(index)};
    guessed_.Add(absl::MakeConstSpan(reinterpret_cast<const int32_t*>(best) + i, 1), place);
  }
  guess_counts_.made++;
  RETURN_IF_ERROR(queue_->Embed({guessed_.ids(), weights_.embed(), config_.embedding_scale, ahead_}));
  RETURN_IF_ERROR(Attend(0, ahead_, guessed_));
  RouterTap tap;
  tap.layer = layer;
  tap.residual = ahead_;
  tap.routing.tokens = count;
  tap.batch = &guessed_;
  return tap_->NextTokens(tap);
}

// Whether `batch` is what was guessed at the end of the step before: the same tokens of the same texts.
bool Forward::WasGuessed(const StepBatch& batch) const {
  if (guessed_.tokens() == 0 || batch.step() != guessed_.step() + 1 || batch.ids() != guessed_.ids() ||
      batch.sequences().size() != guessed_.sequences().size() ||
      batch.short_texts().size() != guessed_.short_texts().size()) {
    return false;
  }
  for (uint32_t i = 0; i < batch.sequences().size(); ++i) {
    const SequenceRows& text = batch.sequences()[i];
    const SequenceRows& guess = guessed_.sequences()[i];
    if (batch.number(i) != guessed_.number(i) || text.rows != guess.rows ||
        text.first_position != guess.first_position || text.pages.data() != guess.pages.data()) {
      return false;
    }
  }
  return true;
}

}  // namespace sluice
