#include "inferd/policy/router_trace.h"

#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "common/profile/profile_file.h"
#include "inferd/model/model_shapes.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kMaxTraceLayers = 1u << 16;
constexpr uint64_t kMaxTraceBytes = 8ull << 30;

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& subject) : bytes_(bytes), subject_(subject) {}

  template <typename T>
  bool Take(T* value) {
    return TakeMany(value, 1);
  }
  // Returns false and reads nothing if fewer values are left.
  template <typename T>
  bool TakeMany(T* values, uint64_t count) {
    if (count > (bytes_.size() - at_) / sizeof(T)) return false;
    std::memcpy(values, bytes_.data() + at_, count * sizeof(T));
    at_ += count * sizeof(T);
    return true;
  }
  uint64_t left() const { return bytes_.size() - at_; }
  bool AtEnd() const { return at_ == bytes_.size(); }
  absl::Status Bad(const std::string& what) const {
    return absl::DataLossError(absl::StrCat(subject_, ": before byte ", at_, ": ", what));
  }

 private:
  const std::string_view bytes_;
  const std::string& subject_;
  size_t at_ = 0;
};

struct Row {
  uint64_t sequence;
  uint32_t position;
  uint32_t flags;
};

// One record; its vectors are reused from record to record.
struct Record {
  uint64_t step = 0;
  uint32_t layer = 0;
  uint32_t rows = 0;
  std::vector<Row> row;
  std::vector<uint16_t> ids;
  std::vector<float> scores;
  std::vector<uint32_t> chosen;
};

// Adds the rows of `record` to `layer`.
absl::Status AddRows(const Reader& reader, Record* record, TraceLayer* layer) {
  for (uint32_t i = 0; i < record->rows; ++i) {
    if ((record->row[i].flags & kTraceLost) != 0) continue;
    record->chosen.clear();
    for (uint32_t rank = 0; rank < layer->top_k; ++rank) {
      const uint16_t id = record->ids[uint64_t{i} * layer->top_k + rank];
      if (id == kTraceLeftOut) continue;
      if (id >= layer->experts) {
        return reader.Bad(absl::StrCat("expert ", id, " of a layer of ", layer->experts));
      }
      record->chosen.push_back(id);
    }
    const float* scores = record->scores.data() + uint64_t{i} * layer->experts;
    for (uint32_t e = 0; e < layer->experts; ++e) {
      if (!(scores[e] >= 0 && scores[e] <= 1.001f)) {
        return reader.Bad(absl::StrCat("a score of ", scores[e]));
      }
    }
    layer->Add(record->step, record->row[i].flags, record->chosen);
    layer->sequences.push_back(record->row[i].sequence);
    layer->positions.push_back(record->row[i].position);
    layer->scores.insert(layer->scores.end(), scores, scores + layer->experts);
  }
  return absl::OkStatus();
}

}  // namespace

void TraceLayer::Add(uint64_t step, uint32_t flag, absl::Span<const uint32_t> experts_of_token) {
  if (begin.empty()) begin.push_back(0);
  steps.push_back(step);
  flags.push_back(flag);
  chosen.insert(chosen.end(), experts_of_token.begin(), experts_of_token.end());
  begin.push_back(static_cast<uint32_t>(chosen.size()));
}

absl::StatusOr<Trace> ParseTrace(std::string_view bytes, const std::string& subject) {
  Reader reader(bytes, subject);
  char magic[8] = {};
  uint32_t layers = 0;
  if (!reader.TakeMany(magic, 8) || std::memcmp(magic, kTraceMagic, 8) != 0 || !reader.Take(&layers) ||
      layers > kMaxTraceLayers || layers > reader.left() / 8) {
    return reader.Bad("this is no router trace");
  }
  Trace trace;
  trace.layers.resize(layers);
  for (TraceLayer& layer : trace.layers) {
    reader.Take(&layer.experts);
    reader.Take(&layer.top_k);
    if (layer.top_k > layer.experts || layer.experts >= kTraceLeftOut) {
      return reader.Bad(
          absl::StrCat("a layer of ", layer.experts, " experts of which a token uses ", layer.top_k));
    }
  }
  Record record;
  while (!reader.AtEnd()) {
    if (!reader.Take(&record.step) || !reader.Take(&record.layer) || !reader.Take(&record.rows)) break;
    if (record.layer >= layers || trace.layers[record.layer].experts == 0) {
      return reader.Bad(absl::StrCat("layer ", record.layer, " has no experts"));
    }
    TraceLayer& layer = trace.layers[record.layer];
    const uint64_t row_bytes = sizeof(Row) + layer.top_k * sizeof(uint16_t) + layer.experts * sizeof(float);
    if (record.rows > reader.left() / row_bytes) break;
    record.row.resize(record.rows);
    record.ids.resize(uint64_t{record.rows} * layer.top_k);
    record.scores.resize(uint64_t{record.rows} * layer.experts);
    reader.TakeMany(record.row.data(), record.row.size());
    reader.TakeMany(record.ids.data(), record.ids.size());
    reader.TakeMany(record.scores.data(), record.scores.size());
    RETURN_IF_ERROR(AddRows(reader, &record, &layer));
  }
  return trace;
}

absl::StatusOr<Trace> ReadTrace(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxTraceBytes));
  return ParseTrace(bytes, path);
}

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
      const auto id = static_cast<uint32_t>(routing.ids[at]);
      const bool read = routing.weights[at] != 0.0f && id < config_.layers[state.layer].moe.experts;
      AppendValue(read ? static_cast<uint16_t>(id) : kTraceLeftOut, &record_);
    }
  }
  RETURN_IF_ERROR(Write(record_.data(), record_.size()));
  return Write(scores_.data(),
               uint64_t{routing.tokens} * config_.layers[state.layer].moe.experts * sizeof(float));
}

}  // namespace sluice::inferd
