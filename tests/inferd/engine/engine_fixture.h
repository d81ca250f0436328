// Fixture: an engine over a tiny model, for tests from the client's view.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "inferd/engine/engine.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {

inline TinyModelSpec SmallModel() {
  TinyModelSpec spec;
  spec.vocab = 64;
  spec.layers = 2;
  spec.experts = 8;
  spec.eos = {2, 3};
  return spec;
}

class EngineTest : public testing::Test {
 protected:
  void SetUp() override {
    pack_ = dir_.File("pack");
    const absl::Status status = PackTiny(SmallModel(), dir_.File("model"), pack_);
    ASSERT_TRUE(status.ok()) << status;
    options_.engine.context = 256;
  }

  void Start() {
    absl::StatusOr<TestEngine> test = StartEngine(pack_, options_);
    ASSERT_TRUE(test.ok()) << test.status();
    test_ = std::move(*test);
  }
  Engine& engine() { return *test_.engine; }

  std::vector<int32_t> Answer(const GenerateSpec& spec) {
    const absl::StatusOr<std::vector<int32_t>> ids = GenerateIds(&engine(), spec);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.ok() ? *ids : std::vector<int32_t>();
  }

  TempDir dir_;
  std::string pack_;
  TestEngineOptions options_;
  TestEngine test_;
};

}  // namespace sluice::inferd
