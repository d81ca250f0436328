// Sizes that follow from a model's layers: how many experts, ranks and values the widest of them has.
// Buffers, limits of the backend and tests use the same functions.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>

#include "common/model/model_config.h"

namespace sluice {

// Whether every token goes through an expert of its own rank: a shared expert, or the FFN of a dense layer.
bool HasCommonExpert(const MoeConfig& moe);
// Results of a token in a layer: its routed experts, then the common one.
uint32_t RanksOf(const MoeConfig& moe);

// The largest of a field over all layers.
uint32_t MostExperts(const ModelConfig& config);
uint32_t LargestTopK(const ModelConfig& config);
uint32_t MostRanks(const ModelConfig& config);
uint32_t WidestExpert(const ModelConfig& config);  // routed, shared and dense ones

// Whether the router's weights scale the experts' inputs, whose rows are then one per rank, not their
// outputs.
bool ScalesInputs(const MoeConfig& moe);
bool AnyScalesInputs(const ModelConfig& config);

// Whether what follows a step can be guessed from the last layer's experts at hand and taken through the
// first layer's attention (forward.h): both layers have experts, outputs of experts can be left out one by
// one, and that attention keeps its past in the KV cache, not in a state that a wrong guess would advance.
bool CanGuessTokens(const ModelConfig& config);

// Whether more than a sum comes between what the experts give and the residual stream: norms, or a factor.
bool NormsOutputs(const LayerConfig& layer);

// Values of a row of the convolution of gated delta attention and of Mamba-2.
uint32_t ConvCols(const DeltaConfig& delta);
uint32_t ConvCols(const MambaConfig& mamba);

// Positions up to which a text is short for every layer with long rope; 0: no layer has it.
uint32_t ShortTextLimit(const ModelConfig& config);

// The widest row of each activation of attention, over all layers; 0: no layer has it.
struct AttentionWidths {
  uint64_t q = 0;         // heads of q; latent: then the heads' values too; delta, Mamba: what is
                          // convolved; short convolution: b, c and x
  uint64_t k = 0;         // grouped
  uint64_t v = 0;         // grouped
  uint64_t gate = 0;      // what the output is gated with
  uint64_t q_low = 0;     // latent: the compressed q
  uint64_t latent = 0;    // latent: the compressed kv and its rope part
  uint64_t absorbed = 0;  // latent: q in the space of the compressed kv
  uint64_t attended = 0;
  uint64_t state_heads = 0;  // delta: one value per head, of beta and of decay; Mamba: of the time step
};
AttentionWidths WidestAttention(const ModelConfig& config);

}  // namespace sluice
