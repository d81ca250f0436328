#include "cli/measure/quality/expert_run.h"

#include <cstdint>

namespace sluice::cli {
namespace {

namespace api = inference::v1;

struct PredictionCounts {
  double predicted = 0;
  double right = 0;
  double wanted = 0;
  double rows = 0;
  double best_right = 0;
  double best_found = 0;
};

struct Counts {
  double requests = 0;
  double hits = 0;
  double late = 0;
  double skipped = 0;
  double issued = 0;
  double useful = 0;
  PredictionCounts predictions;
  double routed_rows = 0;
  double single = 0;
  double pairs = 0;
  double exchanged = 0;
  double neurons = 0;
  double neuron_hits = 0;
  double neurons_fetched = 0;
  double neurons_left_out = 0;
  double neurons_predicted = 0;
  double neurons_right = 0;
  double neurons_wanted = 0;
};

// Adds `sign` times the layer's.
void Add(const api::LayerPredictions& from, double sign, PredictionCounts* to) {
  const auto add = [sign](uint64_t value, double* sum) { *sum += sign * static_cast<double>(value); };
  add(from.predicted(), &to->predicted);
  add(from.right(), &to->right);
  add(from.wanted(), &to->wanted);
  add(from.rows(), &to->rows);
  add(from.best_right(), &to->best_right);
  add(from.best_found(), &to->best_found);
}

void Add(const api::LayerStats& layer, double sign, Counts* to) {
  const auto add = [sign](uint64_t value, double* sum) { *sum += sign * static_cast<double>(value); };
  add(layer.experts().requests(), &to->requests);
  add(layer.experts().hits(), &to->hits);
  add(layer.experts().late(), &to->late);
  add(layer.experts().skipped(), &to->skipped);
  add(layer.experts().prefetch_issued(), &to->issued);
  add(layer.experts().prefetch_useful(), &to->useful);
  Add(layer.predictions(), sign, &to->predictions);
  add(layer.routing().rows(), &to->routed_rows);
  add(layer.routing().single(), &to->single);
  add(layer.routing().pairs(), &to->pairs);
  add(layer.routing().exchanged(), &to->exchanged);
  add(layer.neurons().requested(), &to->neurons);
  add(layer.neurons().hits(), &to->neuron_hits);
  add(layer.neurons().fetched(), &to->neurons_fetched);
  add(layer.neurons().left_out(), &to->neurons_left_out);
  add(layer.neurons().predicted(), &to->neurons_predicted);
  add(layer.neurons().right(), &to->neurons_right);
  add(layer.neurons().wanted(), &to->neurons_wanted);
}

Json ShareJson(double part, double whole) { return whole > 0 ? Json(part / whole) : Json(); }

Json Shares(const Counts& c) {
  return Json::Object()
      .Set("requests", static_cast<uint64_t>(c.requests))
      .Set("hit_rate", ShareJson(c.hits, c.requests))
      .Set("late_share", ShareJson(c.late, c.requests))
      .Set("skipped", static_cast<uint64_t>(c.skipped))
      .Set("predictor_precision", ShareJson(c.predictions.right, c.predictions.predicted))
      .Set("predictor_recall", ShareJson(c.predictions.right, c.predictions.wanted))
      .Set("best_prediction_right", ShareJson(c.predictions.best_right, c.predictions.rows))
      .Set("best_expert_predicted", ShareJson(c.predictions.best_found, c.predictions.rows))
      .Set("prefetched", static_cast<uint64_t>(c.issued))
      .Set("prefetched_active", ShareJson(c.useful + c.late, c.issued))
      .Set("single_share", ShareJson(c.single, c.routed_rows))
      .Set("exchanged_share", ShareJson(c.exchanged, c.pairs))
      .Set("neurons_requested", static_cast<uint64_t>(c.neurons))
      .Set("neuron_hit_rate", ShareJson(c.neuron_hits, c.neurons))
      .Set("neurons_fetched", static_cast<uint64_t>(c.neurons_fetched))
      .Set("neurons_left_out_share", ShareJson(c.neurons_left_out, c.neurons))
      .Set("neurons_predicted", static_cast<uint64_t>(c.neurons_predicted))
      .Set("neuron_precision", ShareJson(c.neurons_right, c.neurons_predicted))
      .Set("neuron_recall", ShareJson(c.neurons_right, c.neurons_wanted));
}

// Counters of one layer by prediction depth.
Json DepthsJson(const api::LayerStats* before, const api::LayerStats& after) {
  Json depths = Json::Array();
  for (const api::DepthPredictions& at : after.depths()) {
    PredictionCounts counts;
    Add(at.predictions(), 1, &counts);
    for (int i = 0; before != nullptr && i < before->depths_size(); ++i) {
      if (before->depths(i).depth() == at.depth()) Add(before->depths(i).predictions(), -1, &counts);
    }
    depths.Append(Json::Object()
                      .Set("depth", uint64_t{at.depth()})
                      .Set("predicted", static_cast<uint64_t>(counts.predicted))
                      .Set("predictor_precision", ShareJson(counts.right, counts.predicted))
                      .Set("predictor_recall", ShareJson(counts.right, counts.wanted)));
  }
  return depths;
}

}  // namespace

Json ExpertsJson(const api::GetStatsResponse& before, const api::GetStatsResponse& after) {
  Counts all;
  Json layers = Json::Array();
  for (int i = 0; i < after.layers_size(); ++i) {
    Counts counts;
    Add(after.layers(i), 1, &counts);
    if (i < before.layers_size()) {
      Add(before.layers(i), -1, &counts);
      Add(before.layers(i), -1, &all);
    }
    Add(after.layers(i), 1, &all);
    const api::LayerStats* from = i < before.layers_size() ? &before.layers(i) : nullptr;
    layers.Append(Shares(counts).Set("depths", DepthsJson(from, after.layers(i))));
  }
  return Shares(all).Set("layers", std::move(layers));
}

}  // namespace sluice::cli
