#include "lab/preset_bench.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/launcher.h"
#include "cli/measure/bench_run.h"
#include "cli/measure/perplexity.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "inferd/policy/policies.h"
#include "inferd/sim/virtual_clock.h"
#include "lab/preset_report.h"

namespace sluice::cli {
namespace {

// Prompts of the repetitions begin this many tokens apart in the text.
constexpr uint64_t kPromptStride = 509;
constexpr uint64_t kMaxPromptTokens = 1 << 16;
// Maximum ratio of a batch's steps to the steps of its longest answer, and the number of attempts.
constexpr double kMaxStagger = 1.05;
constexpr int kMaxAttempts = 12;

// Returns the command line's options with the row's applied on top.
absl::StatusOr<CommonOptions> OptionsOf(const PresetBenchOptions& o, const PresetRow& row,
                                        const std::string& pack) {
  CommonOptions options = o.common;
  options.SetAll("policy", {});
  std::vector<std::string> args = {"--pack", pack};
  args.insert(args.end(), row.options.begin(), row.options.end());
  ArgParser parser(absl::StrCat("row \"", row.name, "\""), "");
  options.Declare(&parser);
  options.DeclareCosts(&parser);
  if (parser.Parse(args).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("row \"", row.name, "\": its options are wrong: ", absl::StrJoin(row.options, " ")));
  }
  options.Set("preset", row.preset);
  if (!options.Has("speculate") && !options.Has("drafts")) {
    options.Set("speculate", "off");  // as in bench: presets are compared by their steps
  }
  std::vector<std::string> policies = o.common.All("policy");
  const std::vector<std::string> of_row = options.All("policy");
  policies.insert(policies.end(), of_row.begin(), of_row.end());
  options.SetAll("policy", policies);
  options.quiet = true;
  const uint64_t most = *std::max_element(o.batches.begin(), o.batches.end());
  if (!options.Has("parallel")) {
    options.Set("parallel", absl::StrCat(most));
  }
  return options;
}

// Returns the simulated link's rate; 0: unlimited.
double LinkRate(const Launcher& launcher) {
  double gbps = 0;
  if (!absl::SimpleAtod(launcher.server_option("link-gbps"), &gbps)) {
    gbps = 0;
  }
  if (launcher.server_option("clock") == "virtual") {
    const absl::StatusOr<inferd::VirtualCosts> costs =
        inferd::ParseVirtualCosts(launcher.server_option("virtual-costs"));
    gbps = costs.ok() ? inferd::VirtualLinkGbps(*costs, gbps, launcher.pack().config()) : gbps;
  }
  return gbps * 1e9;
}

// Measures one launched row.
class RowRun {
 public:
  RowRun(const PresetBenchOptions& o, Launcher* launcher) : o_(o), launcher_(launcher) {}

  absl::StatusOr<PresetMeasure> Measure(uint64_t batch) {
    RETURN_IF_ERROR(ReadText());
    PresetMeasure m;
    m.batch = batch;
    const BenchTest answers = {1, o_.generate, batch};
    const BenchTest prompts = {o_.prompt, 1, batch};
    // The first repetition does not count: it brings the cache to its steady state.
    for (uint64_t i = 0; i <= o_.repetitions; ++i) {
      ASSIGN_OR_RETURN(const BenchSample decode, Run(answers, i));
      ASSIGN_OR_RETURN(const BenchSample prompt, Run(prompts, i));
      if (i > 0) {
        Add(decode, &m.decode);
        m.tpot_ms += decode.tpot_ms / static_cast<double>(o_.repetitions);
        m.ttft_ms += prompt.ttft_ms / static_cast<double>(o_.repetitions);
      }
    }
    return m;
  }

 private:
  absl::Status ReadText() {
    if (o_.text.empty() || !text_.empty()) {
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(text_, EncodeTextFile(launcher_->pack().dir(), o_.text, kMaxPromptTokens));
    return absl::OkStatus();
  }

  BenchInput InputOf(const BenchTest& test, uint64_t repetition) const {
    if (text_.empty()) {
      return RandomInput(test, launcher_->model().vocab_size(), repetition + 1);
    }
    BenchInput input;
    input.temperature = o_.temperature;
    input.seed = repetition + 1;
    for (uint64_t i = 0; i < test.batch; ++i) {
      std::vector<int32_t>& prompt = input.prompts.emplace_back();
      if (launcher_->model().has_bos_token_id()) {
        prompt.push_back(static_cast<int32_t>(launcher_->model().bos_token_id()));
      }
      const uint64_t begin = (repetition * test.batch + i) * kPromptStride;
      while (prompt.size() < test.prompt) {
        prompt.push_back(text_[(begin + prompt.size()) % text_.size()]);
      }
    }
    return input;
  }

  // Requests do not reach inferd at once, and in virtual time a small model finishes one before the next
  // arrives. So a run whose sequences did not overlap is repeated.
  absl::StatusOr<BenchSample> Run(const BenchTest& test, uint64_t repetition) {
    const bool virtual_time = launcher_->server_option("clock") == "virtual";
    BenchSample best;
    for (int attempt = 0; attempt < (test.batch > 1 ? kMaxAttempts : 1); ++attempt) {
      ASSIGN_OR_RETURN(const BenchSample sample,
                       RunOnce(&launcher_->client(), test, InputOf(test, repetition), virtual_time));
      if (attempt == 0 || sample.steps < best.steps) {
        best = sample;
      }
      if (static_cast<double>(best.steps) <= kMaxStagger * static_cast<double>(test.generate) + 1) {
        break;
      }
    }
    return best;
  }

  static void Add(const BenchSample& sample, BenchSample* sum) {
    constexpr uint64_t BenchSample::*kCounts[] = {&BenchSample::tokens,
                                                  &BenchSample::steps,
                                                  &BenchSample::prefetches,
                                                  &BenchSample::prefetches_useful,
                                                  &BenchSample::generated,
                                                  &BenchSample::expert_requests,
                                                  &BenchSample::expert_hits,
                                                  &BenchSample::predictions,
                                                  &BenchSample::predictions_right,
                                                  &BenchSample::predictions_wanted,
                                                  &BenchSample::bytes_ssd,
                                                  &BenchSample::bytes_link,
                                                  &BenchSample::weight_bytes};
    for (const auto member : kCounts) {
      sum->*member += sample.*member;
    }
    for (const auto member : kLayerCounts) {
      sum->*member += sample.*member;
    }
    AddDepths(sample.depths, 1, &sum->depths);
    constexpr double BenchSample::*kTimes[] = {&BenchSample::seconds,        &BenchSample::busy_seconds,
                                               &BenchSample::stall_seconds,  &BenchSample::decode_seconds,
                                               &BenchSample::kernel_seconds, &BenchSample::load_seconds};
    for (const auto member : kTimes) {
      sum->*member += sample.*member;
    }
  }

  const PresetBenchOptions& o_;
  Launcher* const launcher_;
  std::vector<int32_t> text_;
};

// One sequence, one token per step, as in decoding.
absl::StatusOr<PresetQuality> MeasureQuality(const CommandContext& context, const PresetBenchOptions& o,
                                             CommonOptions options) {
  options.Set("parallel", "1");
  options.Set("prefill-chunk", "1");
  ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher,
                   Launcher::Launch(context, options, /*json=*/true));
  PerplexityTask task;
  task.text = o.text;
  task.max_tokens = o.quality_tokens;
  task.window = task.stride = std::min<uint64_t>(task.window, launcher->model().context_tokens());
  task.quiet = true;
  // The first row that can run is the base of the others.
  const std::string base = absl::StrCat(o.scratch, "/presets-base.lp");
  (FileExists(base) ? task.kl_base : task.save_base) = base;
  ASSIGN_OR_RETURN(const PerplexityRun run, MeasurePerplexity(launcher.get(), task));
  return PresetQuality{run.result.ppl, run.result.ppl_stderr, run.result.kld_mean, run.result.same_top};
}

// Returns true if the row is unsupported rather than failed.
bool IsRefusal(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsInvalidArgument(status) ||
         absl::IsFailedPrecondition(status) || absl::IsNotFound(status);
}

// Returns the reason alone, without the daemon's log around it.
std::string ReasonOf(const absl::Status& status) {
  const std::string text(status.message());
  const size_t last = text.rfind('\n');
  const std::string line = last == std::string::npos ? text : text.substr(last + 1);
  return std::string(absl::StripAsciiWhitespace(line));
}

inferd::PolicyOverrides OverridesOf(const CommonOptions& options) {
  const auto number = [&options](const char* name) {
    double value = -1;
    return absl::SimpleAtod(options.ValueOr(name, ""), &value) ? value : -1;
  };
  return {.sparsity = options.ValueOr("sparsity", ""),
          .sparsity_scope = options.ValueOr("sparsity-scope", ""),
          .sparsity_target = number("sparsity-target"),
          .sparsity_threshold = number("sparsity-threshold"),
          .policy = options.All("policy")};
}

absl::StatusOr<PresetResult> RunRow(const CommandContext& context, const PresetBenchOptions& o,
                                    const CommonOptions& options) {
  PresetResult result;
  {
    ASSIGN_OR_RETURN(const inferd::DeviceKind device,
                     inferd::DeviceFromName(options.ValueOr("device", "host")));
    const absl::Status refused =
        inferd::PoliciesOf(options.ValueOr("preset", ""), OverridesOf(options), device).status();
    absl::StatusOr<std::unique_ptr<Launcher>> launcher =
        refused.ok() ? Launcher::Launch(context, options, /*json=*/true) : refused;
    if (!launcher.ok() && IsRefusal(launcher.status())) {
      result.refused = ReasonOf(launcher.status());
      return result;
    }
    RETURN_IF_ERROR(launcher.status());
    result.link_bytes_per_second = LinkRate(**launcher);
    result.real_time = (*launcher)->server_option("clock") != "virtual";
    ASSIGN_OR_RETURN(const inference::v1::GetStatsResponse stats, (*launcher)->client().GetStats());
    if (stats.has_neuron_cache()) {
      result.leads_stay = stats.neuron_cache().lead_resident();
      result.copy_all_share = stats.neuron_cache().copy_all_share();
    }
    RowRun run(o, launcher->get());
    for (const uint64_t batch : o.batches) {
      ASSIGN_OR_RETURN(PresetMeasure measure, run.Measure(batch));
      result.measures.push_back(std::move(measure));
    }
  }
  if (!o.text.empty() && o.quality_tokens > 0) {
    ASSIGN_OR_RETURN(result.quality, MeasureQuality(context, o, options));
  }
  return result;
}

void Say(const PresetBenchOptions& o, size_t done, size_t total, const PresetRow& row,
         const PresetResult& result) {
  if (o.common.quiet) {
    return;
  }
  const std::string outcome = result.refused.empty()
                                  ? absl::StrCat(result.measures.front().tpot_ms, " ms a token")
                                  : absl::StrCat(result.failed ? "" : "refused: ", result.refused);
  std::fprintf(stderr, "%zu of %zu: %s: %s\n", done, total, row.name.c_str(), outcome.c_str());
}

}  // namespace

absl::StatusOr<std::vector<PresetResult>> RunPresets(const CommandContext& context,
                                                     const PresetBenchOptions& o, const PresetPlan& plan) {
  std::vector<PresetResult> results;
  for (const PresetRow& row : plan.rows) {
    RETURN_IF_ERROR(context.interrupt->Check());
    Progress progress("comparing", ProgressUnit::kItems, o.common.quiet);
    progress.Note(absl::StrCat(row.name, ", ", results.size() + 1, " of ", plan.rows.size()));
    std::string pack = o.common.pack;
    if (!row.pack.empty()) {
      ASSIGN_OR_RETURN(pack, EnsurePack(context, o.work, plan.packs, row.pack));
    }
    ASSIGN_OR_RETURN(const CommonOptions options, OptionsOf(o, row, pack));
    absl::StatusOr<PresetResult> result = RunRow(context, o, options);
    progress.Finish();
    // A failed row does not discard the others' figures, unless it is their base.
    if (!result.ok() && (results.empty() || absl::IsCancelled(result.status()))) {
      return result.status();
    }
    if (!result.ok()) {
      PresetResult failed;
      failed.failed = true;
      failed.refused = absl::StrCat("failed: ", ReasonOf(result.status()));
      result = std::move(failed);
    }
    results.push_back(*std::move(result));
    Say(o, results.size(), plan.rows.size(), row, results.back());
  }
  return results;
}

// `sluice-lab --explain`: names the bound of a run, from its counters (preset_report.h).

namespace {

// Share of a step below which waiting does not matter.
constexpr double kLittle = 0.05;
// Share of a step above which a busy link leaves no time for better predictions.
constexpr double kBusyLink = 0.9;
// Share of the missing experts' work above which the CPU affects the duration of a step.
constexpr double kSharingCpu = 0.25;
// Share of a step below which the link was not used for misses.
constexpr double kIdleLink = 0.1;

// Milliseconds per step, and shares.
struct Picture {
  double step = 0;
  double compute = 0;
  double stall = 0;
  std::optional<double> load;
  double hit_rate = 1;
  std::optional<double> recall;
  double ssd_share = 0;  // of the bytes that came over the link
  double wrong = 0;      // of the predictions
  double cpu_share =
      0;  // share of bytes read in DRAM by the CPU, of these and the bytes that came over the link
};

Picture PictureOf(const PresetResult& result, const PresetMeasure& m) {
  const BenchSample& s = m.decode;
  const double per_step = 1e3 / static_cast<double>(std::max<uint64_t>(1, s.steps));
  Picture p;
  p.step = s.busy_seconds * per_step;
  p.stall = std::min(p.step, s.stall_seconds * per_step);
  p.compute = p.step - p.stall;
  if (result.link_bytes_per_second > 0) {
    p.load = static_cast<double>(s.bytes_link) / result.link_bytes_per_second * per_step;
  }
  if (s.expert_requests > 0) {
    p.hit_rate = static_cast<double>(s.expert_hits) / static_cast<double>(s.expert_requests);
  }
  if (s.predictions_wanted > 0) {
    p.recall = static_cast<double>(s.predictions_right) / static_cast<double>(s.predictions_wanted);
  }
  if (s.bytes_link > 0) {
    p.ssd_share = static_cast<double>(s.bytes_ssd) / static_cast<double>(s.bytes_link);
  }
  if (s.bytes_dram > 0) {
    p.cpu_share = static_cast<double>(s.bytes_dram) / static_cast<double>(s.bytes_dram + s.bytes_link);
  }
  if (s.predictions > 0) {
    p.wrong = 1 - static_cast<double>(s.predictions_right) / static_cast<double>(s.predictions);
  }
  return p;
}

std::string ExplainCompute(const Picture& p) {
  return absl::StrFormat(
      "Compute bounds it: %.0f %% of a step of %.2f ms is the device's work and %.0f %% waiting. Faster "
      "only with fewer weights per token: fewer bits (pack --bits q4), neuron sparsity (--sparsity gate), "
      "one expert where it is enough (--policy routing=sensitivity).",
      100 * p.compute / p.step, p.step, 100 * p.stall / p.step);
}

std::string ExplainSsd(const Picture& p) {
  return absl::StrFormat(
      "The SSD bounds it: %.0f %% of a step of %.2f ms is waiting, and %.0f %% of the bytes of the link "
      "were read from SSD first. A larger --dram-budget helps most, then fewer bits.",
      100 * p.stall / p.step, p.step, 100 * p.ssd_share);
}

std::string ExplainLink(const Picture& p) {
  std::string text = absl::StrFormat(
      "The link bounds it: it is busy for %.0f %% of a step of %.2f ms, of which the device computes %.2f "
      "ms. Better predictions cannot help; fewer bytes do: a larger --device-budget (%.0f %% of the experts "
      "were resident), fewer bits, neuron sparsity (--preset floe), experts at hand (--policy "
      "routing=cache_aware), or misses on the CPU (--policy expert_miss=balance).",
      100 * std::min(1.0, *p.load / p.step), p.step, p.compute, 100 * p.hit_rate);
  if (p.wrong > kIdleLink) {
    absl::StrAppendFormat(&text,
                          " %.0f %% of the predictions were wrong: fewer prefetches (--policy max_prefetch, "
                          "expert_predictor=none) would leave the link to demands.",
                          100 * p.wrong);
  }
  return text;
}

std::string ExplainShared(const Picture& p) {
  return absl::StrFormat(
      "Device, link and CPU share the experts: of a step of %.2f ms the device computes %.2f ms, the link "
      "is busy for %.0f %%, and of the bytes that were not resident %.0f %% are the CPU's. %.0f %% of the "
      "step waits for the last of them. A larger --device-budget (%.0f %% of the experts were resident), "
      "fewer bits or experts at hand (--policy routing=cache_aware) leave all three less to do.",
      p.step, p.compute, 100 * *p.load / p.step, 100 * p.cpu_share, 100 * p.stall / p.step, 100 * p.hit_rate);
}

std::string ExplainPolicy(const Picture& p) {
  std::string text = absl::StrFormat(
      "Router and policy bound it: a step of %.2f ms waits for %.0f %% of its time though the link is busy "
      "for %.0f %% only, so bytes are asked for too late. At best, with everything asked for in time, it "
      "would take %.2f ms.",
      p.step, 100 * p.stall / p.step, 100 * *p.load / p.step, std::max(p.compute, *p.load));
  if (!p.recall.has_value()) {
    absl::StrAppend(&text, " Nothing is predicted: --policy expert_predictor=gate_reuse would ask ahead.");
  } else {
    absl::StrAppendFormat(
        &text,
        " %.0f %% of the experts chosen had been predicted: --policy predictor_depth=3, "
        "expert_predictor=learned or lookahead and first_layer=on predict more, or earlier.",
        100 * *p.recall);
  }
  return text;
}

std::string ExplainCpu(const Picture& p) {
  return absl::StrFormat(
      "The CPU bounds it: %.0f %% of a step of %.2f ms is waiting, the link is nearly idle, and %.0f %% of "
      "the experts chosen were not resident: the CPU computes them. --policy expert_miss=balance shares "
      "them with the link; a larger --device-budget makes them fewer.",
      100 * p.stall / p.step, p.step, 100 * (1 - p.hit_rate));
}

}  // namespace

std::string ExplainRun(const PresetResult& result, size_t measure) {
  const Picture p = PictureOf(result, result.measures[measure]);
  if (p.step <= 0) {
    return "No step was measured.";
  }
  if (p.stall < kLittle * p.step) {
    return ExplainCompute(p);
  }
  if (p.ssd_share > 0.5) {
    return ExplainSsd(p);
  }
  if (!p.load.has_value()) {
    return absl::StrFormat(
        "%.0f %% of a step of %.2f ms is waiting; the link's rate is not known, so whether bytes are too "
        "many or asked for too late cannot be told: give --link-gbps.",
        100 * p.stall / p.step, p.step);
  }
  if (*p.load > kBusyLink * p.step) {
    return ExplainLink(p);
  }
  if (*p.load < kIdleLink * p.step && p.hit_rate < 1) {
    return ExplainCpu(p);
  }
  return p.cpu_share > kSharingCpu ? ExplainShared(p) : ExplainPolicy(p);
}

std::string ExplainTexts(const PresetPlan& plan, const std::vector<PresetResult>& results) {
  std::string text;
  for (size_t i = 0; i < results.size(); ++i) {
    for (size_t m = 0; m < results[i].measures.size(); ++m) {
      absl::StrAppend(&text, plan.rows[i].name, ", batch ", results[i].measures[m].batch, ": ",
                      ExplainRun(results[i], m), "\n");
    }
  }
  return text;
}

}  // namespace sluice::cli
