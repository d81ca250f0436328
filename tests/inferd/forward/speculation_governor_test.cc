// The governor against modelled costs: what it drafts, and that the whole is not slower than plain decoding.
#include "inferd/forward/speculation_governor.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace sluice::inferd {
namespace {

Draft DraftOf(uint32_t confidence) {
  Draft draft;
  draft.count = Draft::kMaxTokens;
  draft.confidence = confidence;
  return draft;
}

// A machine whose step takes 1 + row_cost for each draft row, and texts whose drafts are right by chance.
struct Machine {
  double row_cost = 0.15;
  double right = 0.75;  // chance of each draft after right ones
  double noise = 0;     // of a step's time, relative
  uint32_t sequences = 1;
  uint32_t confidence = 1;
  double hiccups = 0;   // share of steps that take ten times as long
  bool redoes = false;  // the step after a wrong draft computes the right rows again
};

struct Outcome {
  double speed = 0;   // tokens a second per plain decoding's
  double drafts = 0;  // mean number of draft rows a step
};

class SpeculationGovernorTest : public testing::Test {
 protected:
  Outcome Run(const Machine& machine, int steps) {
    std::vector<SpeculationGovernor::Record>& records = records_;
    records.resize(machine.sequences);
    std::vector<uint32_t> redo(machine.sequences);  // rows of the next step
    double seconds = 0;
    uint64_t tokens = 0;
    uint64_t rows = 0;
    for (int step = 0; step < steps; ++step) {
      governor_.BeginStep(machine.sequences);
      std::vector<uint32_t> planned(machine.sequences);
      uint32_t drafts = 0;
      uint32_t given = 0;
      for (uint32_t i = 0; i < machine.sequences; ++i) {
        planned[i] =
            governor_.Choose(DraftOf(machine.confidence), redo[i] > 0 ? 0 : Draft::kMaxTokens, records[i]);
        uint32_t right = 0;
        while (right < planned[i] && Uniform() < machine.right) ++right;
        // A plain step compares its one token with the first draft.
        const uint32_t tried = std::min(planned[i], right + 1);
        const bool shadow = planned[i] == 0 && Uniform() < machine.right;
        governor_.NoteCompared(machine.confidence, std::max(tried, 1u), planned[i] == 0 ? shadow : right,
                               &records[i]);
        const bool wrong = planned[i] > right;
        planned[i] += redo[i];
        drafts += planned[i];
        given += 1 + right;
        redo[i] = machine.redoes && wrong ? 1 + right : 0;
      }
      const double hiccup = Uniform() < machine.hiccups ? 10 : 1;
      const double time =
          (1 + machine.row_cost * drafts) * (1 + machine.noise * (2 * Uniform() - 1)) * hiccup;
      const double gain = governor_.NoteStep(machine.sequences, drafts, given, time);
      for (uint32_t i = 0; i < machine.sequences; ++i) {
        SpeculationGovernor::NoteGain(planned[i] > 0 ? gain : 0, &records[i]);
      }
      seconds += time;
      tokens += given;
      rows += drafts;
    }
    const double plain = 1 + 9 * machine.hiccups;
    return {tokens / seconds / machine.sequences * plain, static_cast<double>(rows) / steps};
  }

  double Uniform() { return static_cast<double>(random_() >> 8) * 0x1p-24; }

  SpeculationGovernor governor_;
  std::vector<SpeculationGovernor::Record> records_;
  std::mt19937 random_{7};
};

TEST_F(SpeculationGovernorTest, FirstStepsArePlain) {
  EXPECT_EQ(Run({.right = 1}, 7).drafts, 0);
  EXPECT_GT(Run({.right = 1}, 7).drafts, 0);
}

TEST_F(SpeculationGovernorTest, CheapRowsGainAtFairAcceptance) {
  const Outcome outcome = Run({.row_cost = 0.15, .right = 0.75}, 4000);
  EXPECT_GT(outcome.speed, 1.4);
  EXPECT_GT(outcome.drafts, 1.5);
}

TEST_F(SpeculationGovernorTest, RedoneRowsAreCounted) {
  governor_ = SpeculationGovernor(/*redoes=*/true);
  const Outcome outcome = Run({.row_cost = 0.15, .right = 0.75, .redoes = true}, 4000);
  EXPECT_GT(outcome.speed, 1.25);
}

TEST_F(SpeculationGovernorTest, InterruptedStepsTurnNothingOff) {
  const Machine machine = {.row_cost = 0.2, .right = 0.9, .noise = 0.8, .confidence = 3, .hiccups = 0.15};
  for (int text = 0; text < 20; ++text) {
    records_.clear();  // another answer, of few steps
    const Outcome outcome = Run(machine, 60);
    EXPECT_GT(outcome.drafts, 1) << text;
  }
  EXPECT_GT(Run(machine, 4000).speed, 1.5);
}

TEST_F(SpeculationGovernorTest, RepeatingTextGainsTheMost) {
  const Outcome outcome = Run({.row_cost = 0.15, .right = 0.97, .confidence = 3}, 4000);
  EXPECT_GT(outcome.speed, 2.5);
  EXPECT_GT(outcome.drafts, 5);
}

TEST_F(SpeculationGovernorTest, DearRowsGetOneDraftAtMost) {
  const Outcome outcome = Run({.row_cost = 0.75, .right = 0.85}, 4000);
  EXPECT_LT(outcome.drafts, 1.2);
  EXPECT_GT(outcome.speed, 0.98);
}

TEST_F(SpeculationGovernorTest, WrongDraftsAreLeftOut) {
  const Outcome outcome = Run({.row_cost = 0.3, .right = 0.1, .confidence = 0}, 4000);
  EXPECT_LT(outcome.drafts, 0.1);
  EXPECT_GT(outcome.speed, 0.98);
}

TEST_F(SpeculationGovernorTest, NeverMuchSlowerWhateverTheMachine) {
  for (const double cost : {0.05, 0.15, 0.35, 0.6, 0.85, 1.2}) {
    for (const double right : {0.1, 0.4, 0.6, 0.75, 0.9, 1.0}) {
      for (const uint32_t sequences : {1u, 2u, 4u, 8u}) {
        for (const bool redoes : {false, true}) {
          governor_ = SpeculationGovernor(redoes);
          records_.clear();
          const Machine machine = {cost, right, /*noise=*/0.2, sequences, 1, /*hiccups=*/0, redoes};
          EXPECT_GT(Run(machine, 4000).speed, 0.98)
              << "row " << cost << " right " << right << " sequences " << sequences << " redoes " << redoes;
        }
      }
    }
  }
}

TEST_F(SpeculationGovernorTest, ManySequencesDraftLess) {
  const double alone = Run({.row_cost = 0.2, .right = 0.75}, 2000).drafts;
  const double four = Run({.row_cost = 0.2, .right = 0.75, .sequences = 4}, 2000).drafts / 4;
  EXPECT_LT(four, alone / 2);
  EXPECT_EQ(Run({.row_cost = 0.01, .right = 1, .sequences = 9}, 500).drafts, 0);
}

// A row's cost beside several sequences is a smaller share of their step, so the first drafts are soon tried.
TEST_F(SpeculationGovernorTest, SeveralSequencesDraftSoon) {
  EXPECT_GT(Run({.row_cost = 0.1, .right = 0.75, .sequences = 4}, 40).drafts, 2);
}

TEST_F(SpeculationGovernorTest, TextThatBeginsToRepeatIsFound) {
  EXPECT_LT(Run({.row_cost = 0.2, .right = 0.05, .confidence = 2}, 1000).drafts, 0.1);
  Run({.row_cost = 0.2, .right = 0.97, .confidence = 2}, 50);
  EXPECT_GT(Run({.row_cost = 0.2, .right = 0.97, .confidence = 2}, 500).speed, 1.8);
}

TEST_F(SpeculationGovernorTest, DearRowsAreTriedAgainSeldom) {
  Run({.row_cost = 3, .right = 0.95}, 3000);
  const double before = Run({.row_cost = 3, .right = 0.95}, 4000).drafts;
  EXPECT_GT(before, 0);
  EXPECT_LT(before, 0.01);
  Run({.row_cost = 0.1, .right = 0.95}, 12000);  // experts became resident
  EXPECT_GT(Run({.row_cost = 0.1, .right = 0.95}, 500).speed, 1.8);
}

TEST_F(SpeculationGovernorTest, SlowRoundsPauseASequenceEachTimeLonger) {
  SpeculationGovernor::Record record;
  uint32_t pause = 0;
  for (uint32_t expected : {32u, 64u, 128u}) {
    while (record.pause == 0) SpeculationGovernor::NoteGain(0.6, &record);
    EXPECT_EQ(record.pause, expected);
    for (pause = 0; record.pause > 0; ++pause) SpeculationGovernor::NoteGain(0, &record);
    EXPECT_EQ(pause, expected);
  }
  for (int i = 0; i < 40; ++i) SpeculationGovernor::NoteGain(1.5, &record);
  EXPECT_EQ(record.next_pause, SpeculationGovernor::kFirstPause);
}

TEST_F(SpeculationGovernorTest, SavedTimeIsThatOfPlainSteps) {
  for (int i = 0; i < 10; ++i) governor_.NoteStep(1, 0, 1, 0.01);
  EXPECT_NEAR(governor_.NoteStep(1, 2, 3, 0.02), 1.5, 1e-9);
  EXPECT_NEAR(governor_.saved_seconds(), 0.01, 1e-9);
}

}  // namespace
}  // namespace sluice::inferd
