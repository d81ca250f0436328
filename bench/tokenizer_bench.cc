// Tokenizer speed. Workloads, each 1 MiB: English-like words, one word without spaces, Chinese, spaces.
// Prints MB/s of Encode and Decode and, as a share, Encode beside a plain pass over the characters in the
// same run.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <string>

#include "common/base/utf8.h"
#include "common/text/tokenizer.h"
#include "tests/common/text/golden.h"

namespace sluice {
namespace {

constexpr size_t kBytes = 1 << 20;

double BestSeconds(const std::function<void()>& work) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

std::string Words(std::mt19937* random) {
  std::string text;
  while (text.size() < kBytes) {
    // About the distribution of lengths and repeats of English: few short words make most of the text.
    const uint32_t word = (*random)() % ((*random)() % 4 == 0 ? 20000 : 200);
    std::mt19937 letters(word);
    for (uint32_t i = 2 + letters() % 8; i > 0; --i) {
      text.push_back(static_cast<char>('a' + letters() % 26));
    }
    text += (*random)() % 12 == 0 ? ", " : " ";
  }
  return text;
}

std::string Characters(std::mt19937* random, char32_t first, uint32_t count) {
  std::string text;
  while (text.size() < kBytes) {
    AppendUtf8(first + (*random)() % count, &text);
  }
  return text;
}

int Run() {
  std::mt19937 random(1);
  const std::pair<const char*, std::string> workloads[] = {{"words", Words(&random)},
                                                           {"one word", Characters(&random, 'a', 26)},
                                                           {"chinese", Characters(&random, 0x4E00, 20000)},
                                                           {"spaces", std::string(kBytes, ' ')}};
  std::printf("%-18s %-9s %12s %12s %16s\n", "tokenizer", "text", "encode MB/s", "decode MB/s",
              "of a plain pass");
  for (const char* name : kGoldenTokenizers) {
    const auto tokenizer = Tokenizer::Load(GoldenDir(name));
    if (!tokenizer.ok()) {
      std::fprintf(stderr, "%s (run in the source tree's root)\n",
                   std::string(tokenizer.status().message()).c_str());
      return 1;
    }
    for (const auto& workload : workloads) {
      const std::string& text = workload.second;
      std::vector<int32_t> ids;
      const double encode = BestSeconds([&] { ids = *(*tokenizer)->Encode(text, {false, true}); });
      const double decode = BestSeconds([&] { (void)(*tokenizer)->Decode(ids, false); });
      uint64_t sum = 0;
      const double pass = BestSeconds([&] {
        for (size_t i = 0; i < text.size();) {
          sum += NextCodePoint(text, &i);
        }
      });
      const double megabytes = static_cast<double>(text.size()) / 1e6;
      std::printf("%-18s %-9s %12.1f %12.1f %15.1f%%%s\n", name, workload.first, megabytes / encode,
                  megabytes / decode, 100 * pass / encode, sum == 0 ? "!" : "");
    }
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main() { return sluice::Run(); }
