#include "inferd/policy/taps/trace_recorder.h"

#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/profile/profile_file.h"
#include "common/status.h"
#include "inferd/model/model_shapes.h"
#include "inferd/policy/trace/trace_file.h"

namespace sluice::inferd {

TraceRecorder::TraceRecorder(std::FILE* file, std::string path, const ModelConfig& config, Queue* queue,
                             uint32_t max_tokens)
    : file_(file),
      path_(std::move(path)),
      config_(config),
      queue_(queue),
      scores_(max_tokens, MaxExperts(config)),
      rows_(max_tokens) {
  std::iota(rows_.begin(), rows_.end(), 0u);
  const uint64_t row = 16 + LargestTopK(config) * sizeof(uint16_t) + MaxExperts(config) * sizeof(float);
  record_.reserve(16 + max_tokens * row);
}

TraceRecorder::~TraceRecorder() { std::fclose(file_); }

absl::StatusOr<std::unique_ptr<TraceRecorder>> TraceRecorder::Create(const std::string& path,
                                                                     const ModelConfig& config, Queue* queue,
                                                                     uint32_t max_tokens) {
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) return ErrnoToStatus(errno, absl::StrCat("--trace ", path));
  std::unique_ptr<TraceRecorder> recorder(new TraceRecorder(file, path, config, queue, max_tokens));
  std::string head = kTraceMagic;
  AppendValue(static_cast<uint32_t>(config.layers.size()), &head);
  for (const LayerConfig& layer : config.layers) {
    AppendValue(layer.moe.experts, &head);
    AppendValue(layer.moe.top_k, &head);
  }
  RETURN_IF_ERROR(recorder->Write(head.data(), head.size()));
  RETURN_IF_ERROR(recorder->Flush());
  return recorder;
}

absl::Status TraceRecorder::Write(const void* data, size_t bytes) {
  if (error_.ok() && std::fwrite(data, 1, bytes, file_) != bytes) {
    error_ = ErrnoToStatus(errno, absl::StrCat("--trace ", path_));
  }
  return error_;
}

absl::Status TraceRecorder::Flush() {
  if (error_.ok() && std::fflush(file_) != 0) {
    error_ = ErrnoToStatus(errno, absl::StrCat("--trace ", path_));
  }
  return error_;
}

absl::Status TraceRecorder::AfterRouter(const RouterState& state) {
  const Routing& routing = state.routing;
  RETURN_IF_ERROR(scores_.Read(state.scores, config_.layers[state.layer].moe.experts,
                               absl::MakeConstSpan(rows_.data(), routing.tokens), queue_));
  record_.clear();
  AppendValue(state.batch->step(), &record_);
  AppendValue(state.layer, &record_);
  AppendValue(routing.tokens, &record_);
  const absl::Span<const SequenceRows> sequences = state.batch->sequences();
  for (uint32_t row = 0; row < routing.tokens; ++row) {
    const SequenceRows& sequence = sequences[state.batch->sequence_of(row)];
    AppendValue(state.batch->number(state.batch->sequence_of(row)), &record_);
    AppendValue(sequence.first_position + row - sequence.first_row, &record_);
    AppendValue((state.batch->decodes(row) ? kTraceDecode : 0) | (state.batch->lost(row) ? kTraceLost : 0),
                &record_);
  }
  for (uint32_t row = 0; row < routing.tokens; ++row) {
    for (uint32_t rank = 0; rank < routing.top_k; ++rank) {
      const uint64_t at = uint64_t{row} * routing.ranks + rank;
      AppendValue(routing.weights[at] == 0.0f ? kTraceLeftOut : static_cast<uint16_t>(routing.ids[at]),
                  &record_);
    }
  }
  RETURN_IF_ERROR(Write(record_.data(), record_.size()));
  return Write(scores_.data(),
               uint64_t{routing.tokens} * config_.layers[state.layer].moe.experts * sizeof(float));
}

}  // namespace sluice::inferd
