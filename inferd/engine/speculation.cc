#include "inferd/engine/speculation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

bool PromisesBatches(const Policies& policies) {
  const std::vector<PolicyPromise> promises = Promises(policies);
  return std::all_of(promises.begin(), promises.end(), [](const PolicyPromise& p) { return p.kept; });
}

}  // namespace

absl::StatusOr<SpeculationRule> SpeculationRuleOf(const EngineOptions& options, const Policies& policies) {
  const bool wanted = options.speculate == SpeculateMode::kNgram;
  if (options.speculate == SpeculateMode::kOff) {
    return SpeculationRule{};
  }
  if (!options.trace.empty() || !options.replay_trace.empty()) {
    const char* why = "a trace has the rows of plain decoding alone";
    if (wanted) {
      return absl::FailedPreconditionError(absl::StrCat("--speculate ngram: ", why));
    }
    return SpeculationRule{false, absl::StrCat("no speculation: ", why)};
  }
  if (PromisesBatches(policies)) {
    return SpeculationRule{true, ""};
  }
  if (wanted) {
    return SpeculationRule{true, absl::StrCat("speculation may change tokens: under preset ", policies.preset,
                                              " they depend on the batch")};
  }
  return SpeculationRule{false,
                         absl::StrCat("no speculation: under preset ", policies.preset,
                                      " tokens depend on the batch (--speculate ngram drafts anyway)")};
}

void Speculation::BeginStep(uint32_t sequences) {
  step_.clear();
  step_drafts_ = 0;
  step_redone_ = 0;
  step_tokens_ = 0;
  governor_.BeginStep(sequences);
}

Speculation::State* Speculation::StateOf(SequenceId id, const Sequence& sequence) {
  std::unique_ptr<State>& state = states_[id];
  if (state == nullptr) {
    if (spare_.empty()) {
      state = std::make_unique<State>();
    } else {
      state = std::move(spare_.back());
      spare_.pop_back();
    }
    state->record = {};
    state->forgone = false;
    state->drafter.Begin(static_cast<uint32_t>(sequence.tokens().size()) + sequence.draft_limit() + 1);
  }
  return state.get();
}

uint32_t Speculation::LimitOf(const Sequence& sequence) const {
  const uint32_t length = static_cast<uint32_t>(sequence.tokens().size());
  const uint32_t limit = sequence.draft_limit();
  return short_rope_limit_ == 0 || length > short_rope_limit_ ? limit
                                                              : std::min(limit, short_rope_limit_ - length);
}

absl::Span<const int32_t> Speculation::DraftsFor(SequenceId id, uint32_t most) {
  step_.push_back(id);
  const Sequence& sequence = *find_(id);
  if (sequence.draft_limit() == 0) {
    return {};
  }
  State* state = StateOf(id, sequence);
  // Made even if none is verified: comparing it with the next token measures the drafter at no cost.
  state->draft = state->drafter.Propose(sequence.tokens());
  most = state->forgone ? 0 : std::min({most, state->draft.count, LimitOf(sequence)});
  state->planned =
      fixed_drafts_ > 0 ? std::min(most, fixed_drafts_) : governor_.Choose(state->draft, most, state->record);
  return state->draft.first(state->planned);
}

void Speculation::NoteTokens(const ScheduledRows& rows, absl::Span<const int32_t> tokens) {
  step_tokens_ += static_cast<uint32_t>(tokens.size());
  const auto found = states_.find(rows.id);
  if (found == states_.end()) {
    return;
  }
  State* state = found->second.get();
  const Draft& draft = state->draft;
  uint32_t tried = 0;
  uint32_t right = 0;
  while (tried == right && tried < std::min<size_t>(draft.count, tokens.size())) {
    right += draft.tokens[tried] == tokens[tried] ? 1 : 0;
    ++tried;
  }
  governor_.NoteCompared(draft.confidence, tried, right, &state->record);
  state->draft.count = 0;
  state->redone = rows.redone;
  step_redone_ += rows.redone;
  const uint32_t verified = static_cast<uint32_t>(rows.drafts.size());
  step_drafts_ += verified;
  for (uint32_t i = 0; i < verified; ++i) {
    counted_.drafts_verified[i]++;
    counted_.drafts_accepted[i] += i + 1 < tokens.size() ? 1 : 0;
  }
}

void Speculation::EndStep(double seconds) {
  const uint32_t sequences = static_cast<uint32_t>(step_.size());
  const double gain = governor_.NoteStep(sequences, step_drafts_ + step_redone_, step_tokens_, seconds);
  counted_.speculation_steps += step_drafts_ > 0 ? 1 : 0;
  for (const SequenceId id : step_) {
    if (const auto found = states_.find(id); found != states_.end()) {
      State* state = found->second.get();
      SpeculationGovernor::NoteGain(state->planned + state->redone > 0 ? gain : 0, &state->record);
    }
  }
}

void Speculation::Forgo(SequenceId id) {
  if (const auto found = states_.find(id); found != states_.end()) {
    found->second->forgone = true;
  }
}

void Speculation::Remove(SequenceId id) {
  if (const auto found = states_.find(id); found != states_.end()) {
    spare_.push_back(std::move(found->second));
    states_.erase(found);
  }
}

void Speculation::FillStats(EngineStats* stats) const {
  stats->speculation_steps = counted_.speculation_steps;
  stats->speculation_saved_seconds = governor_.saved_seconds();
  stats->drafts_verified = counted_.drafts_verified;
  stats->drafts_accepted = counted_.drafts_accepted;
}

}  // namespace sluice::inferd
