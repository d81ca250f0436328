// Speculation: each generating sequence's drafter, the drafts of each step, and what became of them. Drafts
// come from n-grams of the sequence's own tokens, or from the model's MTP layers.
//
// A step verifies drafts as rows behind the sequence's last token: each row is sampled with the seed and
// position of plain decoding, and counts while its draft equals the token sampled before it. The logits of a
// row depend on its tokens alone where the policies promise it, so that tokens, logprobs and ends are those
// of plain decoding, at any temperature. K and V of wrong drafts are written over.
//
// The state of recurrent layers cannot be cut behind the last right draft: after a wrong one the step's rows
// are not committed, and the next step computes the right ones again with its own.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/api/engine_api.h"
#include "inferd/forward/drafter.h"
#include "inferd/forward/engine_options.h"
#include "inferd/forward/mtp_drafter.h"
#include "inferd/forward/scheduler.h"
#include "inferd/forward/sequence.h"
#include "inferd/forward/speculation_governor.h"
#include "inferd/policy/policies.h"

namespace sluice::inferd {

// Decision of an engine's start: `why` says for the log why it does not speculate, or what that may change.
struct SpeculationRule {
  bool on = false;
  bool mtp = false;     // drafts of MTP layers, else of n-grams
  bool stated = false;  // drafts that requests state alone
  std::string why;
};

// `auto` speculates where the policies promise that a token does not depend on the batch, and says otherwise
// why not; it drafts with MTP layers where `config`, the pack's, has usable ones. `ngram` and `mtp` also
// speculate without that promise, and so does `stated`; FAILED_PRECONDITION if rows are recorded or replayed,
// and for `mtp` without usable MTP layers.
absl::StatusOr<SpeculationRule> SpeculationRuleOf(const EngineOptions& options, const Policies& policies,
                                                  const ModelConfig& config);

// Drafts behind each text, as MtpDrafter::Propose; an empty draft after an error, which the source keeps.
using MtpSource =
    std::function<void(absl::Span<const MtpDrafter::Request> requests, absl::Span<Draft> drafts)>;

class Speculation final : public DraftSource {
 public:
  // `fixed_drafts`: that many drafts in every step, if there are so many; 0: the governor decides.
  // `recurrent`: the model has recurrent layers. `short_rope_limit`: as of StepRows: a sequence that grows
  // beyond it is computed anew, so no draft reaches beyond it. `find` returns the sequence of an id.
  Speculation(uint32_t fixed_drafts, bool recurrent, uint32_t short_rope_limit,
              std::function<const Sequence*(SequenceId)> find)
      : fixed_drafts_(fixed_drafts),
        short_rope_limit_(short_rope_limit),
        find_(std::move(find)),
        governor_(/*redoes=*/recurrent) {}

  // Drafts with MTP layers from here on, at most `most` tokens.
  void SetMtp(uint32_t most, MtpSource source) {
    most_mtp_ = most;
    mtp_ = std::move(source);
  }

  // Drafts only what requests state from here on.
  void SetStated() { stated_ = true; }

  void BeginStep(absl::Span<const ScheduledRows> sequences) override;
  absl::Span<const int32_t> DraftsFor(SequenceId id, uint32_t most) override;

  // Notes the tokens that a committed step gave to the sequence of `rows`.
  void NoteTokens(const ScheduledRows& rows, absl::Span<const int32_t> tokens);
  // Ends a committed step without prompt rows that lasted `seconds`.
  void EndStep(double seconds);

  // Gives the sequence no more drafts: a row of one met an error that its own rows may not meet.
  void Forgo(SequenceId id);
  // Forgets a sequence that ended.
  void Remove(SequenceId id);

  void FillStats(EngineStats* stats) const;

 private:
  struct State {
    NgramDrafter drafter;
    SpeculationGovernor::Record record;
    Draft draft;           // of the step being planned or run
    uint32_t planned = 0;  // of these: rows of the step
    uint32_t redone = 0;   // rows of the step that an earlier one computed too
    bool forgone = false;
    // MTP layers: tokens to draft next, the last draft's confidence, and steps since it was made.
    uint32_t want = 1;
    uint32_t confidence = Draft::kConfidences - 2;
    uint32_t since_draft = 0;
  };

  // Steps without a draft of MTP layers after which one is made only to be compared, which shows if drafts
  // have become better.
  static constexpr uint32_t kCompareEvery = 128;
  // Most tokens drafted where measured times decide.
  static constexpr uint32_t kMaxWanted = 4;

  State* StateOf(SequenceId id, const Sequence& sequence);
  void ProposeMtp(absl::Span<const ScheduledRows> sequences);
  uint32_t WantOf(const State& state, const Sequence& sequence, SpeculationGovernor* trial) const;
  uint32_t LimitOf(const Sequence& sequence) const;
  Draft ProposeFor(const Sequence& sequence, State* state) const;
  uint32_t FixedDraftsOf(const Sequence& sequence) const;

  const uint32_t fixed_drafts_;
  const uint32_t short_rope_limit_;
  const std::function<const Sequence*(SequenceId)> find_;
  SpeculationGovernor governor_;
  absl::flat_hash_map<SequenceId, std::unique_ptr<State>> states_;
  bool stated_ = false;
  MtpSource mtp_;  // null: n-grams, unless drafts are stated
  uint32_t most_mtp_ = 0;
  std::vector<MtpDrafter::Request> requests_;
  std::vector<State*> requesting_;
  std::vector<Draft> drafts_;
  std::vector<std::unique_ptr<State>> spare_;  // of ended sequences; their memory is used again
  // The step being planned or run.
  std::vector<SequenceId> step_;  // its decoding sequences
  uint32_t step_drafts_ = 0;
  uint32_t step_redone_ = 0;
  uint32_t step_tokens_ = 0;
  EngineStats counted_;  // its members about speculation
};

}  // namespace sluice::inferd
