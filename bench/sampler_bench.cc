// Sampling: what a row costs, beside what its step reads. The mark: 16 rows of a vocabulary of 152k in at
// most 2 % of a step. The step of a 30B-A3B model with 16 rows reads most of its experts; the least it can be
// is the head alone (152k rows of 2048 bf16 values = 622 MB), which every step with such a vocabulary
// computes: its reading time on this machine, measured in the same run, is printed as the base.
//
// Workloads: greedy with penalties, temperature, top-k 40, top-p 0.9, min-p 0.05, all together; logits as a
// trained model's: normal with deviation 3 and a few high peaks.
#include <chrono>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "inferd/forward/sampler.h"

namespace {

constexpr uint32_t kVocab = 152064;
constexpr uint32_t kRows = 16;
constexpr uint64_t kHeadBytes = uint64_t{kVocab} * 2048 * 2;

double Seconds(const std::chrono::steady_clock::time_point& start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Best of some rounds, of one thread summing words of a buffer beyond any cache.
double ReadSecondsOfTheHead() {
  std::vector<uint64_t> words(kHeadBytes / 8, 1);
  double best = 1e9;
  uint64_t sum = 0;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    sum += std::accumulate(words.begin(), words.end(), uint64_t{0});
    best = std::min(best, Seconds(start));
  }
  return sum == 0 ? 0 : best;
}

struct Workload {
  const char* name;
  sluice::inferd::SamplingParams params;
};

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<std::vector<float>> rows(kRows, std::vector<float>(kVocab));
  for (std::vector<float>& row : rows) {
    for (float& logit : row) {
      logit = normal(random);
    }
    for (int i = 0; i < 30; ++i) {
      row[random() % kVocab] = 14.0f + normal(random);
    }
  }
  sluice::inferd::TokenCounts counts;
  counts.Reserve(4096);
  for (int i = 0; i < 2000; ++i) {
    counts.AddGenerated(static_cast<int32_t>(random() % kVocab));
  }
  sluice::inferd::SamplingParams greedy;
  greedy.repetition_penalty = 1.1f;
  sluice::inferd::SamplingParams plain;
  plain.temperature = 0.8f;
  sluice::inferd::SamplingParams top_k = plain;
  top_k.top_k = 40;
  sluice::inferd::SamplingParams top_p = plain;
  top_p.top_p = 0.9f;
  sluice::inferd::SamplingParams min_p = plain;
  min_p.min_p = 0.05f;
  sluice::inferd::SamplingParams all = top_p;
  all.top_k = 100;
  all.min_p = 0.02f;
  all.repetition_penalty = 1.1f;
  const Workload workloads[] = {{"greedy, penalty", greedy}, {"temperature", plain}, {"top-k 40", top_k},
                                {"top-p 0.9", top_p},        {"min-p 0.05", min_p},  {"all", all}};
  const double base = ReadSecondsOfTheHead();
  std::printf("reading the head (%.0f MB) with one thread: %.2f ms\n", kHeadBytes * 1e-6, base * 1e3);
  std::printf("%-16s %12s %14s\n", "workload", "16 rows, ms", "share of base");
  sluice::inferd::Sampler sampler(kVocab);
  for (const Workload& workload : workloads) {
    double total = 0;  // over the rows, of each row's best
    int64_t checksum = 0;
    for (uint32_t row = 0; row < kRows; ++row) {
      double best = 1e9;
      for (int round = 0; round < 20; ++round) {
        sluice::inferd::SampleInput input;
        input.logits = rows[row];
        input.params = &workload.params;
        input.seed = row;
        input.position = round;
        input.counts = &counts;
        const auto start = std::chrono::steady_clock::now();
        checksum += sampler.Sample(input);
        best = std::min(best, Seconds(start));
      }
      total += best;
    }
    std::printf("%-16s %12.2f %13.1f%%   (sum of ids %lld)\n", workload.name, total * 1e3, 100 * total / base,
                static_cast<long long>(checksum));
  }
  return 0;
}
