// `sluice calibrate`: measures a pack on a text and writes its profile/. inferd does the work, beside other
// requests; this command shows the progress.

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command_line.h"
#include "cli/launcher.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "common/profile/predictor_weights.h"
#include "common/profile/profile.h"
#include "common/profile/profile_file.h"

namespace sluice::cli {
namespace {

// Enough for the rarest expert of a small model to be chosen thousands of times.
constexpr uint64_t kDefaultTokens = 65536;

struct Options {
  CommonOptions common;
  std::string text;
  std::optional<uint64_t> max_tokens;
  std::optional<uint64_t> window;
  std::optional<uint64_t> sensitivity_tokens;
  std::optional<uint64_t> sparsity_tokens;
  std::optional<double> quality_bound;
  std::optional<uint64_t> epochs;
  std::optional<uint64_t> seed;
  bool no_predictors = false;
  bool json = false;
};

// Contents of the profile's files, as far as this process can read them.
struct Measured {
  std::optional<SensitivityProfile> sensitivity;
  std::optional<CutoffProfile> cutoffs;
  std::optional<PredictorProfile> predictors;
};

api::CalibrateRequest RequestOf(const Options& o, const std::vector<int32_t>& tokens) {
  api::CalibrateRequest request;
  request.mutable_token_ids()->Add(tokens.begin(), tokens.end());
  request.set_predictors(!o.no_predictors);
  if (o.window.has_value()) request.set_window(static_cast<uint32_t>(*o.window));
  if (o.sensitivity_tokens.has_value()) request.set_sensitivity_tokens(*o.sensitivity_tokens);
  if (o.sparsity_tokens.has_value()) request.set_sparsity_tokens(*o.sparsity_tokens);
  if (o.quality_bound.has_value()) request.add_quality_bounds(*o.quality_bound / 100);
  if (o.epochs.has_value()) request.set_epochs(static_cast<uint32_t>(*o.epochs));
  if (o.seed.has_value()) request.set_seed(*o.seed);
  return request;
}

// Prints one progress line for each stage.
absl::StatusOr<api::CalibrateFinished> Follow(Client* client, const api::CalibrateRequest& request,
                                              bool quiet) {
  std::optional<Progress> progress;
  uint32_t stage = 0;
  api::CalibrateFinished finished;
  RETURN_IF_ERROR(client->Calibrate(request, [&](const api::CalibrateResponse& event) {
    if (event.has_finished()) {
      finished = event.finished();
    } else if (event.has_progress()) {
      const api::CalibrateProgress& p = event.progress();
      if (p.stage_number() != stage || !progress.has_value()) {
        stage = p.stage_number();
        progress.reset();
        progress.emplace(absl::StrCat(p.stage(), " (", stage, "/", p.stages(), ")"), ProgressUnit::kItems,
                         quiet);
      }
      if (p.has_seconds_left()) {
        progress->Suffix(
            absl::StrCat("all: about ", FormatTimeSpan(absl::Seconds(p.seconds_left())), " left"));
      }
      progress->Update(p.done(), p.total());
    }
    return absl::OkStatus();
  }));
  return finished;
}

template <typename T>
std::optional<T> IfReadable(absl::StatusOr<T> value) {
  return value.ok() ? std::optional<T>(*std::move(value)) : std::nullopt;
}

Measured ReadMeasured(const api::CalibrateFinished& finished, const Pack& pack) {
  const auto written = [&finished](const char* name) {
    return std::find(finished.files().begin(), finished.files().end(), name) != finished.files().end();
  };
  Measured measured;
  if (written(kSensitivityName)) {
    measured.sensitivity = IfReadable(
        ReadSensitivity(finished.folder(), pack.config(), pack.manifest().provenance.source_digest));
  }
  if (written(kCutoffName)) {
    measured.cutoffs = IfReadable(ReadCutoffs(finished.folder(), pack.model_id()));
  }
  if (written(kPredictorsName)) {
    measured.predictors = IfReadable(ReadPredictors(finished.folder(), pack.config(), pack.model_id()));
  }
  return measured;
}

Json SensitivityJson(const SensitivityProfile& sensitivity) {
  Json layers = Json::Array();
  for (const LayerSensitivity& s : sensitivity.layers) {
    layers.Append(Json::Object()
                      .Set("measured", s.measured)
                      .Set("loss_rise", s.loss_rise)
                      .Set("mean_square", s.mean_square));
  }
  return layers;
}

Json CutoffsJson(const CutoffProfile& profile) {
  Json cutoffs = Json::Array();
  for (const SparsityCutoff& c : profile.cutoffs) {
    cutoffs.Append(Json::Object()
                       .Set("lead", LeadName(c.lead))
                       .Set("bound", c.bound)
                       .Set("sparsity", c.sparsity)
                       .Set("rise", c.rise));
  }
  return cutoffs;
}

Json PredictorsJson(const PredictorProfile& profile) {
  Json predictors = Json::Array();
  for (const LearnedPredictor& learned : profile.learned) {
    predictors.Append(Json::Object()
                          .Set("kind", "learned")
                          .Set("layer", learned.layer)
                          .Set("units", learned.net.units)
                          .Set("precision", learned.net.precision));
  }
  if (profile.first_layer.has_value()) {
    predictors.Append(Json::Object()
                          .Set("kind", "first_layer")
                          .Set("final_norm", profile.first_layer->final_norm)
                          .Set("divergence", profile.first_layer->divergence)
                          .Set("precision", profile.first_layer->net.precision));
  }
  return predictors;
}

int PrintJsonResult(const api::CalibrateFinished& finished, const Measured& measured) {
  const std::vector<std::string> files(finished.files().begin(), finished.files().end());
  return PrintJson(
      Json::Object()
          .Set("profile", finished.folder())
          .Set("files", files)
          .Set("tokens", finished.tokens())
          .Set("seconds", finished.seconds())
          .Set("resumed", finished.resumed())
          .Set("sensitivity", measured.sensitivity ? SensitivityJson(*measured.sensitivity) : Json())
          .Set("sparsity", measured.cutoffs ? CutoffsJson(*measured.cutoffs) : Json())
          .Set("predictors", measured.predictors ? PredictorsJson(*measured.predictors) : Json()));
}

void AppendSensitivities(const SensitivityProfile& profile, std::string* text) {
  absl::StrAppendFormat(text, "\nSensitivity by layer (%d tokens)\n%5s %12s %12s\n", profile.tokens, "layer",
                        "measured", "loss rise");
  for (size_t layer = 0; layer < profile.layers.size(); ++layer) {
    const LayerSensitivity& s = profile.layers[layer];
    absl::StrAppendFormat(text, "%5d %12.4g %12.4g\n", layer, s.measured, s.loss_rise);
  }
}

void AppendPredictors(const PredictorProfile& profile, std::string* text) {
  if (!profile.learned.empty()) absl::StrAppend(text, "\nPredictors: precision on held-out tokens\n");
  for (const LearnedPredictor& learned : profile.learned) {
    const std::string kind = learned.net.units > 0 ? absl::StrCat(learned.net.units, " units") : "linear";
    absl::StrAppendFormat(text, "  layer %d -> %d  %-10s %.3f\n", learned.layer, learned.layer + 1, kind,
                          learned.net.precision);
  }
  if (profile.first_layer.has_value()) {
    absl::StrAppendFormat(text, "  next token's first layer, %s final norm  %.3f (divergence %.4f)\n",
                          profile.first_layer->final_norm ? "with" : "without",
                          profile.first_layer->net.precision, profile.first_layer->divergence);
  }
}

int PrintText(const api::CalibrateFinished& finished, const Measured& measured) {
  std::string text = absl::StrFormat("%s: %d tokens in %.1f s%s\n", finished.folder(), finished.tokens(),
                                     finished.seconds(), finished.resumed() ? ", gone on with" : "");
  for (const std::string& file : finished.files()) absl::StrAppend(&text, "  ", file, "\n");
  if (measured.sensitivity) AppendSensitivities(*measured.sensitivity, &text);
  if (measured.cutoffs) {
    for (const SparsityCutoff& c : measured.cutoffs->cutoffs) {
      absl::StrAppendFormat(&text, "\n%s sparsity of %.0f %% costs %.2f %% perplexity (bound %.2f %%)\n",
                            LeadName(c.lead), 100 * c.sparsity, 100 * c.rise, 100 * c.bound);
    }
  }
  if (measured.predictors) AppendPredictors(*measured.predictors, &text);
  return WriteStdout(text).ok() ? kExitOk : kExitFailed;
}

absl::StatusOr<int> Calibrate(const CommandContext& context, const Options& o) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher, Launcher::Launch(context, o.common, o.json));
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                   EncodeTextFile(launcher->pack().dir(), o.text, o.max_tokens.value_or(kDefaultTokens)));
  ASSIGN_OR_RETURN(const api::CalibrateFinished finished,
                   Follow(&launcher->client(), RequestOf(o, tokens), o.common.quiet));
  const Measured measured = ReadMeasured(finished, launcher->pack());
  return o.json ? PrintJsonResult(finished, measured) : PrintText(finished, measured);
}

}  // namespace

int RunCalibrate(const CommandContext& context, const std::vector<std::string>& args) {
  constexpr uint64_t kMaxTokens = 1ull << 40;
  Options options;
  ArgParser parser("sluice calibrate",
                   "Measures a pack on a text and writes PACK/profile: expert usage, thresholds of neuron "
                   "sparsity, sensitivities of layers, expert predictors. Interrupted, the same command goes "
                   "on where it stopped.");
  parser.Text("--text", &options.text, "FILE: taken as bytes, encoded without BOS, special tokens as text")
      .Required()
      .Number("--max-tokens", &options.max_tokens, "takes the first N tokens only [65536]", 2, kMaxTokens)
      .Number("--window", &options.window, "positions that go through the model together [512]", 2, 1u << 20)
      .Number("--sensitivity-tokens", &options.sensitivity_tokens,
              "of them for sensitivities; 0: none [16384]", 0, kMaxTokens)
      .Number("--sparsity-tokens", &options.sparsity_tokens,
              "of them for the largest sparsity within the bound; 0: none [16384]", 0, kMaxTokens)
      .Real("--quality-bound", &options.quality_bound, "rise of perplexity allowed for it, percent [1]",
            0.001, 1000)
      .Flag("--no-predictors", &options.no_predictors, "trains no expert predictors")
      .Number("--epochs", &options.epochs, "passes of the training over its tokens [6]", 1, 1000)
      .Number("--seed", &options.seed, "of everything random [1]")
      .Flag("--json", &options.json, "prints one JSON object");
  options.common.Declare(&parser);
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  const absl::StatusOr<int> code = Calibrate(context, options);
  return code.ok() ? *code : Fail("sluice calibrate", code.status(), options.json);
}

}  // namespace sluice::cli
