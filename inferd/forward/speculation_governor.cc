#include "inferd/forward/speculation_governor.h"

#include <algorithm>
#include <cmath>

namespace sluice::inferd {
namespace {

// Chances before anything was compared, by class of confidence, and their weight in comparisons.
constexpr std::array<double, Draft::kConfidences> kFirstChance = {0.35, 0.55, 0.7, 0.85};
constexpr double kFirstWeight = 4;
// Weight of the engine's comparisons in a sequence's chance.
constexpr double kCommonWeight = 4;
// Fade of sliding sums per comparison: a sequence's follow its text, the engine's change slowly.
constexpr double kFade = 0.9;
constexpr double kCommonFade = 0.995;

// Cost of a row beside one sequence before it was measured: between resident experts (0.1 to 0.2) and missing
// ones (0.8). Beside several it is a smaller share of their step.
constexpr double kFirstRowCost = 0.5;
constexpr double kMinRowCost = 0.01;
constexpr double kMaxRowCost = 4;
// Weight of a new measurement in the sliding means of times and costs, and of a trial's.
constexpr double kLatest = 0.125;
constexpr double kLatestTrial = 0.5;
// A measurement counts as at most this multiple of the mean, and at least its inverse: a step that was
// interrupted takes many times its work. Means are geometric, so that noise of either sign cancels out and
// they come near the median.
constexpr double kMaxJump = 2;
// The factor by which a draft must pay, against noise.
constexpr double kMargin = 1.02;

// Steps with drafts after which a plain one measures the base again.
constexpr uint32_t kPlainEvery = 32;
// Share of the time that trials of drafts which seem too dear may cost, and the bounds of their interval in
// plain steps. Drafts less likely are not tried.
constexpr double kTrialShare = 0.01;
constexpr double kShortestInterval = 8;
constexpr double kLongestInterval = 1024;
constexpr double kWorthTrial = 0.5;

// Rounds before a sequence may pause, and the weight of a round in its gain.
constexpr uint32_t kFewestRounds = 6;
constexpr double kLatestRound = 0.125;

void Slide(double value, double weight, double* mean) {
  *mean *= std::pow(std::clamp(value / *mean, 1 / kMaxJump, kMaxJump), weight);
}

void Add(uint32_t confidence, uint32_t tried, uint32_t right, double fade,
         SpeculationGovernor::Acceptance* sums) {
  for (uint32_t i = 0; i < tried; ++i) {
    sums->tried[confidence] = sums->tried[confidence] * fade + 1;
    sums->right[confidence] = sums->right[confidence] * fade + (i < right ? 1 : 0);
  }
}

}  // namespace

SpeculationGovernor::SpeculationGovernor(bool redoes) : redoes_(redoes) {
  for (uint32_t sequences = 0; sequences <= kMaxSequences; ++sequences) {
    costs_[sequences].row = kFirstRowCost / std::max(sequences, 1u);
  }
}

void SpeculationGovernor::BeginStep(uint32_t sequences) {
  sequences_ = sequences;
  rows_ = 0;
  expected_ = 0;
}

double SpeculationGovernor::Chance(uint32_t confidence, const Record& record) const {
  const double common = (acceptance_.right[confidence] + kFirstWeight * kFirstChance[confidence]) /
                        (acceptance_.tried[confidence] + kFirstWeight);
  return (record.acceptance.right[confidence] + kCommonWeight * common) /
         (record.acceptance.tried[confidence] + kCommonWeight);
}

uint32_t SpeculationGovernor::Choose(const Draft& draft, uint32_t most, const Record& record) {
  most = std::min(most, draft.count);
  if (most == 0 || record.pause > 0 || sequences_ > kMaxSequences) {
    return 0;
  }
  const Costs& costs = costs_[sequences_];
  if (costs.plain_steps < kFirstPlainSteps || costs.since_plain >= kPlainEvery) {
    return 0;
  }
  const double chance = Chance(draft.confidence, record);
  // The first step with drafts measures likely ones, the next have few, one more every other time: a row may
  // cost more than expected.
  if (costs.measured == 0 && chance < kWorthTrial) {
    return 0;
  }
  const double room = 1 + static_cast<double>(costs.measured / 2) - rows_;
  most = room < most ? static_cast<uint32_t>(std::max(room, 0.0)) : most;
  // Tokens a plain step's time, for each number of drafts.
  const auto rate = [&](double rows, double right) {
    return (sequences_ + expected_ + right) / (1 + (rows_ + rows) * costs.row);
  };
  double best = rate(0, 0) * kMargin;
  uint32_t count = 0;
  double rows = 0;
  double right = 0;
  double all_before = 1;  // the chance that all drafts before this one are right
  double redone = 0;
  double sum = 0;
  for (uint32_t i = 1; i <= most; ++i) {
    redone += redoes_ ? all_before * (1 - chance) * i : 0;
    all_before *= chance;
    sum += all_before;
    if (rate(i + redone, sum) > best) {
      best = rate(i + redone, sum);
      count = i;
      rows = i + redone;
      right = sum;
    }
  }
  if (count == 0 && rows_ == 0 && chance >= kWorthTrial &&
      costs.since_drafts >= TrialInterval(costs, chance)) {
    count = 1;
    rows = 1;
    right = chance;
  }
  rows_ += rows;
  expected_ += right;
  return count;
}

// Plain steps between two trials of one draft: its time beyond what it probably saves stays within their
// share.
double SpeculationGovernor::TrialInterval(const Costs& costs, double chance) const {
  const double loss = costs.row - chance / sequences_;
  return std::clamp(loss / kTrialShare, kShortestInterval, kLongestInterval);
}

void SpeculationGovernor::NoteCompared(uint32_t confidence, uint32_t tried, uint32_t right, Record* record) {
  Add(confidence, tried, right, kFade, &record->acceptance);
  Add(confidence, tried, right, kCommonFade, &acceptance_);
}

// The first steps fill caches: their median is the first estimate.
void SpeculationGovernor::NotePlain(double seconds, Costs* costs) {
  if (costs->plain_steps < kFirstPlainSteps) {
    costs->first[costs->plain_steps++] = seconds;
    if (costs->plain_steps == kFirstPlainSteps) {
      std::nth_element(costs->first.begin(), costs->first.begin() + kFirstPlainSteps / 2, costs->first.end());
      costs->plain = costs->first[kFirstPlainSteps / 2];
    }
  } else {
    Slide(seconds, kLatest, &costs->plain);
  }
}

double SpeculationGovernor::NoteStep(uint32_t sequences, uint32_t further, uint32_t tokens, double seconds) {
  if (sequences == 0 || sequences > kMaxSequences || seconds <= 0) {
    return 0;
  }
  Costs& costs = costs_[sequences];
  if (further == 0) {
    NotePlain(seconds, &costs);
    costs.since_plain = 0;
    costs.since_drafts++;
    return 0;
  }
  const bool trial = costs.since_drafts >= kShortestInterval;
  costs.since_plain++;
  costs.since_drafts = 0;
  if (costs.plain <= 0) {
    return 0;
  }
  costs.measured++;
  const double weight = trial ? kLatestTrial : std::max(kLatest, 1.0 / (costs.measured + 1));
  const double cost = (seconds / costs.plain - 1) / further;
  if (costs.measured == 1) {
    costs.row = std::clamp(cost, costs.row, kMaxRowCost);  // no later mean may start too low
  } else {
    Slide(std::clamp(cost, kMinRowCost, kMaxRowCost), weight, &costs.row);
  }
  const double usual = costs.plain * (1 + further * costs.row);
  const double counted = std::clamp(seconds, usual / kMaxJump, usual * kMaxJump);
  const double gain = tokens * costs.plain / (sequences * counted);
  saved_seconds_ += tokens * costs.plain / sequences - counted;
  return gain;
}

void SpeculationGovernor::NoteGain(double gain, Record* record) {
  if (gain <= 0) {
    record->pause -= record->pause > 0 ? 1 : 0;
    return;
  }
  record->gain += (gain - record->gain) * kLatestRound;
  if (++record->rounds < kFewestRounds) {
    return;
  }
  if (record->gain >= 1) {
    record->next_pause = kFirstPause;
    return;
  }
  record->pause = record->next_pause;
  record->next_pause = std::min(2 * record->next_pause, kLongestPause);
  record->gain = 1;
  record->rounds = 0;
}

}  // namespace sluice::inferd
