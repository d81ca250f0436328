#include "inferd/forward/token_guess.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference_backend.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class TokenGuessTest : public testing::Test {
 protected:
  // Adds a text whose one row is at `position`, generated unless said.
  void AddText(StepBatch* batch, int32_t token, uint32_t position, uint64_t number, bool generated = true) {
    batch->Add(std::vector<int32_t>{token}, {.first_position = position,
                                             .pages = absl::MakeConstSpan(&pages_[number], 1),
                                             .decode_from = generated ? 0 : 0xffffffffu,
                                             .number = number});
  }
  void Guess(std::vector<int32_t> tokens) {
    guess_.FindFollowed(step_);
    guess_.Make(step_, tokens);
  }

  const std::vector<uint32_t> pages_ = {0, 1, 2, 3};
  const std::unique_ptr<Backend> device_ = *CreateReferenceBackend({});
  TokenGuess guess_{{.max_sequences = 4, .context = 40, .rows = 4}, &device_->queue()};
  StepBatch step_{8, 4};
  StepBatch next_{8, 4};
};

TEST_F(TokenGuessTest, WhatHasAPlaceForItsNextTokenIsFollowed) {
  step_.Clear(1);
  AddText(&step_, 5, 3, 1);
  AddText(&step_, 6, 31, 2);  // the next token begins a page
  AddText(&step_, 7, 39, 3);  // and here the text is full
  EXPECT_THAT(guess_.FindFollowed(step_), ElementsAre(0));
}

TEST_F(TokenGuessTest, NobodyIsFollowedBesideAPrompt) {
  step_.Clear(1);
  AddText(&step_, 5, 3, 1);
  AddText(&step_, 6, 4, 2, /*generated=*/false);
  EXPECT_THAT(guess_.FindFollowed(step_), IsEmpty());
}

TEST_F(TokenGuessTest, ATextThatMetDamagedWeightsIsNotFollowed) {
  step_.Clear(1);
  AddText(&step_, 5, 3, 1);
  AddText(&step_, 6, 4, 2);
  step_.Fail(0, /*extent=*/9);
  EXPECT_THAT(guess_.FindFollowed(step_), ElementsAre(1));
}

TEST_F(TokenGuessTest, TheSameTokensOfTheSameTextsAreWhatWasGuessed) {
  step_.Clear(1);
  AddText(&step_, 5, 3, 1);
  AddText(&step_, 6, 4, 2);
  Guess({8, 9});
  EXPECT_THAT(guess_.guessed().ids(), ElementsAre(8, 9));
  next_.Clear(2);
  AddText(&next_, 8, 4, 1);
  AddText(&next_, 9, 5, 2);
  EXPECT_TRUE(guess_.Take(next_));
  EXPECT_FALSE(guess_.Take(next_)) << "it is used up";
  EXPECT_EQ(guess_.counts().made, 1u);
  EXPECT_EQ(guess_.counts().right, 1u);
}

TEST_F(TokenGuessTest, AnotherTokenTextPositionOrStepIsNot) {
  struct Case {
    int32_t token;
    uint32_t position;
    uint64_t number;
    uint64_t step;
  };
  for (const Case& wrong : {Case{7, 4, 1, 2}, Case{8, 5, 1, 2}, Case{8, 4, 2, 2}, Case{8, 4, 1, 3}}) {
    step_.Clear(1);
    AddText(&step_, 5, 3, 1);
    Guess({8});
    next_.Clear(wrong.step);
    AddText(&next_, wrong.token, wrong.position, wrong.number);
    EXPECT_FALSE(guess_.Take(next_)) << wrong.token << " " << wrong.position << " " << wrong.number;
  }
  EXPECT_EQ(guess_.counts().right, 0u);
}

// Takes a second for whatever it is asked about.
class SlowDevice final : public ReferenceBackend {
 public:
  SlowDevice() : ReferenceBackend({}) {}
  absl::StatusOr<double> Seconds(Event, Event) override { return 1.0; }
};

TEST_F(TokenGuessTest, WhatAGuessTakesIsTimedByTheDevice) {
  for (const bool slow : {false, true}) {
    SlowDevice device;
    Queue& queue = slow ? device.queue() : device_->queue();
    TokenGuess guess({.max_sequences = 4, .context = 40, .rows = 4}, &queue);
    guess.BeginWait(1);
    guess.EndWait();
    EXPECT_TRUE(guess.Pays(1)) << "none was made";
    const Event from = queue.Record();
    guess.Making(from, queue.Record());
    guess.EndWait();
    EXPECT_EQ(guess.Pays(slow ? 1 : 1'000'000), !slow);
  }
}

}  // namespace
}  // namespace sluice
