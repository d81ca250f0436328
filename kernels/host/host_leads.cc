// ExpertLeads: the lead part alone, in tiles of one block of 64 neurons, for all rows of an expert. A value
// has the bits that MoeExperts makes of it: dot products do not depend on what is computed beside them.
#include <algorithm>
#include <cstring>

#include "kernels/host/host_backend.h"
#include "kernels/host/simd/row_kind.h"
#include "pack/row_layout.h"

namespace sluice {

void HostBackend::LeadTile(const LeadCall& call, const LeadCallPart& expert, uint32_t block,
                           uint32_t worker) {
  WorkerScratch& scratch = workers_[worker];
  const uint32_t first = block * kNeuronBlock;
  const uint32_t neurons = std::min(kNeuronBlock, expert.lead.rows - first);
  const auto rows = static_cast<uint32_t>(expert.rows.size());
  const uint8_t* w[kNeuronBlock];
  for (uint32_t j = 0; j < neurons; ++j) {
    w[j] = expert.lead.Row(first + j);
  }
  // Into the tile: a kernel may write whole vectors.
  float* const* y = scratch.pointers;
  DotList({expert.lead.encoding, expert.lead.cols, w, neurons, 0}, expert.rows, worker, y);
  host::FactorCall factor;
  factor.activation = call.activation;
  factor.bias = expert.bias == nullptr ? nullptr : expert.bias + first;
  factor.n = neurons;
  uint64_t active = 0;
  for (uint32_t i = 0; i < rows; ++i) {
    factor.x = factor.y = y[i];
    call.up ? kernels_.up_factor(factor) : kernels_.gate_factor(factor);
    active |= kernels_.keep_mask(y[i], neurons, expert.threshold);
    std::memcpy(expert.values.Row(i) + first, y[i], neurons * sizeof(float));
  }
  if (expert.active != nullptr) {
    expert.active[block] = active;
  }
}

void HostBackend::Run(const LeadCall& call) {
  uint32_t tiles = 0;
  uint64_t work = 0;
  for (const LeadCallPart& expert : call.experts) {
    if (IsQuantized(expert.lead.encoding.encoding)) {
      Form(expert.lead.encoding.group).wanted = true;
    }
    tiles += (expert.lead.rows + kNeuronBlock - 1) / kNeuronBlock;
    work += uint64_t{expert.lead.rows} * call.hidden * expert.rows.size();
  }
  for (uint32_t t = 0; t < call.tokens; ++t) {
    x_rows_[t] = call.x.Row(t);
  }
  QuantizeRows(x_rows_, call.tokens, call.hidden);
  RunTiles(tiles, work, [&](uint32_t tile, uint32_t worker) {
    size_t e = 0;
    for (uint32_t blocks = 0;; tile -= blocks, ++e) {
      blocks = (call.experts[e].lead.rows + kNeuronBlock - 1) / kNeuronBlock;
      if (tile < blocks) {
        break;
      }
    }
    LeadTile(call, call.experts[e], tile, worker);
  });
}

}  // namespace sluice
