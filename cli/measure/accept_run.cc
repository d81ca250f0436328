#include "cli/measure/accept_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

double MedianOf(std::vector<double> values) {
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + middle, values.end());
  if (values.size() % 2 == 1) {
    return values[middle];
  }
  return (values[middle] + *std::max_element(values.begin(), values.begin() + middle)) / 2;
}

// The first token of an answer belongs to its prompt.
double DecodeRate(const BenchTest& test, const BenchSample& sample) {
  return static_cast<double>(test.batch) * 1e3 / sample.tpot_ms;
}

std::vector<api::StatedDrafts> DraftsOf(const AcceptTest& test, const BenchAnswers& answers, uint64_t seed) {
  std::vector<api::StatedDrafts> drafts;
  for (size_t i = 0; i < answers.size(); ++i) {
    api::StatedDrafts& stated = drafts.emplace_back();
    stated.mutable_token_ids()->Add(answers[i].begin(), answers[i].end());
    stated.set_acceptance(test.acceptance);
    stated.set_drafts(test.drafts);
    stated.set_seed(seed * 1000 + i);
    stated.set_all(test.all);
  }
  return drafts;
}

std::string Percent(double share) { return share < 0 ? "-" : absl::StrFormat("%.0f", 100 * share); }

std::string AcceptMarkdown(const std::vector<AcceptResult>& results, const BenchSetting& setting) {
  std::string text =
      "| model | preset | test | batch | accept | drafts | plain t/s | t/s | ratio | tokens/step | verified "
      "% "
      "| accepted % | same tokens |\n|";
  for (int i = 0; i < 13; ++i) {
    text += " --- |";
  }
  text += "\n";
  for (const AcceptResult& result : results) {
    const AcceptFigures figures = FiguresOf(result);
    const auto percents = [](const std::vector<double>& shares) {
      return absl::StrJoin(shares, " ",
                           [](std::string* out, double share) { absl::StrAppend(out, Percent(share)); });
    };
    absl::StrAppendFormat(
        &text, "| %s | %s | %s | %d | %g | %s%d | %.2f | %.2f | %.3f | %.2f | %s | %s | %s |\n",
        setting.model, result.preset, result.test.test.name(), result.test.test.batch, result.test.acceptance,
        result.test.all ? "all " : "", result.test.drafts, figures.plain, figures.speculative, figures.ratio,
        figures.tokens_a_step, percents(figures.verified), percents(figures.accepted),
        result.same_tokens ? "yes" : "no");
  }
  return text;
}

}  // namespace

absl::StatusOr<AcceptResult> RunAccept(Client* client, const AcceptTest& test, uint64_t vocab,
                                       uint64_t repetitions, uint64_t seed,
                                       const std::function<void(uint64_t)>& progress) {
  AcceptResult result{test, {}, {}, {}};
  for (uint64_t i = 1; i <= repetitions; ++i) {
    BenchInput input = RandomInput(test.test, vocab, seed + i);
    BenchAnswers known;
    RETURN_IF_ERROR(RunOnce(client, test.test, input, /*server_times=*/true, &known).status());
    const std::vector<api::StatedDrafts> drafts = DraftsOf(test, known, seed + i);
    for (const bool drafting : {i % 2 == 0, i % 2 != 0}) {
      input.drafts = drafting ? drafts : std::vector<api::StatedDrafts>();
      BenchAnswers answers;
      ASSIGN_OR_RETURN(BenchSample sample,
                       RunOnce(client, test.test, input, /*server_times=*/true, &answers));
      (drafting ? result.speculative : result.plain).push_back(std::move(sample));
      result.same_tokens = result.same_tokens && answers == known;
    }
    progress(i);
  }
  return result;
}

AcceptFigures FiguresOf(const AcceptResult& result) {
  const BenchTest& test = result.test.test;
  AcceptFigures figures;
  std::vector<double> plain;
  std::vector<double> speculative;
  std::vector<double> ratios;
  std::vector<uint64_t> verified;
  std::vector<uint64_t> accepted;
  for (size_t i = 0; i < result.plain.size(); ++i) {
    const BenchSample& sample = result.speculative[i];
    plain.push_back(DecodeRate(test, result.plain[i]));
    speculative.push_back(DecodeRate(test, sample));
    ratios.push_back(speculative.back() / plain.back());
    verified.resize(std::max(verified.size(), sample.drafts_verified.size()));
    accepted.resize(verified.size());
    for (size_t p = 0; p < sample.drafts_verified.size(); ++p) {
      verified[p] += sample.drafts_verified[p];
      accepted[p] += sample.drafts_accepted[p];
    }
  }
  figures.plain = MedianOf(plain);
  figures.speculative = MedianOf(speculative);
  figures.ratio = MedianOf(ratios);
  // A sequence's step gives one token and those of its right drafts.
  uint64_t right = 0;
  for (const uint64_t count : accepted) {
    right += count;
  }
  const double tokens = static_cast<double>(result.speculative.size() * test.batch * (test.generate - 1));
  const double steps = tokens - static_cast<double>(right);
  figures.tokens_a_step = steps > 0 ? tokens / steps : 0;
  for (size_t p = 0; p < std::min<size_t>(verified.size(), result.test.drafts); ++p) {
    figures.verified.push_back(steps > 0 ? static_cast<double>(verified[p]) / steps : 0);
    figures.accepted.push_back(
        verified[p] == 0 ? -1 : static_cast<double>(accepted[p]) / static_cast<double>(verified[p]));
  }
  return figures;
}

Json AcceptJson(const AcceptResult& result, const BenchSetting& setting) {
  const AcceptFigures figures = FiguresOf(result);
  Json accepted = Json::Array();
  for (const double share : figures.accepted) {
    accepted.Append(share < 0 ? Json() : Json(share));
  }
  Json json = Json::Object();
  json.Set("test", result.test.test.name())
      .Set("preset", result.preset)
      .Set("batch", result.test.test.batch)
      .Set("accept", result.test.acceptance)
      .Set("drafts", result.test.drafts)
      .Set("all_drafts", result.test.all)
      .Set("plain_ts", figures.plain)
      .Set("speculative_ts", figures.speculative)
      .Set("ratio", figures.ratio)
      .Set("tokens_per_step", figures.tokens_a_step)
      .Set("verified", figures.verified)
      .Set("accepted", std::move(accepted))
      .Set("same_tokens", result.same_tokens)
      .Set("model", setting.model)
      .Set("model_id", setting.model_id)
      .Set("model_size", setting.model_bytes)
      .Set("device", setting.device)
      .Set("backend", setting.backend)
      .Set("threads", setting.threads)
      .Set("version", setting.version);
  return json;
}

std::string FormatAccept(const std::vector<AcceptResult>& results, const BenchSetting& setting,
                         BenchFormat format) {
  if (format == BenchFormat::kMarkdown) {
    return AcceptMarkdown(results, setting);
  }
  std::vector<Json> objects;
  for (const AcceptResult& result : results) {
    objects.push_back(AcceptJson(result, setting));
  }
  return FormatObjects(objects, format);
}

}  // namespace sluice::cli
