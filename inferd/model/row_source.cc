#include "inferd/model/row_source.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/model/dense_names.h"
#include "pack/row_layout.h"

namespace sluice::inferd {
namespace {

// Pause before a retry after weightd had no room: other sessions release some meanwhile.
constexpr absl::Duration kRetryPace = absl::Milliseconds(1);

uint64_t ValueBytes(const NgramConfig& ngrams, uint64_t row_bytes, uint32_t max_tokens) {
  return uint64_t{max_tokens} * NgramHeads(ngrams) * row_bytes;
}

}  // namespace

RowSource::RowSource(uint32_t max_tokens, absl::Duration stall_limit, const Parts& parts)
    : parts_(parts), max_tokens_(max_tokens), stall_limit_(stall_limit), stall_(stall_limit) {}

RowSource::~RowSource() { parts_.fetches->SetListener(nullptr); }

uint64_t RowSource::DeviceBytes(const ModelConfig& config, uint32_t max_tokens) {
  uint64_t bytes = 0;
  for (const LayerConfig& layer : config.layers) {
    bytes += ValueBytes(layer.ngrams, uint64_t{layer.ngrams.width} * sizeof(float), max_tokens);
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<RowSource>> RowSource::Create(const ModelConfig& config, uint32_t max_tokens,
                                                             absl::Duration stall_limit, const Parts& parts) {
  std::unique_ptr<RowSource> source(new RowSource(max_tokens, stall_limit, parts));
  uint64_t heads = 0;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    if (HasNgrams(config.layers[layer])) {
      RETURN_IF_ERROR(source->AddTable(config, layer));
      heads += NgramHeads(config.layers[layer].ngrams);
    }
  }
  if (source->tables_.empty()) {
    return std::unique_ptr<RowSource>();
  }
  source->wants_.reserve(heads * max_tokens);
  source->groups_.reserve(heads * max_tokens);
  source->rows_.resize(heads);
  parts.fetches->SetListener(source.get());
  return source;
}

absl::Status RowSource::AddTable(const ModelConfig& config, uint32_t layer) {
  const NgramConfig& ngrams = config.layers[layer].ngrams;
  const std::string name = dense::LayerName(layer, dense::kNgramRows);
  const DenseTensor* tensor = parts_.client->pack().FindDense(name);
  if (tensor == nullptr || tensor->rows != ngrams.rows || tensor->cols != ngrams.width) {
    return absl::DataLossError(absl::StrCat("pack ", parts_.client->pack().dir(), ": ", name, " is not [",
                                            ngrams.rows, ", ", ngrams.width, "]"));
  }
  Table table{.layer = layer, .ngrams = ngrams, .hash = NgramHash(ngrams, config.vocab)};
  table.first_extent = tensor->extent;
  table.each = RowsPerExtent(tensor->stride);
  table.stride = tensor->stride;
  table.bytes = static_cast<uint32_t>(RowBytes(tensor->encoding, tensor->cols));
  table.encoding = tensor->encoding;
  ASSIGN_OR_RETURN(
      const BufferId buffer,
      parts_.backend->Allocate(ValueBytes(ngrams, table.bytes, max_tokens_), BufferKind::kStaging));
  table.values = {buffer, 0};
  tables_.push_back(std::move(table));
  return absl::OkStatus();
}

absl::Status RowSource::Begin(StepBatch* batch) {
  batch_ = batch;
  error_ = absl::OkStatus();
  wants_.clear();
  groups_.clear();
  for (uint32_t table = 0; table < tables_.size(); ++table) {
    RETURN_IF_ERROR(FindWants(table, *batch));
  }
  for (Group& group : groups_) {
    counts_.hits += TryCopy(&group) ? 1 : 0;
  }
  counts_.rows += wants_.size();
  counts_.extents += groups_.size();
  const BatchSubmit batch_submit(parts_.client);
  for (uint32_t table = 0; table < tables_.size(); ++table) {
    RETURN_IF_ERROR(Request(table));
  }
  return absl::OkStatus();
}

absl::Status RowSource::FindWants(uint32_t number, const StepBatch& batch) {
  Table& table = tables_[number];
  const uint32_t size = table.ngrams.size;
  const uint32_t heads = NgramHeads(table.ngrams);
  const size_t first = wants_.size();
  table.host = parts_.backend->HostWrite(table.values, ValueBytes(table.ngrams, table.bytes, batch.tokens()));
  if (table.host == nullptr) {
    return absl::InternalError("the staging memory of rows cannot be written");
  }
  std::array<int32_t, StepBatch::kTokensBefore + 1> back;
  for (uint32_t token = 0; token < batch.tokens(); ++token) {
    const SequenceRows& text = batch.sequences()[batch.sequence_of(token)];
    const uint32_t position = text.first_position + token - text.first_row;
    const absl::Span<const int32_t> found = batch.TokensBack(token, absl::MakeSpan(back).first(size));
    if (found.size() < std::min(position + 1, size)) {
      return absl::InternalError(absl::StrCat("layer ", table.layer, ": ", found.size(), " of the ", size,
                                              " tokens of n-grams at position ", position, " are known"));
    }
    table.hash.FindRows(found, absl::MakeSpan(rows_).first(heads));
    for (uint32_t head = 0; head < heads; ++head) {
      wants_.push_back({table.first_extent + static_cast<uint32_t>(rows_[head] / table.each),
                        static_cast<uint32_t>(rows_[head] % table.each), token * heads + head});
    }
  }
  GroupWants(number, first);
  return absl::OkStatus();
}

void RowSource::GroupWants(uint32_t table, size_t first) {
  std::sort(wants_.begin() + first, wants_.end(),
            [](const Want& a, const Want& b) { return a.extent < b.extent; });
  tables_[table].open = 0;
  for (size_t i = first; i < wants_.size(); ++i) {
    if (i == first || wants_[i].extent != groups_.back().extent) {
      groups_.push_back({.extent = wants_[i].extent, .table = table, .first = static_cast<uint32_t>(i)});
      ++tables_[table].open;
    }
    ++groups_.back().count;
  }
}

RowSource::Group* RowSource::Find(uint32_t extent) {
  const auto found = std::lower_bound(groups_.begin(), groups_.end(), extent,
                                      [](const Group& group, uint32_t e) { return group.extent < e; });
  return found == groups_.end() || found->extent != extent ? nullptr : &*found;
}

bool RowSource::TryCopy(Group* group) {
  ExtentLease lease;
  if (!parts_.client->TryLease(group->extent, &lease)) {
    return false;
  }
  const Table& table = tables_[group->table];
  for (uint32_t i = group->first; i < group->first + group->count; ++i) {
    const Want& want = wants_[i];
    std::memcpy(table.host + uint64_t{want.place} * table.bytes,
                lease.data + uint64_t{want.row} * table.stride, table.bytes);
  }
  parts_.client->Release(group->extent, batch_->step());
  Finish(group);
  return true;
}

void RowSource::Finish(Group* group) {
  group->state = State::kDone;
  --tables_[group->table].open;
}

// Gives the tokens zeros, and fails their sequences.
void RowSource::Damage(Group* group, uint32_t extent) {
  const Table& table = tables_[group->table];
  for (uint32_t i = group->first; i < group->first + group->count; ++i) {
    std::memset(table.host + uint64_t{wants_[i].place} * table.bytes, 0, table.bytes);
    batch_->Fail(batch_->sequence_of(wants_[i].place / NgramHeads(table.ngrams)), extent);
  }
  Finish(group);
}

// A completion is a hint that the extent is resident; one that was evicted in between is requested again.
void RowSource::OnExtent(uint32_t extent, const FetchCompletion& completion) {
  Group* const group = Find(extent);
  if (group == nullptr || group->state != State::kRequested) {
    return;
  }
  group->state = State::kAbsent;
  switch (completion.code) {
    case absl::StatusCode::kOk:
      TryCopy(group);
      break;
    case absl::StatusCode::kDataLoss:
      Damage(group, extent);
      break;
    case absl::StatusCode::kResourceExhausted:
      retry_at_ = SteadyNow() + kRetryPace;
      return;
    case absl::StatusCode::kDeadlineExceeded:
      error_ = ReasonError(
          completion.code, "WEIGHTS_LATE",
          absl::StrCat("the disk did not answer in time for ", parts_.client->pack().ExtentName(extent)));
      return;
    default:
      error_ = absl::Status(completion.code, absl::StrCat("weightd could not bring ",
                                                          parts_.client->pack().ExtentName(extent)));
      return;
  }
  stall_.Restart(SteadyNow());
}

// Requests the absent extents of a table, as many as the ring has room for.
absl::Status RowSource::Request(uint32_t table) {
  if (tables_[table].open == 0 || SteadyNow() < retry_at_) {
    return absl::OkStatus();
  }
  const BatchSubmit batch_submit(parts_.client);
  for (Group& group : groups_) {
    if (group.table != table || group.state != State::kAbsent) {
      continue;
    }
    const absl::Status status = parts_.fetches->FetchDense(group.extent);
    if (absl::IsResourceExhausted(status)) {
      break;  // the ring is full: completions make room
    }
    RETURN_IF_ERROR(status);
    group.state = State::kRequested;
  }
  return absl::OkStatus();
}

absl::StatusOr<WeightView> RowSource::Await(uint32_t layer) {
  const auto table = std::find_if(tables_.begin(), tables_.end(),
                                  [layer](const Table& other) { return other.layer == layer; });
  if (table == tables_.end()) {
    return absl::InternalError(absl::StrCat("layer ", layer, " has no table of rows"));
  }
  const uint32_t number = static_cast<uint32_t>(table - tables_.begin());
  stall_.Restart(SteadyNow());
  while (table->open > 0) {
    parts_.poll();
    RETURN_IF_ERROR(error_);
    RETURN_IF_ERROR(Request(number));
    if (table->open == 0) {
      break;
    }
    const absl::Time now = SteadyNow();
    if (stall_.Exceeded(now)) {
      return absl::ResourceExhaustedError(absl::StrCat("layer ", layer, ": ", table->open,
                                                       " extents of rows did not come for ",
                                                       absl::FormatDuration(stall_limit_)));
    }
    RETURN_IF_ERROR(
        parts_.fetches->Wait(stall_.EndOfWait(now, now < retry_at_ ? retry_at_ : absl::InfiniteFuture())));
  }
  const uint32_t width = NgramWidth(table->ngrams);
  return WeightView{table->encoding, table->values, uint64_t{table->bytes} * NgramHeads(table->ngrams),
                    batch_->tokens(), width};
}

}  // namespace sluice::inferd
