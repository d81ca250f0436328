// Drafts by a model's multi-token prediction (MTP) layers, from the hidden states behind its final norm.
//
// Step p of the first layer takes the hidden state h at position p and the token at p + 1, and its output h'
// predicts the token at p + 2. A model with one layer drafts further tokens by feeding it with h' and its own
// draft; one with several layers has the second take h' for h, one token further, and so on
// (common/model/mtp_layers.h). Each layer has K and V of its own in the sequence's pages, at the position of
// h, so they are cut and shared as the model's are. These entries change drafts alone, never a token: an
// entry at the end of a shared prefix may belong to another token behind it, or be missing where a sequence
// was preempted.
//
// Hidden states of a step are kept for each slot, and K and V of the layers are computed from up to kRows of
// them at once, so that a sequence that drafts nothing reads the layers' weights seldom.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/forward/drafter.h"
#include "inferd/forward/forward.h"
#include "inferd/model/kv_cache.h"
#include "inferd/model/step_batch.h"

namespace sluice::inferd {

class MtpDrafter {
 public:
  // Hidden states kept for each slot, at most.
  static constexpr uint32_t kRows = 64;

  // A sequence and its tokens: those that the model has seen, and the next one.
  struct Text {
    uint64_t number = 0;  // of the sequence, never used again for another
    uint32_t slot = 0;    // of its pages
    absl::Span<const int32_t> tokens;
  };
  struct Request {
    Text text;
    uint32_t most = 0;  // tokens to draft
  };

  // Device bytes beside those of the forward pass.
  static uint64_t Bytes(const ModelConfig& config, const ForwardOptions& limits);

  // FAILED_PRECONDITION if the model has no MTP layers, or no layer that sees all positions. All arguments
  // outlive the drafter.
  static absl::StatusOr<std::unique_ptr<MtpDrafter>> Create(const ModelConfig& config,
                                                            const ForwardOptions& limits, Forward* forward,
                                                            KvCache* kv, Backend* backend);

  // Keeps the hidden states of rows [row, row + count) of the forward pass's last batch, which are positions
  // `first` and so on of the text. Rows whose next token is not known are left out.
  absl::Status Keep(const Text& text, uint32_t row, uint32_t count, uint32_t first);
  // Computes K and V for all kept states but the last ones, of a text that ends: others may continue it.
  absl::Status Finish(const Text& text) { return Fill(text); }
  // Drafts up to `most` tokens behind each text; none where its hidden states are not known, or a layer met
  // damaged weights. REQUIRES: drafts.size() == requests.size(). Errors as Forward::Run.
  absl::Status Propose(absl::Span<const Request> requests, absl::Span<Draft> drafts);
  // Forgets all hidden states, after an error.
  void Forget();

  // Most tokens that a text's draft may have.
  uint32_t most_drafts() const { return layers_ > 1 ? layers_ : Draft::kMaxTokens; }

 private:
  // Hidden states of positions [first, first + count) of a sequence.
  struct Kept {
    uint64_t number = 0;
    uint32_t first = 0;
    uint32_t count = 0;
  };
  // A text being drafted: rows [row, row + rows) of the last batch, whose last one predicts.
  struct Chain {
    uint32_t request = 0;
    uint32_t row = 0;
    uint32_t rows = 0;
  };

  MtpDrafter(const ModelConfig& config, const ForwardOptions& limits, Forward* forward, KvCache* kv,
             Backend* backend);
  Rows RowOf(uint32_t slot, uint32_t index) const;
  bool IsCurrent(const Text& text) const;
  absl::Status Fill(const Text& text);
  void BeginChains(absl::Span<const Request> requests);
  bool HasRoom(const Text& text, uint32_t position) const;
  void PlanStage(uint32_t stage, absl::Span<const Request> requests, absl::Span<const Draft> drafts);
  absl::Status RunStage(uint32_t stage, absl::Span<Draft> drafts);

  const uint32_t hidden_;
  const uint32_t layers_;
  const uint32_t rows_;  // kept for each slot
  const ForwardOptions limits_;
  Forward* const forward_;
  KvCache* const kv_;
  Backend* const backend_;
  Rows states_;             // [slots * rows_, hidden]
  Rows out_;                // [T, hidden]: a layer's normed outputs
  std::vector<Kept> kept_;  // by slot
  StepBatch batch_;
  std::vector<int32_t> tokens_;    // of one text in the batch
  std::vector<uint32_t> row_ids_;  // of the batch's rows in the last stage's outputs, or in states_
  std::vector<uint32_t> lasts_;    // rows that predict
  std::vector<Chain> chains_;
  std::vector<Chain> next_;
};

}  // namespace sluice::inferd
