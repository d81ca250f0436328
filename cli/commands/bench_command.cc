// `sluice bench`: prefill and decode speed, by llama-bench's conventions.

#include <algorithm>
#include <cstdio>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command_line.h"
#include "cli/host_rates.h"
#include "cli/launcher.h"
#include "cli/measure/accept_run.h"
#include "cli/measure/bench_report.h"
#include "cli/measure/bench_run.h"
#include "cli/model_facts.h"
#include "cli/terminal.h"
#include "common/base/machine_facts.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "inferd/model/model_shapes.h"
#include "inferd/policy/policies.h"

namespace sluice::cli {
namespace {

constexpr int64_t kMaxTokens = 1 << 24;
constexpr int64_t kMaxSequences = 1024;
constexpr uint64_t kMaxSeed = 1'000'000'000;
// Numbers of drafts measured unless one is given.
constexpr uint32_t kMaxListedDrafts = 4;
// inferd's default; the launcher requests more only for a test that needs it.
constexpr uint64_t kDefaultParallel = 4;
constexpr uint64_t kDefaultContext = 8192;

struct Options {
  CommonOptions common;
  std::optional<std::string> prompts;
  std::optional<std::string> generates;
  std::optional<std::string> batches;
  std::vector<std::string> pairs;
  std::optional<uint64_t> repetitions;
  std::optional<uint64_t> seed;
  std::optional<std::string> format;
  std::vector<double> acceptances;
  bool all_drafts = false;
  bool no_warmup = false;
  bool explain = false;
  bool json = false;
};

absl::Status ReadList(const std::optional<std::string>& text, const char* what, int64_t least, int64_t most,
                      std::vector<int64_t>* list) {
  if (text.has_value()) {
    ASSIGN_OR_RETURN(*list, ParseNumberList(*text, what, least, most));
  }
  return absl::OkStatus();
}

absl::Status ParseAcceptances(const std::string& text, std::vector<double>* acceptances) {
  for (const std::string& word : SplitList(text)) {
    double value = -1;
    if (!absl::SimpleAtod(word, &value) || !(value >= 0 && value <= 1)) {
      return absl::InvalidArgumentError(absl::StrCat("'", word, "' is no number from 0 to 1"));
    }
    acceptances->push_back(value);
  }
  return acceptances->empty() ? absl::InvalidArgumentError("names no probability") : absl::OkStatus();
}

absl::StatusOr<std::vector<BenchTest>> TestsOf(const Options& o) {
  BenchLists lists;
  if (!o.acceptances.empty()) {
    lists.prompts = {0};
  }
  RETURN_IF_ERROR(ReadList(o.prompts, "-p", 0, kMaxTokens, &lists.prompts));
  RETURN_IF_ERROR(ReadList(o.generates, "-n", 0, kMaxTokens, &lists.generates));
  RETURN_IF_ERROR(ReadList(o.batches, "-b", 1, kMaxSequences, &lists.batches));
  for (const std::string& text : o.pairs) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> pair, ParseNumberList(text, "-pg", 1, kMaxTokens));
    if (pair.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat("-pg: '", text, "' is not P,N"));
    }
    lists.pairs.insert(lists.pairs.end(), pair.begin(), pair.end());
  }
  std::vector<BenchTest> tests = PlanTests(lists);
  if (tests.empty()) {
    return absl::InvalidArgumentError("nothing to measure: -p, -n and -pg are all empty or 0");
  }
  const bool drafts =
      std::all_of(tests.begin(), tests.end(), [](const BenchTest& t) { return t.generate >= 2; });
  if (!o.acceptances.empty() && !drafts) {
    return absl::InvalidArgumentError("--accept measures answers of at least 2 tokens (-n, -pg)");
  }
  return tests;
}

// Returns options for a server that can run all the tests.
CommonOptions ServerOptions(const Options& o, const std::vector<BenchTest>& tests,
                            const std::string& preset) {
  CommonOptions options = o.common;
  if (o.common.Has("preset")) {
    options.Set("preset", preset);
  }
  uint64_t parallel = 1;
  uint64_t context = 1;
  for (const BenchTest& test : tests) {
    parallel = std::max(parallel, test.batch);
    context = std::max(context, std::max<uint64_t>(1, test.prompt) + std::max<uint64_t>(1, test.generate));
  }
  if (!options.Has("parallel") && parallel > kDefaultParallel) {
    options.Set("parallel", absl::StrCat(parallel));
  }
  if (!options.Has("context") && context > kDefaultContext) {
    options.Set("context", absl::StrCat(context));
  }
  // Answers to random prompts loop more than texts do, which drafts would make look fast. A server of another
  // program is measured as it is.
  if (!o.acceptances.empty()) {
    options.SetAll("drafts", {});  // each request states its own
    options.Set("speculate", "stated");
  } else if (!options.address.has_value() && !options.Has("speculate") && !options.Has("drafts")) {
    options.Set("speculate", "off");
  }
  return options;
}

absl::StatusOr<BenchResult> Measure(const Options& o, Launcher* launcher, const BenchTest& test,
                                    const std::string& preset) {
  BenchResult result{test, preset, {}, {}};
  const uint64_t repetitions = o.repetitions.value_or(5);
  const uint64_t seed = o.seed.value_or(1);
  const uint64_t vocab = launcher->model().vocab_size();
  Progress progress(absl::StrCat(preset, " ", test.name(), " x", test.batch), ProgressUnit::kItems,
                    o.common.quiet);
  // The warm-up is a repetition that does not count; it also brings the experts into memory.
  for (uint64_t i = o.no_warmup ? 1 : 0; i <= repetitions; ++i) {
    ASSIGN_OR_RETURN(BenchSample sample,
                     RunOnce(&launcher->client(), test, RandomInput(test, vocab, seed + i),
                             launcher->server_option("clock") == "virtual"));
    if (i > 0) {
      result.samples.push_back(sample);
    }
    progress.Update(i, repetitions);
  }
  return result;
}

// Returns the tests of each acceptance and number of drafts.
std::vector<AcceptTest> AcceptTestsOf(const Options& o, const std::vector<BenchTest>& tests) {
  uint32_t first = 1;
  uint32_t last = kMaxListedDrafts;
  if (uint32_t given = 0; absl::SimpleAtoi(o.common.ValueOr("drafts", "0"), &given) && given > 0) {
    first = last = given;
  }
  std::vector<AcceptTest> all;
  for (const BenchTest& test : tests) {
    for (const double acceptance : o.acceptances) {
      for (uint32_t drafts = first; drafts <= last; ++drafts) {
        all.push_back({test, acceptance, drafts, o.all_drafts});
      }
    }
  }
  return all;
}

absl::StatusOr<AcceptResult> MeasureAcceptance(const Options& o, Launcher* launcher, const AcceptTest& test,
                                               const std::string& preset) {
  const uint64_t repetitions = o.repetitions.value_or(5);
  Progress progress(absl::StrFormat("%s %s x%d accept %g drafts %d", preset, test.test.name(),
                                    test.test.batch, test.acceptance, test.drafts),
                    ProgressUnit::kItems, o.common.quiet);
  ASSIGN_OR_RETURN(AcceptResult result,
                   RunAccept(&launcher->client(), test, launcher->model().vocab_size(), repetitions,
                             o.seed.value_or(1), [&](uint64_t done) { progress.Update(done, repetitions); }));
  result.preset = preset;
  return result;
}

BenchSetting SettingOf(const Launcher& launcher) {
  BenchSetting setting;
  setting.version = Version();
  setting.model = launcher.model().name();
  setting.model_id = launcher.model().id();
  setting.model_bytes = launcher.model().expert_bytes() + launcher.model().dense_bytes();
  setting.device = launcher.server_option("device");
  setting.threads = launcher.server_option("threads");
  setting.backend = launcher.backend();
  return setting;
}

// Measures the machine rates that explain each result, after the daemons have ended.
class Explainer {
 public:
  // `read`: bytes per second; 0: unknown.
  static absl::StatusOr<Explainer> Create(const std::string& pack, uint32_t threads, uint32_t chunk,
                                          double read) {
    Explainer explainer;
    ASSIGN_OR_RETURN(explainer.facts_, ReadModelFacts(pack, {}));
    explainer.threads_ = threads;
    explainer.chunk_ = chunk;
    explainer.read_ = read;
    return explainer;
  }

  absl::StatusOr<Explanation> Of(const BenchResult& result) const {
    const ModelConfig& config = facts_.config;
    const ExplainRows rows =
        RowsOf(result.test, inferd::MaxExperts(config), inferd::LargestTopK(config), chunk_);
    ExplainRates rates;
    rates.read = read_;
    ASSIGN_OR_RETURN(const ProductRates products,
                     MeasureProducts(config, facts_.stored.front(), threads_, rows.step, rows.expert));
    rates.products = products.dense;
    rates.expert_products = products.experts;
    return Explain(result, rates, rows);
  }

 private:
  ModelFacts facts_;
  uint32_t threads_ = 1;
  uint32_t chunk_ = 1;
  double read_ = 0;
};

// Presets that cannot run are reported before the others take their time.
absl::StatusOr<std::vector<std::string>> PresetsOf(const Options& o) {
  const std::vector<std::string> presets = SplitList(o.common.ValueOr("preset", "exact"));
  if (presets.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--preset '", o.common.ValueOr("preset", ""), "' names none"));
  }
  ASSIGN_OR_RETURN(const inferd::DeviceKind device,
                   inferd::DeviceFromName(o.common.ValueOr("device", "host")));
  for (const std::string& preset : presets) {
    RETURN_IF_ERROR(inferd::PoliciesOf(preset, {.policy = o.common.All("policy")}, device).status());
  }
  return presets;
}

// Calls `measure` with each preset and daemons that run it, in turn. Returns the setting of the last.
absl::StatusOr<BenchSetting> ForEachPreset(
    const CommandContext& context, const Options& o, const std::vector<BenchTest>& tests, BenchFormat format,
    absl::FunctionRef<absl::Status(Launcher*, const std::string& preset)> measure) {
  BenchSetting setting;
  ASSIGN_OR_RETURN(const std::vector<std::string> presets, PresetsOf(o));
  for (const std::string& preset : presets) {
    const CommonOptions options = ServerOptions(o, tests, preset);
    ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher,
                     Launcher::Launch(context, options, format == BenchFormat::kJson));
    setting = SettingOf(*launcher);
    RETURN_IF_ERROR(measure(launcher.get(), preset));
  }
  return setting;
}

absl::StatusOr<int> BenchAcceptance(const CommandContext& context, const Options& o,
                                    const std::vector<BenchTest>& tests, BenchFormat format) {
  std::vector<AcceptResult> results;
  const auto measure = [&](Launcher* launcher, const std::string& preset) -> absl::Status {
    for (const AcceptTest& test : AcceptTestsOf(o, tests)) {
      ASSIGN_OR_RETURN(AcceptResult result, MeasureAcceptance(o, launcher, test, preset));
      results.push_back(std::move(result));
    }
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(const BenchSetting setting, ForEachPreset(context, o, tests, format, measure));
  RETURN_IF_ERROR(WriteStdout(FormatAccept(results, setting, format)));
  return kExitOk;
}

absl::StatusOr<int> Bench(const CommandContext& context, const Options& o,
                          const std::vector<BenchTest>& tests, BenchFormat format) {
  std::vector<BenchResult> results;
  std::string pack;
  uint32_t chunk = 1;
  const auto measure = [&](Launcher* launcher, const std::string& preset) -> absl::Status {
    pack = launcher->pack().dir();
    if (!absl::SimpleAtoi(launcher->server_option("prefill-chunk"), &chunk)) chunk = 1;
    for (const BenchTest& test : tests) {
      ASSIGN_OR_RETURN(BenchResult result, Measure(o, launcher, test, preset));
      results.push_back(std::move(result));
    }
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(BenchSetting setting, ForEachPreset(context, o, tests, format, measure));
  const bool decodes =
      std::any_of(tests.begin(), tests.end(), [](const BenchTest& test) { return test.generate >= 2; });
  uint32_t threads = 0;
  if ((decodes || o.explain) && setting.device == "host" && absl::SimpleAtoi(setting.threads, &threads)) {
    ASSIGN_OR_RETURN(const MemoryFacts memory, ReadMemoryFacts());
    const ReadBaseSize base = SizeOfReadBase(setting.model_bytes, UsableMemory(memory));
    if (!base.note.empty()) {
      std::fprintf(stderr, "sluice bench: %s\n", base.note.c_str());
    }
    if (base.bytes > 0) {
      ASSIGN_OR_RETURN(setting.read_bandwidth, MeasureReadBase(base.bytes, threads));
      setting.read_bytes = base.bytes;
    }
  }
  std::string explanations;
  if (o.explain && threads > 0) {
    ASSIGN_OR_RETURN(const Explainer explainer,
                     Explainer::Create(pack, threads, chunk, setting.read_bandwidth.value_or(0)));
    for (BenchResult& result : results) {
      ASSIGN_OR_RETURN(const Explanation explanation, explainer.Of(result));
      result.explained = ExplainJson(explanation);
      absl::StrAppend(&explanations, "\n", ExplainText(result, explanation));
    }
  }
  std::string text = FormatResults(results, setting, format);
  if (format == BenchFormat::kMarkdown) {
    absl::StrAppend(&text, explanations);
  }
  RETURN_IF_ERROR(WriteStdout(text));
  return kExitOk;
}

}  // namespace

int RunBench(const CommandContext& context, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser("sluice bench",
                   "Measures prefill (ppN), decode (tgN) and both (ppP+tgN). Lists make a matrix.");
  parser.Text("-p,--n-prompt", &options.prompts, "512,2048: prompt lengths, 0 for none [512]")
      .Text("-n,--n-gen", &options.generates, "128,256: answer lengths, 0 for none [128]")
      .Texts("--pg", &options.pairs, "P,N: a prompt of P and an answer of N (also -pg); may be repeated")
      .Text("-b,--batch", &options.batches, "1,3,16: sequences at once [1]")
      .Number("-r,--repetitions", &options.repetitions, "of each test [5]", 1, 10000)
      .Number("--seed", &options.seed,
              "of the first repetition's random ids; those after it take the next ones [1]", 0, kMaxSeed)
      .Values(
          "--accept", /*repeats=*/false,
          [&options](const std::vector<std::string>& texts) {
            return ParseAcceptances(texts.front(), &options.acceptances);
          },
          "P,..: speculation whose drafts are right with this probability (0.6,0.75,0.9), with at most 1, 2, "
          "3 "
          "and 4 drafts a step, or --drafts N, beside plain decoding of the same answers; takes no trained "
          "drafter")
      .Flag("--all-drafts", &options.all_drafts,
            "with --accept: verifies all drafts, whatever they cost [as many as are worth it]")
      .Flag("--explain", &options.explain,
            "says which part of the model the time went to, and what bounds each (device host)")
      .Flag("--no-warmup", &options.no_warmup, "leaves out the repetition that does not count")
      .Text("-o,--output", &options.format, "md|json|csv|jsonl [md]")
      .Flag("--json", &options.json, "as -o json; --preset takes a list here, A,B");
  options.common.Declare(&parser);
  // llama-bench spells these options with one dash, which begins single letters here.
  std::vector<std::string> spelt = args;
  std::replace(spelt.begin(), spelt.end(), std::string("-pg"), std::string("--pg"));
  if (const auto exit_code = parser.Parse(spelt)) {
    return *exit_code;
  }
  if (options.explain && options.common.ValueOr("device", "host") != "host") {
    return parser.UsageError("--explain: only device host is timed by parts");
  }
  const absl::StatusOr<BenchFormat> format =
      BenchFormatFromName(options.json ? "json" : options.format.value_or("md"));
  if (!format.ok()) {
    return parser.UsageError(absl::StrCat("--output: ", format.status().message()));
  }
  const absl::StatusOr<std::vector<BenchTest>> tests = TestsOf(options);
  if (!tests.ok()) {
    return parser.UsageError(std::string(tests.status().message()));
  }
  if (options.acceptances.empty() ? options.all_drafts : options.explain || options.common.Has("speculate")) {
    return parser.UsageError(options.acceptances.empty() ? "--all-drafts is about --accept"
                                                         : "--accept excludes --explain and --speculate");
  }
  const absl::StatusOr<int> code = options.acceptances.empty()
                                       ? Bench(context, options, *tests, *format)
                                       : BenchAcceptance(context, options, *tests, *format);
  return code.ok() ? *code : Fail("sluice bench", code.status(), *format == BenchFormat::kJson);
}

}  // namespace sluice::cli
