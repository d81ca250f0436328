// `sluice plan`: predicts memory use and speed of a pack, or of a model that is not downloaded yet.

#include <algorithm>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command_line.h"
#include "cli/pack_cache.h"
#include "cli/plan.h"
#include "cli/terminal.h"
#include "common/base/machine_facts.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "inferd/policy/policies.h"
#include "pack/writer/synth.h"

namespace sluice::cli {
namespace {

// bf16 serves for comparison; q2 is used only within recipes.
const std::vector<std::string> kBits = {"bf16", "q8", "q4", "q3"};
const std::vector<std::string> kBitsOfGguf = {kAsInFile, kAsInFileSmaller, "q8", "q4", "q3"};
const std::vector<std::string> kPresets = {"exact", "intra", "floe"};
constexpr uint32_t kContexts[] = {4096, 8192, 32768, 65536, 131072, 262144};
constexpr uint32_t kParallels[] = {1, 4, 16};

struct Options {
  std::string model;
  std::string pack;
  std::string shape;
  std::optional<std::string> bits;
  std::optional<uint64_t> memory;
  std::optional<uint64_t> dram_budget;
  std::optional<std::string> device;
  std::optional<uint64_t> device_budget;
  std::optional<double> link_gbps;
  std::optional<uint64_t> context;
  std::optional<uint64_t> parallel;
  std::optional<std::string> kv;
  std::optional<uint64_t> kv_budget;
  std::optional<uint64_t> prefill_chunk;
  std::optional<uint64_t> threads;
  std::optional<double> disk_gbps;
  bool no_measure = false;
  bool json = false;
  bool quiet = false;
};

void Declare(ArgParser* parser, Options* o) {
  parser
      ->Text("--model", &o->model,
             "M: a model's folder, a GGUF file or a pack; a config.json or a GGUF file's head is enough")
      .Text("--pack", &o->pack, "PACK: the pack's folder")
      .Text("--shape", &o->shape, "NAME of `sluice synth`: a published model's sizes, without any file")
      .RequireOneOf({"--model", "--pack", "--shape"})
      .Choice("--bits", {"bf16", "f16", "q8", "q4", "q3", "q2", "file", "file-q4"}, &o->bits,
              "looks at these alone [bf16, q8, q4, q3; of a GGUF file its own, q8, q4, q3]")
      .Size("--memory", &o->memory, "of a machine that is planned for [what is free here]")
      .Size("--dram-budget", &o->dram_budget, "bytes of memory for weights [the daemons' default]")
      .Choice("--device", {"host", "sim"}, &o->device, "where the experts compute [host]")
      .Size("--device-budget", &o->device_budget,
            "bytes of device memory for all that lies there [all experts]")
      .Real("--link-gbps", &o->link_gbps, "of device sim [unthrottled]", 0, 1e6)
      .Number("--context", &o->context, "tokens of prompt and answer together [the model's, at most 8192]", 1,
              1u << 30)
      .Number("--parallel", &o->parallel, "sequences that run together [4]", 1, 4096)
      .Choice("--kv", {"f32", "f16", "q8"}, &o->kv, "type of the KV cache [f16]")
      .Size("--kv-budget", &o->kv_budget, "bytes of the KV cache [what context and parallel need]")
      .Number("--prefill-chunk", &o->prefill_chunk, "prompt tokens of a step [512]", 1, 1u << 16)
      .Number("--threads", &o->threads, "that compute [all CPUs]", 1, 1024)
      .Real("--disk-gbps", &o->disk_gbps, "of the packs' disk [measured]", 0.001, 1e6)
      .Flag("--no-measure", &o->no_measure, "memory alone, in no time")
      .Flag("--json", &o->json, "prints one JSON object")
      .Flag("-q,--quiet", &o->quiet, "no progress");
}

absl::StatusOr<MemoryRequest> RequestOf(const Options& o) {
  MemoryRequest request;
  ASSIGN_OR_RETURN(const MemoryFacts facts, ReadMemoryFacts());
  request.memory = o.memory.value_or(UsableMemory(facts));
  request.threads =
      static_cast<uint32_t>(o.threads.value_or(std::max(1u, std::thread::hardware_concurrency())));
  request.dram_budget = o.dram_budget;
  ASSIGN_OR_RETURN(request.engine.device, inferd::DeviceFromName(o.device.value_or("host")));
  request.device_budget = o.device_budget.value_or(0);
  request.engine.context = static_cast<uint32_t>(o.context.value_or(0));
  request.engine.parallel = static_cast<uint32_t>(o.parallel.value_or(request.engine.parallel));
  request.engine.prefill_chunk =
      static_cast<uint32_t>(o.prefill_chunk.value_or(request.engine.prefill_chunk));
  request.engine.kv_budget = o.kv_budget.value_or(0);
  const std::string kv = o.kv.value_or("f16");
  request.engine.kv = kv == "f32" ? KvType::kF32 : kv == "q8" ? KvType::kQ8 : KvType::kF16;
  return request;
}

struct Report {
  ModelFacts facts;
  MemoryRequest request;
  std::vector<PlanRow> rows;
  std::optional<double>
      disk;  // bytes per second; none: nothing would be read from it, or it was not measured
  std::vector<KernelRates> kernels;  // by stored sizes; empty: not measured
  PlanChoice choice;
  std::string not_counted;  // reason why the rows have no entry for a GGUF file's own encodings; empty: they
                            // have one, or it is no GGUF
  struct Context {
    uint32_t tokens = 0;
    uint32_t parallel = 0;
    uint64_t kv = 0;     // KV cache, with the states of recurrent layers and indexers' keys
    uint64_t bytes = 0;  // KV cache and activations
    bool fits = false;   // fits beside the chosen weights
  };
  std::vector<Context> contexts;
};

absl::StatusOr<double> DiskRate(const Options& o, const ModelFacts& facts) {
  if (o.disk_gbps.has_value()) return *o.disk_gbps * 1e9;
  const uint64_t read = std::max<uint64_t>(1, facts.stored.back().weights.largest_expert / 3);
  if (!facts.large_file.empty()) return MeasureDisk(facts.large_file, read);
  // Measures the pack cache's disk if a small model or a mere description is on another one.
  std::error_code ignored;
  ASSIGN_OR_RETURN(const std::string folder, PackCacheFolder());
  std::filesystem::create_directories(folder, ignored);
  return MeasureFolder(folder, read);
}

absl::Status Measure(const Options& o, Report* report) {
  if (o.no_measure) return absl::OkStatus();
  Progress progress("measuring", ProgressUnit::kItems, o.quiet || o.json);
  for (const StoredSizes& sizes : report->facts.stored) {
    progress.Note(absl::StrCat("measuring this host's kernels: ", sizes.bits));
    ASSIGN_OR_RETURN(KernelRates rates, MeasureKernels(report->facts.config, sizes, report->request.threads));
    report->kernels.push_back(rates);
  }
  const bool streams = std::any_of(report->rows.begin(), report->rows.end(), [](const PlanRow& row) {
    return !row.memory.whole && row.memory.refusal.empty();
  });
  if (streams) {
    progress.Note("measuring the disk");
    ASSIGN_OR_RETURN(report->disk, DiskRate(o, report->facts));
  }
  return absl::OkStatus();
}

void AddSpeeds(const Options& o, Report* report) {
  if (report->kernels.empty()) return;
  for (PlanRow& row : report->rows) {
    if (!row.memory.refusal.empty()) continue;
    const auto stored = std::find_if(report->facts.stored.begin(), report->facts.stored.end(),
                                     [&row](const StoredSizes& sizes) { return sizes.bits == row.bits; });
    SpeedInput input;
    input.kernels = report->kernels[static_cast<size_t>(stored - report->facts.stored.begin())];
    input.disk = report->disk.value_or(0);
    input.link = o.link_gbps.value_or(0) * 1e9;
    input.computed_share = ComputedShare(row.preset);
    row.speed = PlanSpeed(report->facts, row.sizes, row.memory, input);
  }
}

// Adds the context length and the number of sequences that fit beside the chosen weights.
absl::Status AddContexts(Report* report) {
  const auto chosen = std::find_if(report->rows.begin(), report->rows.end(), [report](const PlanRow& row) {
    return row.bits == report->choice.bits && row.preset == report->choice.preset;
  });
  for (const uint32_t context : kContexts) {
    if (context > report->facts.config.max_position) continue;
    for (const uint32_t parallel : kParallels) {
      MemoryRequest request = report->request;
      request.engine.context = context;
      request.engine.parallel = parallel;
      request.engine.kv_budget = 0;
      ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(report->facts.config, chosen->sizes, request));
      report->contexts.push_back(
          {context, parallel, plan.kv, plan.kv + plan.activations, plan.refusal.empty()});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelFacts> FactsOfShape(const Options& o) {
  SynthOptions options;
  options.shape = o.shape;
  ModelFacts facts;
  facts.name = o.shape;
  ASSIGN_OR_RETURN(facts.config, SynthModel(options));
  for (const std::string& bits : o.bits.has_value() ? std::vector<std::string>{*o.bits} : kBits) {
    ASSIGN_OR_RETURN(StoredSizes sizes, SizesOf(facts.config, bits));
    facts.stored.push_back(std::move(sizes));
  }
  return facts;
}

absl::Status ReadFacts(const Options& o, Report* report) {
  if (!o.shape.empty()) {
    ASSIGN_OR_RETURN(report->facts, FactsOfShape(o));
    return absl::OkStatus();
  }
  const std::string& model = o.pack.empty() ? o.model : o.pack;
  if (o.bits.has_value()) {
    ASSIGN_OR_RETURN(report->facts, ReadModelFacts(model, {*o.bits}));
    return absl::OkStatus();
  }
  if (IsGgufFile(model)) {
    absl::StatusOr<ModelFacts> facts = ReadModelFacts(model, kBitsOfGguf);
    if (facts.ok()) {
      report->facts = *std::move(facts);
      return absl::OkStatus();
    }
    // With only the head of the file everything else is still known.
    report->not_counted = std::string(facts.status().message());
  }
  ASSIGN_OR_RETURN(report->facts, ReadModelFacts(model, kBits));
  return absl::OkStatus();
}

absl::StatusOr<Report> MakeReport(const Options& o) {
  Report report;
  ASSIGN_OR_RETURN(report.request, RequestOf(o));
  RETURN_IF_ERROR(ReadFacts(o, &report));
  if (report.facts.is_pack && o.bits.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("--bits ", *o.bits, ": a pack's rows are as they are"));
  }
  for (const std::string& preset : kPresets) {
    for (const StoredSizes& sizes : report.facts.stored) {
      ASSIGN_OR_RETURN(MemoryPlan memory, PlanMemory(report.facts.config, sizes, report.request));
      report.rows.push_back(
          {sizes.bits, preset, sizes, std::move(memory), {}, QualityOf(sizes.bits, preset)});
    }
  }
  RETURN_IF_ERROR(Measure(o, &report));
  AddSpeeds(o, &report);
  report.choice = Choose(report.rows);
  RETURN_IF_ERROR(AddContexts(&report));
  return report;
}

Json RowJson(const PlanRow& row) {
  Json json = Json::Object()
                  .Set("bits", row.bits)
                  .Set("preset", row.preset)
                  .Set("pack_bytes", row.sizes.weights.all)
                  .Set("dense_bytes", row.sizes.weights.dense)
                  .Set("expert_bytes", row.sizes.experts())
                  .Set("dram_budget", row.memory.dram_budget)
                  .Set("least_dram_budget", row.memory.least_budget)
                  .Set("kv_bytes", row.memory.kv)
                  .Set("activation_bytes", row.memory.activations)
                  .Set("slab_bytes", row.memory.slab)
                  .Set("total_bytes", row.memory.total())
                  .Set("runs", row.memory.refusal.empty())
                  .Set("refusal", row.memory.refusal.empty() ? Json() : Json(row.memory.refusal))
                  .Set("perplexity_rise", row.quality.is_known ? Json(row.quality.perplexity_rise) : Json());
  if (!row.speed.has_value()) return json.Set("tokens_per_second", Json());
  return json.Set("tokens_per_second", row.speed->tokens_per_second)
      .Set("hit_rate", row.speed->hit_rate)
      .Set("read_bytes_per_token", row.speed->read_bytes)
      .Set("disk_bytes_per_token", row.speed->disk_bytes)
      .Set("link_bytes_per_token", row.speed->link_bytes)
      .Set("compute_seconds", row.speed->compute_seconds)
      .Set("disk_seconds", row.speed->disk_seconds);
}

Json ReportJson(const Report& report) {
  Json rows = Json::Array();
  for (const PlanRow& row : report.rows) rows.Append(RowJson(row));
  Json contexts = Json::Array();
  for (const Report::Context& context : report.contexts) {
    contexts.Append(Json::Object()
                        .Set("context", context.tokens)
                        .Set("parallel", context.parallel)
                        .Set("kv_bytes", context.kv)
                        .Set("bytes", context.bytes)
                        .Set("fits", context.fits));
  }
  Json kernels = Json::Array();
  for (size_t i = 0; i < report.kernels.size(); ++i) {
    kernels.Append(Json::Object()
                       .Set("bits", report.facts.stored[i].bits)
                       .Set("dense_gbps", report.kernels[i].dense / 1e9)
                       .Set("experts_gbps", report.kernels[i].experts / 1e9)
                       .Set("layer_seconds", report.kernels[i].layer_seconds));
  }
  return Json::Object()
      .Set("model", report.facts.name)
      .Set("memory_bytes", report.request.memory)
      .Set("threads", report.request.threads)
      .Set("context", report.rows.front().memory.context)
      .Set("parallel", report.request.engine.parallel)
      .Set("routing", report.facts.usage.empty() ? "even" : "calibrated")
      .Set("disk_gbps", report.disk.has_value() ? Json(*report.disk / 1e9) : Json())
      .Set("kernels", kernels)
      .Set("rows", rows)
      .Set("not_counted", report.not_counted.empty() ? Json() : Json(report.not_counted))
      .Set("contexts", contexts)
      .Set("choice", Json::Object()
                         .Set("bits", report.choice.bits)
                         .Set("preset", report.choice.preset)
                         .Set("why", report.choice.why));
}

std::string HeadText(const Report& report) {
  const ModelConfig& config = report.facts.config;
  uint32_t experts = 0;
  uint32_t top_k = 0;
  for (const LayerConfig& layer : config.layers) {
    experts = std::max(experts, layer.moe.experts);
    top_k = std::max(top_k, layer.moe.top_k);
  }
  const MemoryPlan& memory = report.rows.front().memory;
  return absl::StrFormat(
      "%s: %d layers, %d experts, %d a token; %s of memory, %d threads\n"
      "context %d, parallel %d: KV cache %s, activations %s; processes %s\n\n",
      report.facts.name, ModelLayers(config), experts, top_k, FormatSize(report.request.memory),
      report.request.threads, memory.context, report.request.engine.parallel, FormatSize(memory.kv),
      FormatSize(memory.activations), FormatSize(memory.processes));
}

std::string RowText(const PlanRow& row) {
  std::string text =
      absl::StrFormat("%-7s %-7s %10s %10s", row.bits, row.preset, FormatSize(row.sizes.weights.all),
                      FormatSize(std::min(row.memory.dram_budget, row.sizes.weights.all)));
  const std::string quality =
      row.quality.is_known ? absl::StrFormat("%+.2f %%", 100 * row.quality.perplexity_rise) : "?";
  if (!row.memory.refusal.empty()) return absl::StrCat(text, "  ", row.memory.refusal, "\n");
  if (!row.speed.has_value()) return absl::StrFormat("%s %6s %10s %9s %10s\n", text, "", "", "", quality);
  return absl::StrFormat("%s %5.0f%% %10s %9.2f %10s\n", text, 100 * row.speed->hit_rate,
                         FormatSize(row.speed->disk_bytes), row.speed->tokens_per_second, quality);
}

std::string ContextText(const Report& report) {
  std::string text = absl::StrFormat("\n%10s  %-12s", "context", "KV of one");
  for (const uint32_t parallel : kParallels) absl::StrAppendFormat(&text, "  parallel %-6d", parallel);
  uint32_t tokens = 0;
  for (const Report::Context& context : report.contexts) {
    if (context.tokens != tokens) {
      absl::StrAppendFormat(&text, "\n%10d  %-12s", context.tokens, FormatSize(context.kv));
    }
    tokens = context.tokens;
    absl::StrAppendFormat(&text, "  %-15s",
                          absl::StrCat(FormatSize(context.bytes), context.fits ? "" : " no"));
  }
  return text + "\n";
}

// Names the longest context, then the largest number of sequences, with which the choice would run.
std::string SmallerText(const Report& report) {
  const Report::Context* best = nullptr;
  for (const Report::Context& context : report.contexts) {
    if (context.fits) best = &context;
  }
  if (best == nullptr) return "";
  return absl::StrCat("runs with --context ", best->tokens, " --parallel ", best->parallel, "\n");
}

std::string ReportText(const Report& report, const Options& o) {
  std::string text = HeadText(report);
  absl::StrAppendFormat(&text, "%-7s %-7s %10s %10s %6s %10s %9s %10s\n", "bits", "preset", "pack",
                        "in memory", "hits", "disk/token", "tokens/s", "perplexity");
  for (const PlanRow& row : report.rows) {
    // Presets with masks differ from `exact` only in speed and quality.
    if (row.preset == "exact" || row.speed.has_value()) absl::StrAppend(&text, RowText(row));
  }
  if (!report.not_counted.empty()) {
    absl::StrAppend(&text, "the file's own rows are not counted: ", report.not_counted, "\n");
  }
  absl::StrAppend(&text, ContextText(report));
  if (report.disk.has_value()) absl::StrAppendFormat(&text, "disk %.2f GB/s; ", *report.disk / 1e9);
  absl::StrAppend(&text, "routing ", report.facts.usage.empty() ? "taken as even" : "as calibrated",
                  "; perplexity as measured on the sample model",
                  IsAsInFile(report.rows.front().bits) ? ", against the file's own values" : "",
                  "; intra and floe need `sluice calibrate`\n");
  const auto chosen = std::find_if(report.rows.begin(), report.rows.end(), [&report](const PlanRow& row) {
    return row.bits == report.choice.bits && row.preset == report.choice.preset;
  });
  absl::StrAppend(&text, "\ntakes ", report.choice.bits, " with ", report.choice.preset, ": ",
                  report.choice.why);
  if (chosen->speed.has_value()) {
    absl::StrAppendFormat(&text, "; about %.3g tokens/s", chosen->speed->tokens_per_second);
  }
  absl::StrAppend(&text, "\n");
  if (!chosen->memory.refusal.empty()) absl::StrAppend(&text, SmallerText(report));
  if (!o.shape.empty()) {
    absl::StrAppend(&text, "sluice synth --shape ", o.shape, " --bits ", report.choice.bits,
                    " --out PACK, for random weights\n");
  } else if (!o.memory.has_value() && chosen->memory.refusal.empty()) {
    absl::StrAppend(&text, "sluice run ",
                    report.facts.is_pack ? absl::StrCat("--pack ", o.pack.empty() ? o.model : o.pack)
                                         : absl::StrCat("--model ", o.model, " --bits ", report.choice.bits),
                    " --prompt \"Once upon a time\"\n");
  }
  return text;
}

absl::StatusOr<int> Plan(const Options& o) {
  ASSIGN_OR_RETURN(const Report report, MakeReport(o));
  if (o.json) return PrintJson(ReportJson(report));
  RETURN_IF_ERROR(WriteStdout(ReportText(report, o)));
  return kExitOk;
}

}  // namespace

int RunPlan(const CommandContext&, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser("sluice plan",
                   "Says what fits where and how fast, for each of some bits and presets, and picks one.");
  Declare(&parser, &options);
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  const absl::StatusOr<int> code = Plan(options);
  return code.ok() ? *code : Fail("sluice plan", code.status(), options.json);
}

}  // namespace sluice::cli
