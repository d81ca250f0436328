#include "inferd/policy/replay_routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

absl::Status CheckShape(const Trace& trace, const std::string& subject, const ModelConfig& config) {
  if (trace.layers.size() != config.layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat(subject, ": a trace of ", trace.layers.size(),
                                                   " layers cannot be replayed on a model of ",
                                                   config.layers.size()));
  }
  for (size_t i = 0; i < trace.layers.size(); ++i) {
    const TraceLayer& layer = trace.layers[i];
    const MoeConfig& moe = config.layers[i].moe;
    if (layer.experts != moe.experts || (moe.experts > 0 && layer.top_k != moe.top_k)) {
      return absl::InvalidArgumentError(absl::StrCat(subject, ": layer ", i, " has ", layer.top_k, " of ",
                                                     layer.experts, " experts, the model ", moe.top_k, " of ",
                                                     moe.experts));
    }
  }
  return absl::OkStatus();
}

// Number of rows that all layers have: layers of a step that was cut off lack its rows.
uint64_t CommonRows(const Trace& trace) {
  uint64_t rows = std::numeric_limits<uint64_t>::max();
  for (const TraceLayer& layer : trace.layers) {
    rows = layer.experts > 0 ? std::min(rows, layer.tokens()) : rows;
  }
  return rows;
}

bool SameRows(const TraceLayer& a, const TraceLayer& b, uint64_t rows) {
  const auto end = static_cast<std::ptrdiff_t>(rows);
  return std::equal(a.sequences.begin(), a.sequences.begin() + end, b.sequences.begin()) &&
         std::equal(a.positions.begin(), a.positions.begin() + end, b.positions.begin());
}

}  // namespace

absl::StatusOr<RecordedScores> RecordedScores::Create(const Trace& trace, const std::string& subject,
                                                      const ModelConfig& config) {
  RETURN_IF_ERROR(CheckShape(trace, subject, config));
  const auto first = std::find_if(trace.layers.begin(), trace.layers.end(),
                                  [](const TraceLayer& layer) { return layer.experts > 0; });
  const uint64_t rows = CommonRows(trace);
  if (first == trace.layers.end() || rows == 0) {
    return absl::InvalidArgumentError(absl::StrCat(subject, ": nothing was recorded"));
  }
  RecordedScores scores;
  for (const TraceLayer& layer : trace.layers) {
    scores.experts_.push_back(layer.experts);
    std::vector<float>& logits = scores.logits_.emplace_back();
    if (layer.experts == 0) continue;
    if (!SameRows(*first, layer, rows)) {
      return absl::InvalidArgumentError(
          absl::StrCat(subject, ": its layers were not recorded for the same rows"));
    }
    logits.reserve(rows * layer.experts);
    for (uint64_t i = 0; i < rows * layer.experts; ++i) {
      logits.push_back(std::log(std::max(layer.scores[i], std::numeric_limits<float>::min())));
    }
  }
  // The last run of a row counts if it ran twice (a step after a loss of weightd, a resumed sequence).
  std::map<uint64_t, std::map<uint32_t, uint32_t>> row_of;
  for (uint32_t row = 0; row < rows; ++row) row_of[first->sequences[row]][first->positions[row]] = row;
  for (const auto& [number, by_position] : row_of) {
    RecordedSequence& sequence = scores.recorded_sequences_.emplace_back();
    sequence.first_position = by_position.begin()->first;
    for (const auto& [position, row] : by_position) {
      if (position != sequence.first_position + sequence.rows.size())
        break;  // a gap: the rows after it are unknown
      sequence.rows.push_back(row);
    }
  }
  return scores;
}

absl::Span<const float> RecordedScores::Logits(uint32_t layer, uint64_t sequence, uint32_t position) const {
  const RecordedSequence& from = recorded_sequences_[sequence % recorded_sequences_.size()];
  const uint32_t offset = position >= from.first_position ? position - from.first_position : position;
  const uint64_t row = from.rows[offset % from.rows.size()];
  return absl::MakeConstSpan(logits_[layer].data() + row * experts_[layer], experts_[layer]);
}

absl::StatusOr<std::unique_ptr<ReplayRouting>> ReplayRouting::Create(const Trace& trace,
                                                                     const std::string& subject,
                                                                     const ModelConfig& config,
                                                                     std::unique_ptr<RoutingPolicy> inner) {
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const MoeConfig& moe = config.layers[layer].moe;
    if (moe.experts > 0 && !WeighsBySoftmax(moe.router)) {
      return absl::UnimplementedError(
          absl::StrCat("--replay-trace: the router of layer ", layer, " does not weigh by a softmax"));
    }
  }
  ASSIGN_OR_RETURN(RecordedScores scores, RecordedScores::Create(trace, subject, config));
  return std::unique_ptr<ReplayRouting>(new ReplayRouting(std::move(scores), std::move(inner)));
}

absl::Status ReplayRouting::Choose(const RoutingInput& input, Queue* queue) {
  const StepBatch& batch = *input.batch;
  for (uint32_t row = 0; row < input.model.tokens; ++row) {
    const uint32_t sequence = batch.sequence_of(row);
    const uint64_t number = batch.number(sequence);
    if (number == 0) continue;
    first_number_ = first_number_ == 0 ? number : first_number_;
    const SequenceRows& rows = batch.sequences()[sequence];
    const absl::Span<const float> logits = scores_.Logits(
        input.layer, number - std::min(number, first_number_), rows.first_position + row - rows.first_row);
    const Rows& to = input.model.logits;
    RETURN_IF_ERROR(queue->Upload(logits.data(), logits.size() * sizeof(float),
                                  to.base + uint64_t{row} * to.stride * sizeof(float)));
  }
  return inner_->Choose(input, queue);
}

}  // namespace sluice::inferd
