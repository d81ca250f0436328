#include "inferd/engine/speculation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "inferd/model/kv_cache.h"
#include "inferd/model/model_shapes.h"

namespace sluice::inferd {
namespace {

bool PromisesBatches(const Policies& policies) {
  const std::vector<PolicyPromise> promises = Promises(policies);
  return std::all_of(promises.begin(), promises.end(), [](const PolicyPromise& p) { return p.kept; });
}

// Reason why the model's MTP layers cannot draft; empty: they can.
std::string NoMtp(DeviceKind device, const Policies& policies, const ModelConfig& config) {
  if (config.mtp_layers == 0) {
    return "the pack has no MTP layers: its model has none, or it was packed by an earlier version, or it is "
           "the index of a file in place (sluice pack)";
  }
  if (device == DeviceKind::kCuda) {
    return "device cuda does not draft with MTP layers";
  }
  if (policies.sparsity.order != SparsityOrder::kNone) {
    return absl::StrCat("preset ", policies.preset,
                        " leaves neurons out by a profile, which knows no MTP layers");
  }
  if (WidestWindow(config) > 0) {
    return absl::StrCat("no layer sees more than ", WidestWindow(config), " positions");
  }
  return ShortRopeLimit(config) > 0 ? "the model has another rope table for long texts" : "";
}

const char* NameOf(SpeculateMode mode) {
  return mode == SpeculateMode::kMtp ? "mtp" : mode == SpeculateMode::kNgram ? "ngram" : "stated";
}

}  // namespace

absl::StatusOr<SpeculationRule> SpeculationRuleOf(const EngineOptions& options, const Policies& policies,
                                                  const ModelConfig& config) {
  const bool wanted = options.speculate != SpeculateMode::kAuto;
  const bool stated = options.speculate == SpeculateMode::kStated;
  if (options.speculate == SpeculateMode::kOff) {
    return SpeculationRule{};
  }
  if (!options.trace.empty() || !options.replay_trace.empty()) {
    const char* why = "a trace has the rows of plain decoding alone";
    if (wanted) {
      return absl::FailedPreconditionError(
          absl::StrCat("--speculate ", NameOf(options.speculate), ": ", why));
    }
    return SpeculationRule{.why = absl::StrCat("no speculation: ", why)};
  }
  const std::string no_mtp = NoMtp(options.device, policies, config);
  if (options.speculate == SpeculateMode::kMtp && !no_mtp.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("--speculate mtp: ", no_mtp));
  }
  const bool mtp = options.speculate != SpeculateMode::kNgram && !stated && no_mtp.empty();
  if (PromisesBatches(policies)) {
    // Packs without MTP layers are common, and no news.
    const bool unused = options.speculate == SpeculateMode::kAuto && config.mtp_layers > 0 && !mtp;
    return SpeculationRule{true, mtp, stated,
                           unused ? absl::StrCat("MTP layers do not draft: ", no_mtp) : ""};
  }
  if (wanted) {
    return SpeculationRule{true, mtp, stated,
                           absl::StrCat("speculation may change tokens: under preset ", policies.preset,
                                        " they depend on the batch")};
  }
  return SpeculationRule{.why =
                             absl::StrCat("no speculation: under preset ", policies.preset,
                                          " tokens depend on the batch (--speculate ngram drafts anyway)")};
}

void Speculation::BeginStep(absl::Span<const ScheduledRows> sequences) {
  step_.clear();
  step_drafts_ = 0;
  step_redone_ = 0;
  step_tokens_ = 0;
  governor_.BeginStep(static_cast<uint32_t>(sequences.size()));
  if (mtp_ != nullptr) {
    ProposeMtp(sequences);
  }
}

// Returns the number of tokens to draft with MTP layers: drafts cost time, so none are made that would
// probably not be verified, but now and then one to compare.
uint32_t Speculation::WantOf(const State& state, const Sequence& sequence, SpeculationGovernor* trial) const {
  if (state.forgone) {
    return 0;
  }
  const uint32_t limit = std::min(most_mtp_, LimitOf(sequence));
  if (fixed_drafts_ > 0) {
    return std::min(limit, fixed_drafts_);
  }
  Draft expected;
  expected.count = std::min({limit, kMaxWanted, state.want});
  expected.confidence = state.confidence;
  if (trial->Choose(expected, expected.count, state.record) > 0) {
    return expected.count;
  }
  const bool compare = state.since_draft >= kCompareEvery && state.record.pause == 0;
  return compare ? std::min(limit, 1u) : 0;
}

// Drafts for all sequences of the step at once.
void Speculation::ProposeMtp(absl::Span<const ScheduledRows> sequences) {
  requests_.clear();
  requesting_.clear();
  if (sequences.size() > SpeculationGovernor::kMaxSequences && fixed_drafts_ == 0) {
    return;
  }
  SpeculationGovernor trial = governor_;
  for (const ScheduledRows& rows : sequences) {
    const Sequence& sequence = *find_(rows.id);
    if (sequence.draft_limit() == 0) {
      continue;
    }
    State* state = StateOf(rows.id, sequence);
    state->draft.count = 0;
    state->since_draft++;
    // Redone rows are committed before further drafts are verified.
    if (const uint32_t want = rows.redone > 0 ? 0 : WantOf(*state, sequence, &trial); want > 0) {
      requests_.push_back({{rows.id, rows.slot, sequence.tokens()}, want});
      requesting_.push_back(state);
    }
  }
  if (requests_.empty()) {
    return;
  }
  drafts_.assign(requests_.size(), Draft());
  mtp_(requests_, absl::MakeSpan(drafts_));
  for (size_t i = 0; i < requesting_.size(); ++i) {
    requesting_[i]->draft = drafts_[i];
    requesting_[i]->since_draft = 0;
    requesting_[i]->confidence = drafts_[i].count > 0 ? drafts_[i].confidence : requesting_[i]->confidence;
  }
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
    state->draft = {};
    state->want = 1;
    state->confidence = Draft::kConfidences - 2;
    state->since_draft = 0;
    if (mtp_ == nullptr && !stated_) {
      state->drafter.Begin(static_cast<uint32_t>(sequence.tokens().size()) + sequence.draft_limit() + 1);
    }
  }
  return state.get();
}

uint32_t Speculation::LimitOf(const Sequence& sequence) const {
  const uint32_t length = static_cast<uint32_t>(sequence.tokens().size());
  const uint32_t limit = sequence.draft_limit();
  return short_rope_limit_ == 0 || length > short_rope_limit_ ? limit
                                                              : std::min(limit, short_rope_limit_ - length);
}

Draft Speculation::ProposeFor(const Sequence& sequence, State* state) const {
  if (!stated_) {
    return state->drafter.Propose(sequence.tokens());
  }
  const StatedDrafts* stated = sequence.stated_drafts();
  return stated == nullptr ? Draft() : DraftStated(*stated, sequence.generated());
}

// Returns the number of drafts of every step; 0: the governor decides.
uint32_t Speculation::FixedDraftsOf(const Sequence& sequence) const {
  const StatedDrafts* stated = sequence.stated_drafts();
  return stated != nullptr && stated->all ? stated->drafts : fixed_drafts_;
}

absl::Span<const int32_t> Speculation::DraftsFor(SequenceId id, uint32_t most) {
  step_.push_back(id);
  const Sequence& sequence = *find_(id);
  if (sequence.draft_limit() == 0) {
    return {};
  }
  State* state = StateOf(id, sequence);
  if (mtp_ == nullptr) {
    // Made even if none is verified: comparing it with the next token measures the drafter at no cost.
    state->draft = ProposeFor(sequence, state);
  }
  most = state->forgone ? 0 : std::min({most, state->draft.count, LimitOf(sequence)});
  const uint32_t fixed = FixedDraftsOf(sequence);
  state->planned = fixed > 0 ? std::min(most, fixed) : governor_.Choose(state->draft, most, state->record);
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
  if (draft.count > 0) {
    state->want = right == draft.count ? std::min(state->want + 1, kMaxWanted) : right + 1;
  }
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
