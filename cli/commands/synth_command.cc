// `sluice synth`: makes a pack of any size with random weights, for benchmarks at real sizes.

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/command_line.h"
#include "cli/pack_cache.h"
#include "cli/pack_progress.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "pack/writer/synth.h"

namespace sluice::cli {
namespace {

struct Options {
  std::optional<std::string> shape;
  std::string out;
  std::optional<uint64_t> layers;
  std::optional<uint64_t> vocab;
  std::optional<uint64_t> ngram_base;
  RowOptions rows;
  std::optional<uint64_t> seed;
  std::optional<double> reuse;
  std::optional<double> similarity;
  std::string routing = "uniform";
  bool force = false;
  bool json = false;
  bool quiet = false;
};

void Declare(ArgParser* parser, Options* o) {
  // The list of names is long, so the help's first lines have it instead of the option's.
  parser->Text("--shape", &o->shape, "NAME, see above")
      .Required()
      .Text("--out", &o->out, "PACK: the folder to write")
      .Required()
      .Number("--layers", &o->layers, "fewer or more than the shape's", 1, 4096)
      .Number("--vocab", &o->vocab, "other than the shape's", 16, 1 << 20)
      .Number("--ngram-base", &o->ngram_base, "of a shape with n-grams: a table has 16 times as many rows", 2,
              1u << 31)
      .Text("--routing", &o->routing, "uniform or zipf:S: how evenly experts are chosen [uniform]")
      .Real("--reuse", &o->reuse, "chance that a token takes an expert of the one before [0]", 0, 0.999)
      .Real("--similarity", &o->similarity, "of the routing of neighbouring layers [0]", 0, 0.999)
      .Number("--seed", &o->seed, "of the weights [1]")
      .Flag("--force", &o->force, "replaces an existing pack")
      .Flag("--json", &o->json, "prints one JSON object")
      .Flag("-q,--quiet", &o->quiet, "no progress");
  DeclareRowOptions(parser, &o->rows);
}

absl::StatusOr<int> Synth(const CommandContext& context, const Options& o) {
  SynthOptions options;
  options.shape = *o.shape;
  options.layers = static_cast<uint32_t>(o.layers.value_or(0));
  options.vocab = static_cast<uint32_t>(o.vocab.value_or(0));
  options.ngram_base = o.ngram_base.value_or(0);
  options.rows = o.rows.Words();
  options.routing = o.routing;
  options.reuse = o.reuse.value_or(0);
  options.similarity = o.similarity.value_or(0);
  options.seed = o.seed.value_or(options.seed);
  options.force = o.force;
  PackProgressBar bar(o.quiet);
  ASSIGN_OR_RETURN(const PackSummary summary,
                   SynthesizePack(options, o.out, bar.callback(), context.interrupt->flag()));
  bar.Finish();
  TellOldProfile(o.out, summary.old_profile);
  if (o.json) {
    return PrintJson(Json::Object()
                         .Set("bytes", summary.bytes)
                         .Set("model_id", summary.model_id)
                         .Set("experts", summary.experts)
                         .Set("seconds", summary.seconds));
  }
  RETURN_IF_ERROR(
      WriteStdout(absl::StrFormat("%s: model %s, %s, %d experts, %.1f s\n", o.out, summary.model_id,
                                  FormatSize(summary.bytes), summary.experts, summary.seconds)));
  return kExitOk;
}

}  // namespace

int RunSynth(const CommandContext& context, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser("sluice synth", absl::StrCat("Writes a pack with random weights.\nShapes: ",
                                                absl::StrJoin(SynthShapeNames(), ", ")));
  Declare(&parser, &options);
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  const absl::StatusOr<int> code = Synth(context, options);
  return code.ok() ? *code : Fail("sluice synth", code.status(), options.json);
}

}  // namespace sluice::cli
