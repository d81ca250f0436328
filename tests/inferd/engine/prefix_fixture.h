// Fixture: requests that begin alike, and the number of their cached tokens.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/inferd/engine/engine_fixture.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {

inline std::vector<int32_t> Text(uint32_t seed, size_t count, uint32_t vocab = 64) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random() % vocab);
  }
  return ids;
}

inline std::vector<int32_t> operator+(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class PrefixTest : public EngineTest {
 protected:
  struct Said {
    std::vector<int32_t> ids;
    std::vector<TokenOut> tokens;
    uint32_t cached = 0;
  };
  static void ExpectSame(const Said& a, const Said& b) {
    ASSERT_EQ(a.ids, b.ids);
    for (size_t t = 0; t < a.tokens.size(); ++t) {
      ASSERT_EQ(a.tokens[t].logprob, b.tokens[t].logprob) << "token " << t;
      for (size_t c = 0; c < a.tokens[t].candidates.size(); ++c) {
        ASSERT_EQ(a.tokens[t].candidates[c].logprob, b.tokens[t].candidates[c].logprob) << "token " << t;
      }
    }
  }

  GenerateSpec Spec(std::vector<int32_t> prompt, uint32_t max_tokens) {
    GenerateSpec spec = GreedySpec(absl::StrCat("r", ++requests_), std::move(prompt), max_tokens);
    spec.logprobs = 20;
    return spec;
  }
  Said Say(const GenerateSpec& spec) {
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(engine().Generate(spec, sink).ok());
    EXPECT_TRUE(sink->Await().ok()) << sink->Await();
    EXPECT_EQ(sink->info().usage.prompt_tokens, spec.prompt.size());
    return {sink->ids(), sink->tokens(), sink->info().usage.cached_prompt_tokens};
  }
  Said Say(std::vector<int32_t> prompt, uint32_t max_tokens = 4) {
    return Say(Spec(std::move(prompt), max_tokens));
  }
  Said SayAnew(std::vector<int32_t> prompt, uint32_t max_tokens = 4) {
    GenerateSpec spec = Spec(std::move(prompt), max_tokens);
    spec.bypass_prefix_cache = true;
    return Say(spec);
  }
  void StartFamily(const std::string& family) {
    pack_ = dir_.File(family);
    ASSERT_TRUE(PackFolder("tests/data/tiny/" + family, pack_).ok());
    Start();
  }

  int requests_ = 0;
};

}  // namespace sluice::inferd
