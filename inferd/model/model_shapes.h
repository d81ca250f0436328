// Sizes derived from a model's layers: the maximum numbers of experts, ranks and values. Buffers, limits of
// the backend and tests use the same functions.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>

#include "common/model/model_config.h"

namespace sluice::inferd {

// True if the layer has a common expert, which every token uses at its own rank: a shared expert, or the FFN
// of a dense layer. A shared expert apart has no rank.
bool HasCommonExpert(const MoeConfig& moe);
// Number of results of a token in a layer: its routed experts, then the common one.
uint32_t RanksOf(const MoeConfig& moe);

// The following functions return the maximum of a field over all layers.
uint32_t MaxExperts(const ModelConfig& config);
uint32_t MaxRouted(
    const ModelConfig& config);  // the router's choices: experts with those that return their input
uint32_t LargestTopK(const ModelConfig& config);
uint32_t MaxRanks(const ModelConfig& config);
uint32_t WidestExpert(const ModelConfig& config);  // maximum of routed, shared and dense experts

// True if the router's weights scale the experts' inputs, then one row per rank, instead of their outputs.
bool ScalesInputs(const MoeConfig& moe);
bool AnyScalesInputs(const ModelConfig& config);

// True if draft tokens can be computed from the last layer's resident experts and run through the first
// layer's attention (forward.h): both layers have experts, outputs of experts can be left out one by one, and
// that attention keeps its history in the KV cache, not in a state that a wrong draft would advance.
bool CanDraftTokens(const ModelConfig& config);

// True if norms, a factor or a projection, not only a sum, stand between the experts' outputs and the
// residual stream, or if a part of the sum is made apart or added later.
bool NormsOutputs(const ModelConfig& config, const LayerConfig& layer);

// True if routed experts have a width of their own between two projections.
bool HasLatent(const ModelConfig& config, const MoeConfig& moe);
// Values that a layer's experts, routed or dense, take and return.
uint32_t HiddenOf(const ModelConfig& config, const MoeConfig& moe);

// Values of the gate of a layer's attention output; 0: no gate.
uint32_t GateRows(const AttentionConfig& attention);

// Number of values of a convolution row of gated delta attention and of Mamba-2.
uint32_t ConvCols(const DeltaConfig& delta);
uint32_t ConvCols(const MambaConfig& mamba);

// Floats of a layer's state that keep the rows of which entries, and keys of a pooled indexer, will be
// compressed (CompressArgs). The second begins where the first ends.
uint64_t EntryStateFloats(const AttentionConfig& attention);
uint64_t PooledStateFloats(const AttentionConfig& attention);

// Maximum number of positions of a sequence that uses the short rope factors in every layer; 0: no layer has
// long rope.
uint32_t ShortRopeLimit(const ModelConfig& config);

// The most entries that the lists of chosen blocks of a row have in a layer (ChosenBlocks in kernels/ops.h);
// 0 if no sequence of `context` positions is longer than what the indexers choose.
uint64_t WidestChoice(const ModelConfig& config, uint32_t context);

// The widest row of each activation of attention, over all layers; 0: no layer has it.
struct AttentionWidths {
  uint64_t q = 0;     // heads of q; latent: then the heads' values too; delta, Mamba: what is
                      // convolved; short convolution: b, c and x
  uint64_t k = 0;     // grouped
  uint64_t v = 0;     // grouped
  uint64_t gate = 0;  // gate of the output
  // Latent: the compressed q, the compressed kv and its rope part, q in the space of the compressed kv.
  // Delta: what decay and gate are made of. Selective: what the time steps are made of, B and C.
  uint64_t q_low = 0;
  uint64_t latent = 0;
  uint64_t absorbed = 0;
  uint64_t attended = 0;
  // An indexer: its heads of q, its key, its weights of the heads.
  uint64_t index_q = 0;
  uint64_t index_k = 0;
  uint64_t index_weights = 0;
  uint64_t index_gates = 0;  // of a pooled one
  uint64_t entries = 0;      // values, and gates, that entries are compressed of
  uint64_t state_heads =
      0;  // delta: beta's values and the decay's, the more of them; Mamba: one per time step
};
AttentionWidths WidestAttention(const ModelConfig& config);

}  // namespace sluice::inferd
