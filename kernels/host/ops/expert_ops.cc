// MoeExperts, also for experts that ids name, with the part Experts; and ExpertLeads: the lead part alone, in
// tiles of one block of 64 neurons, for all rows of an expert. Lead values have the same bits as in
// MoeExperts, because dot products do not depend on the rows computed with them.
#include <algorithm>
#include <cstring>

#include "kernels/host/ops/device.h"

namespace sluice::cpu {

namespace {

void LeadTile(Device& d, const ExpertLeadsCall& call, const LeadCallPart& expert, uint32_t block,
              uint32_t worker) {
  const uint32_t first = block * kNeuronBlock;
  const uint32_t neurons = std::min(kNeuronBlock, expert.lead.rows - first);
  const auto rows = static_cast<uint32_t>(expert.rows.size());
  const uint8_t* w[kNeuronBlock];
  for (uint32_t j = 0; j < neurons; ++j) {
    w[j] = expert.lead.Row(first + j);
  }
  // Written to the tile first, since a kernel may write whole vectors.
  float* const* y = d.space.workers[worker].rows[0];
  d.lists.Dot({expert.lead.encoding, expert.lead.cols, w, neurons, 0}, expert.rows, worker, y);
  FactorCall factor;
  factor.activation = call.activation;
  factor.bias = expert.bias == nullptr ? nullptr : expert.bias + first;
  factor.n = neurons;
  uint64_t active = 0;
  for (uint32_t i = 0; i < rows; ++i) {
    factor.x = factor.y = y[i];
    call.up ? d.kernels.up_factor(factor) : d.kernels.gate_factor(factor);
    active |= d.kernels.keep_mask(y[i], neurons, expert.threshold);
    std::memcpy(expert.values.Row(i) + first, y[i], neurons * sizeof(float));
  }
  if (expert.active != nullptr) {
    expert.active[block] = active;
  }
}

}  // namespace

void Run(Device& d, const ExpertLeadsCall& call) {
  uint32_t tiles = 0;
  uint64_t work = 0;
  for (const LeadCallPart& expert : call.experts) {
    d.rounded.RequestForm(expert.lead.encoding);
    tiles += (expert.lead.rows + kNeuronBlock - 1) / kNeuronBlock;
    work += uint64_t{expert.lead.rows} * call.hidden * expert.rows.size();
  }
  for (uint32_t t = 0; t < call.tokens; ++t) {
    d.space.x_rows[t] = call.x.Row(t);
  }
  d.rounded.Make(d.space.x_rows, call.tokens, call.hidden);
  d.tiles.Run(tiles, work, [&](uint32_t tile, uint32_t worker) {
    size_t e = 0;
    for (uint32_t blocks = 0;; tile -= blocks, ++e) {
      blocks = (call.experts[e].lead.rows + kNeuronBlock - 1) / kNeuronBlock;
      if (tile < blocks) {
        break;
      }
    }
    LeadTile(d, call, call.experts[e], tile, worker);
  });
}

void Run(Device& d, const MoeExpertsCall& call) { d.experts.Run(call); }

void Run(Device& d, const RoutedExpertsCall& call) { Run(d, GroupByExpert(call)); }

void Run(Device& d, const RoutedLeadsCall& call) { Run(d, AsLeads(call)); }

}  // namespace sluice::cpu
