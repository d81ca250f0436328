// The governor of speculation: how many drafts a step verifies, so that it is never slower than plain
// decoding for long.
//
// A step of B sequences with R draft rows takes t(B) (1 + R c(B)): t and c are sliding means of measured
// steps, by B. A draft is worth its row while the chance that all drafts up to it are right, divided by its
// cost, exceeds the tokens that the step gives for its time without it. So a step of many sequences drafts
// less, and one that reads its experts from disk hardly at all. The chance is measured by class of
// confidence, of the sequence and of all sequences.
//
// Behind that estimate stands what was measured: a sequence whose last rounds were slower than plain steps
// pauses, for twice as many steps each time. While nothing is drafted the drafter's proposals are still
// compared with the tokens that come, which costs nothing, and one draft is tried now and then to measure its
// cost again: so seldom that trials cost a hundredth of the time at most.
//
// Times are arguments: no clock. Nothing here changes a token.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates.
#pragma once

#include <array>
#include <cstdint>

#include "inferd/forward/drafter.h"

namespace sluice::inferd {

class SpeculationGovernor {
 public:
  // Steps of more sequences have no drafts.
  static constexpr uint32_t kMaxSequences = 8;
  // First and longest pause after slow rounds, in steps.
  static constexpr uint32_t kFirstPause = 32;
  static constexpr uint32_t kLongestPause = 1024;
  // Plain steps before the first draft.
  static constexpr uint32_t kFirstPlainSteps = 7;

  // Drafts compared with tokens, and how many were right; sliding sums by class of confidence.
  struct Acceptance {
    std::array<double, Draft::kConfidences> tried{};
    std::array<double, Draft::kConfidences> right{};
  };

  // Measurements of one sequence.
  struct Record {
    Acceptance acceptance;
    double gain = 1;      // tokens of the last rounds per token of plain steps in the same time
    uint32_t rounds = 0;  // rounds with drafts since the last pause
    uint32_t pause = 0;   // steps left without drafts
    uint32_t next_pause = kFirstPause;
  };

  // `redoes`: a step with a wrong draft is redone up to it, with the next step.
  explicit SpeculationGovernor(bool redoes = false);

  // Begins the plan of a step of `sequences` rows.
  void BeginStep(uint32_t sequences);
  // Number of tokens of `draft`, at most `most`, that are worth a row in the step being planned, which counts
  // them.
  uint32_t Choose(const Draft& draft, uint32_t most, const Record& record);

  // Notes that the first `tried` tokens of a draft were compared with the tokens that came, up to the first
  // wrong one.
  void NoteCompared(uint32_t confidence, uint32_t tried, uint32_t right, Record* record);
  // Notes a step without prompt rows: `further` rows, of drafts and redone ones, beside those of `sequences`;
  // `tokens` given. Returns its gain: its tokens per token that plain steps give in this time; 0: it had no
  // further rows, or plain steps were not measured.
  double NoteStep(uint32_t sequences, uint32_t further, uint32_t tokens, double seconds);
  // Notes the gain of a step for a sequence that had further rows in it (`gain` > 0) or had none.
  static void NoteGain(double gain, Record* record);

  // Estimated chance that a draft is right if those before it are.
  double Chance(uint32_t confidence, const Record& record) const;
  // Seconds of a plain step of so many sequences, 0: not measured; and the cost of a draft's row as a share.
  double plain_seconds(uint32_t sequences) const { return costs_[sequences].plain; }
  double row_cost(uint32_t sequences) const { return costs_[sequences].row; }
  // Sum over all steps with further rows of the time that plain steps would have taken for their tokens, less
  // the time taken, without outliers.
  double saved_seconds() const { return saved_seconds_; }

 private:
  struct Costs {
    std::array<double, kFirstPlainSteps> first{};  // seconds of the first plain steps
    double plain = 0;                              // seconds
    double row = 0;                                // share of `plain`
    uint32_t measured = 0;                         // steps with further rows
    uint32_t plain_steps = 0;                      // of the first ones
    uint32_t since_plain = 0;                      // steps with drafts since the last plain one
    uint32_t since_drafts = 0;                     // plain steps since the last one with drafts
  };

  double TrialInterval(const Costs& costs, double chance) const;
  static void NotePlain(double seconds, Costs* costs);

  bool redoes_;
  std::array<Costs, kMaxSequences + 1> costs_;  // by sequences
  Acceptance acceptance_;                       // of all sequences
  double saved_seconds_ = 0;
  // The step being planned.
  uint32_t sequences_ = 0;
  double rows_ = 0;      // expected further rows, with those that the next step will redo
  double expected_ = 0;  // expected right drafts
};

}  // namespace sluice::inferd
