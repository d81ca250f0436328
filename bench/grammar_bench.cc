// GrammarManager: cost of a mask relative to its step, and cost of compiling. Target: sampling with a mask
// and the engine thread's other work for it take at most 2 % of a step. A step of a 30B-A3B model with 16
// rows reads at least the head (152k rows of 2048 bf16 values = 622 MB); the time to read that on this
// machine is the baseline.
//
// Workloads: a vocabulary of 152k byte strings like those of a BPE; schemas of 5 and of 50 fields, a regex,
// any JSON object; answers drawn at random among the allowed tokens. Prints the times of compiling, of the
// first mask, of a mask (computed beside the step by the masks' thread), of the engine thread per token
// (handing over, and waiting if necessary), and of sampling 16 rows with and without a mask.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "inferd/forward/sampler.h"
#include "inferd/grammar/grammar_compiler.h"
#include "inferd/grammar/grammar_manager.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kVocab = 152064;
constexpr uint32_t kRows = 16;
constexpr int32_t kEnd = kVocab - 1;
constexpr uint64_t kHeadBytes = uint64_t{kVocab} * 2048 * 2;

double Seconds(const Clock::time_point& start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double ReadSecondsOfTheHead() {
  std::vector<uint64_t> words(kHeadBytes / 8, 1);
  double best = 1e9;
  uint64_t sum = 0;
  for (int round = 0; round < 5; ++round) {
    const auto start = Clock::now();
    sum += std::accumulate(words.begin(), words.end(), uint64_t{0});
    best = std::min(best, Seconds(start));
  }
  return sum == 0 ? 0 : best;
}

// Returns all bytes, all pairs of printable characters, words with and without a space before them, and JSON
// punctuation.
sluice::inferd::GrammarVocabulary MakeVocabulary() {
  sluice::inferd::GrammarVocabulary vocabulary;
  std::vector<std::string>& tokens = vocabulary.tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(std::string(1, static_cast<char>(byte)));
  }
  for (const char* text : {"\": ", "\":", "\",", "\"}", "{\"", ", \"", "\"\n", " {", " [", "],", "},", "true",
                           "false", "null"}) {
    tokens.push_back(text);
  }
  for (char a = ' '; a <= '~'; ++a) {
    for (char b = ' '; b <= '~'; ++b) {
      tokens.push_back(std::string{a, b});
    }
  }
  std::mt19937 random(1);
  while (tokens.size() < kVocab - 200) {
    std::string word = random() % 2 == 0 ? " " : "";
    for (uint32_t length = 2 + random() % 8; length > 0; --length) {
      word.push_back(static_cast<char>('a' + random() % 26));
    }
    tokens.push_back(word);
  }
  tokens.resize(kVocab);  // special tokens at the end
  vocabulary.size = kVocab;
  vocabulary.end_ids = {kEnd};
  return vocabulary;
}

std::string SchemaOf(int fields) {
  const char* kinds[] = {R"({"type":"string"})", R"({"type":"integer"})", R"({"type":"boolean"})",
                         R"({"enum":["red","green","blue"]})",
                         R"({"type":"array","items":{"type":"number"}})"};
  std::string properties;
  std::string required;
  for (int i = 0; i < fields; ++i) {
    const std::string name = "\"field_" + std::to_string(i) + "\"";
    properties += (i == 0 ? "" : ",") + name + ":" + kinds[i % 5];
    required += (i == 0 ? "" : ",") + name;
  }
  return R"({"type":"object","properties":{)" + properties + "},\"required\":[" + required + "]}";
}

int32_t DrawAllowed(const uint32_t* mask, std::mt19937* random) {
  std::vector<int32_t> allowed;
  for (uint32_t word = 0; word < (kVocab + 31) / 32; ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      allowed.push_back(static_cast<int32_t>(word * 32 + static_cast<uint32_t>(__builtin_ctz(bits))));
    }
  }
  return allowed.empty() ? -1 : allowed[(*random)() % allowed.size()];
}

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// Draws random answers with one matcher after the other; times each mask together with the Accept() before
// it.
void BenchMasks(const char* name, const sluice::inferd::GrammarSpec& spec,
                const sluice::inferd::GrammarVocabulary& vocabulary) {
  sluice::inferd::GrammarCompiler compiler(&vocabulary);
  compiler.Compile(*sluice::inferd::SourceOf({sluice::inferd::GrammarSpec::Kind::kChoice, "", {"a"}}))
      .IgnoreError();
  const auto start = Clock::now();
  const auto source = sluice::inferd::SourceOf(spec);
  const auto constraint = compiler.Compile(*source);
  const double compile = Seconds(start);
  if (!constraint.ok()) {
    std::printf("%-22s %s\n", name, constraint.status().ToString().c_str());
    return;
  }
  std::mt19937 random(3);
  std::vector<double> first;
  std::vector<double> later;
  std::vector<uint32_t> mask;
  for (int answer = 0; answer < 20; ++answer) {
    const auto begin = Clock::now();
    auto matcher = *sluice::inferd::GrammarMatcher::Create(*constraint, vocabulary.end_ids);
    bool ok = matcher->FillMask(&mask).ok();
    first.push_back(Seconds(begin));
    for (int step = 0; step < 300 && ok; ++step) {
      const int32_t token = DrawAllowed(mask.data(), &random);
      if (token < 0 || token == kEnd) {
        break;
      }
      const auto at = Clock::now();
      ok = matcher->Accept(token).ok() && matcher->FillMask(&mask).ok();
      later.push_back(Seconds(at));
    }
  }
  std::printf("%-22s %11.1f %11.1f %11.1f %11.1f %11.1f\n", name, compile * 1e3, Percentile(first, 0.5) * 1e6,
              Percentile(later, 0.5) * 1e6, Percentile(later, 0.9) * 1e6, Percentile(later, 0.99) * 1e6);
}

// Times the engine thread's part, with a step of `step_seconds` between two tokens.
void BenchEngineThread(const sluice::inferd::GrammarVocabulary& vocabulary, double base) {
  sluice::inferd::GrammarManager grammars(vocabulary);
  std::mt19937 random(3);
  const double step_seconds = base;
  std::vector<double> spent;
  for (int answer = 0; answer < 3; ++answer) {
    auto constraint =
        *grammars.Start({sluice::inferd::GrammarSpec::Kind::kJsonSchema, SchemaOf(50), {}}, {kEnd});
    while (constraint->state() == sluice::inferd::GrammarConstraint::State::kPreparing) {
    }
    for (int step = 0; step < 40; ++step) {
      auto at = Clock::now();
      const auto next = constraint->Wait();
      double seconds = Seconds(at);
      const int32_t token = next.ok() && next->any ? DrawAllowed(next->allowed.data(), &random) : kEnd;
      if (token == kEnd) {
        break;
      }
      at = Clock::now();
      constraint->Accept(token);
      seconds += Seconds(at);
      spent.push_back(seconds);
      for (const auto begin = Clock::now(); Seconds(begin) < step_seconds;) {
      }
    }
  }
  std::printf("engine thread, a token: %.1f us median, %.1f us p99; 16 sequences: %.2f %% of the base\n",
              Percentile(spent, 0.5) * 1e6, Percentile(spent, 0.99) * 1e6,
              1600 * Percentile(spent, 0.5) / base);
}

double SampleRows(const std::vector<std::vector<float>>& rows, const sluice::inferd::SamplingParams& params,
                  const std::vector<uint32_t>& mask) {
  sluice::inferd::Sampler sampler(kVocab);
  double total = 0;
  int64_t checksum = 0;
  for (uint32_t row = 0; row < kRows; ++row) {
    double best = 1e9;
    for (int round = 0; round < 20; ++round) {
      sluice::inferd::SampleInput input;
      input.logits = rows[row];
      input.params = &params;
      input.seed = row;
      input.position = static_cast<uint64_t>(round);
      input.allowed = mask;
      const auto start = Clock::now();
      checksum += sampler.Sample(input);
      best = std::min(best, Seconds(start));
    }
    total += best;
  }
  return checksum == -1 ? 0 : total;
}

void BenchSampler(const sluice::inferd::GrammarVocabulary& vocabulary, double base) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<std::vector<float>> rows(kRows, std::vector<float>(kVocab));
  for (std::vector<float>& row : rows) {
    std::generate(row.begin(), row.end(), [&] { return normal(random); });
  }
  std::vector<uint32_t> words(kVocab / 32 + 1, 0);  // all tokens without a quote, as in a string
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    words[id / 32] |= static_cast<uint32_t>(!token.empty() && token.find('"') == std::string::npos)
                      << (id % 32);
  }
  std::vector<uint32_t> few(kVocab / 32 + 1, 0);
  few[1] = 0x00ff0000;
  sluice::inferd::SamplingParams plain;
  plain.temperature = 0.8f;
  sluice::inferd::SamplingParams top_p = plain;
  top_p.top_p = 0.9f;
  for (const auto& [name, params] : {std::pair{"temperature", plain}, std::pair{"top-p 0.9", top_p}}) {
    const double without = SampleRows(rows, params, {});
    std::printf("sampling 16 rows, %-12s without a mask %.2f ms, most allowed %.2f ms, few allowed %.2f ms",
                name, without * 1e3, SampleRows(rows, params, words) * 1e3,
                SampleRows(rows, params, few) * 1e3);
    std::printf("; the mask: %.2f %% of the base\n",
                100 * (SampleRows(rows, params, words) - without) / base);
  }
}

}  // namespace

int main() {
  using Kind = sluice::inferd::GrammarSpec::Kind;
  const sluice::inferd::GrammarVocabulary vocabulary = MakeVocabulary();
  const double base = ReadSecondsOfTheHead();
  std::printf("reading the head (%.0f MB) with one thread: %.2f ms\n", kHeadBytes * 1e-6, base * 1e3);
  std::printf("%-22s %11s %11s %11s %11s %11s\n", "guide", "compile, ms", "first, us", "mask, us", "p90",
              "p99");
  BenchMasks("schema, 5 fields", {Kind::kJsonSchema, SchemaOf(5), {}}, vocabulary);
  BenchMasks("schema, 50 fields", {Kind::kJsonSchema, SchemaOf(50), {}}, vocabulary);
  BenchMasks("any JSON object", {Kind::kJsonObject, "", {}}, vocabulary);
  BenchMasks("regex", {Kind::kRegex, "([A-Z][a-z]+ ){2,5}[A-Z][a-z]+\\.", {}}, vocabulary);
  BenchMasks("grammar", {Kind::kGrammar, "root ::= t (\"+\" t)*\nt ::= [0-9]+ | \"(\" root \")\"", {}},
             vocabulary);
  BenchEngineThread(vocabulary, base);
  BenchSampler(vocabulary, base);
  return 0;
}
