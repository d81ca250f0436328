#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/text/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/common/text/golden.h"

namespace sluice {
namespace {

TEST(TokenizerThreadsTest, ThreadsShareOneTokenizer) {
  const auto loaded = Tokenizer::Load(GoldenDir("bytebpe_deepseek"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tokenizer* const tokenizer = loaded->get();
  const std::vector<GoldenCase> cases = ReadGoldenCases(GoldenDir("bytebpe_deepseek") + "/cases.jsonl");
  std::vector<std::thread> threads;
  std::vector<int> right(4, 0);
  for (size_t t = 0; t < right.size(); ++t) {
    threads.emplace_back([tokenizer, &cases, &right, t] {
      for (const GoldenCase& golden : cases) {
        const auto ids = tokenizer->Encode(golden.text, {golden.add_special_tokens, true});
        right[t] +=
            ids.ok() && *ids == golden.ids && *tokenizer->Decode(*ids, false) == golden.decoded ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(std::vector<int>(4, static_cast<int>(cases.size())), right);
}

}  // namespace
}  // namespace sluice
