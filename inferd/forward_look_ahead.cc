// What the next layer will probably want (importance-driven 5.2), found while experts of this one travel.
#include <algorithm>
#include <cstring>

#include "common/status.h"
#include "inferd/forward.h"

namespace sluice {

void Forward::MarkComputed(uint32_t layer, const ReadyTile& tile) {
  const uint32_t width = config_.layers[layer].moe.expert_width;
  if (tile.neuron_end == 0 || tile.neuron_end >= width) {
    computed_[tile.demand] = 1;
  }
}

bool Forward::SomethingMissing() const {
  const size_t demands = plan_.demands().size();
  return std::count(computed_.begin(), computed_.begin() + static_cast<std::ptrdiff_t>(demands), 0) > 0;
}

// The residual without the experts that are still missing goes through the next layer's attention. K and V
// that the rows have there by this guess stand where that attention writes the rows' own in the same step,
// before anybody reads them, and a recurrent state is replaced the same way: nothing of the guess is kept.
absl::Status Forward::LookAhead(uint32_t layer, const StepBatch& batch) {
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
  RETURN_IF_ERROR(queue_->Combine(
      {outputs_, ahead_weights_, tokens, ranks, config_.hidden, x_, ahead_, config_.residual_scale}));
  RETURN_IF_ERROR(Attend(layer + 1, ahead_, batch));
  RouterTap tap;
  tap.layer = layer;
  tap.residual = ahead_;
  tap.routing.tokens = tokens;
  tap.batch = &batch;
  return tap_->LookAhead(tap);
}

}  // namespace sluice
