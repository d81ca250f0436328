#include "inferd/sim/measured_device.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "inferd/sim/virtual_device.h"
#include "pack/pack_format.h"
#include "pack/row_layout.h"

namespace sluice::inferd {
namespace {

// Returns the parts of a work computed after its lead, or all three.
std::vector<const WeightView*> PartsOf(const ExpertWork& work) {
  std::vector<const WeightView*> parts = {&work.down};
  if (work.sparsity != SparsityOrder::kUp) parts.push_back(&work.up);
  if (work.sparsity != SparsityOrder::kGate) parts.push_back(&work.gate);
  return parts;
}

// The single encoding of all weights that the call reads, and the number of rows; empty if there are several,
// or if a work is computed neither whole nor by leads.
struct Uniform {
  const WeightView* view = nullptr;
  double rows = 0;
  bool kept = false;
};
std::optional<Uniform> UniformOf(const MoeExpertsArgs& args, Backend* backend) {
  Uniform found;
  for (const ExpertWork& work : args.experts) {
    const bool kept = bool{work.lead_values.base};
    if (work.rows.size() != 1 || (!kept && work.sparsity != SparsityOrder::kNone)) return std::nullopt;
    for (const WeightView* view : PartsOf(work)) {
      if (found.view == nullptr) found = {view, 0, kept};
      if (!(view->encoding == found.view->encoding) || view->cols != found.view->cols || kept != found.kept) {
        return std::nullopt;
      }
      found.rows += kept ? ActiveByLead(backend, work) : NeuronsOf(work);
    }
  }
  return found.rows > 0 ? std::optional(found) : std::nullopt;
}

}  // namespace

void CostSamples::Add(double value) {
  if (values_.size() < kMaxSamples) {
    values_.push_back(value);
  } else {
    values_[next_++ % kMaxSamples] = value;
  }
}

double CostSamples::Median() {
  sorted_ = values_;
  const auto middle = sorted_.begin() + static_cast<std::ptrdiff_t>(sorted_.size() / 2);
  std::nth_element(sorted_.begin(), middle, sorted_.end());
  return *middle;
}

void CostTable::AddExperts(const MoeExpertsArgs& args, double seconds, Backend* backend) {
  const std::optional<Uniform> uniform = UniformOf(args, backend);
  if (!uniform.has_value()) {
    return;
  }
  Rows& rows = rows_[static_cast<size_t>(uniform->view->encoding.encoding)];
  (uniform->kept ? rows.kept : rows.all).Add(seconds / uniform->rows * 1e9);
  if (!uniform->kept) {
    dense_ = uniform->view->encoding;
    dense_cols_ = uniform->view->cols;
  }
}

void CostTable::AddLeads(const ExpertLeadsArgs& args, double seconds) {
  double rows = 0;
  for (const LeadWork& work : args.experts) {
    if (work.rows.size() != 1 || !(work.lead.encoding == args.experts.front().lead.encoding)) {
      return;
    }
    rows += work.lead.rows;
  }
  if (rows > 0) {
    rows_[static_cast<size_t>(args.experts.front().lead.encoding.encoding)].all.Add(seconds / rows * 1e9);
  }
}

void CostTable::AddStep(double rest_seconds, uint32_t layers, double head_seconds) {
  if (layers > 0) {
    attention_.Add(rest_seconds / layers * 1e3);
    head_.Add(head_seconds * 1e3);
  }
}

std::string CostTable::Text() {
  std::string text = "# Measured by --measure-costs, for --virtual-costs @FILE.\n";
  const auto line = [&text](absl::string_view key, double value) {
    absl::StrAppend(&text, key, "=", value, "\n");
  };
  if (!attention_.empty()) {
    line("attention_ms", attention_.Median());
    line("head_ms", head_.Median());
  }
  if (dense_cols_ > 0) {
    CostSamples& all = rows_[static_cast<size_t>(dense_.encoding)].all;
    const double ms = all.Median() * 1e-6 * static_cast<double>(expert_bytes_) /
                      static_cast<double>(RowBytes(dense_, dense_cols_));
    line("compute_ms", ms);
    line("cpu_ms", ms);
  }
  for (size_t value = 0; value < rows_.size(); ++value) {
    const char* name = EncodingName(static_cast<Encoding>(value));
    if (!rows_[value].all.empty()) line(absl::StrCat(name, "_all_ns"), rows_[value].all.Median());
    if (!rows_[value].kept.empty()) line(absl::StrCat(name, "_kept_ns"), rows_[value].kept.Median());
  }
  return text;
}

absl::Status MeasuredQueue::WriteTable() {
  steps_ = 0;
  const absl::Status written = WriteFileDurably(path_, table_.Text());
  return written.ok() ? written
                      : absl::Status(written.code(), absl::StrCat("--measure-costs: ", written.message()));
}

MeasuredQueue::~MeasuredQueue() {
  CountStep();
  // The error has no receiver here; the file already holds all but the last steps.
  if (steps_ > 0) WriteTable().IgnoreError();
}

void MeasuredQueue::CountStep() {
  if (rows_ == 1) {
    table_.AddStep(rest_seconds_, layers_, head_seconds_);
    ++steps_;
  }
  rest_seconds_ = head_seconds_ = last_matmul_seconds_ = 0;
  layers_ = 0;
}

absl::Status MeasuredQueue::FinishStep() {
  CountStep();
  return steps_ < kStepsBetweenWrites ? absl::OkStatus() : WriteTable();
}

absl::Status MeasuredQueue::Time(const Operation& operation, double* sum) {
  const int64_t start = clock_.NowNanos();
  absl::Status status = inner_queue().Enqueue(operation);
  if (status.ok()) {
    status = inner_queue().Wait(inner_queue().Record());
  }
  *sum += static_cast<double>(clock_.NowNanos() - start) * 1e-9;
  return status;
}

absl::Status MeasuredQueue::Enqueue(const Operation& operation) {
  return std::visit([this](const auto* args) { return Run(*args); }, operation);
}

absl::Status MeasuredQueue::Run(const EmbedArgs& args) {
  RETURN_IF_ERROR(FinishStep());
  rows_ = args.ids.size();
  return Time(&args, &rest_seconds_);
}

absl::Status MeasuredQueue::Run(const MatMulArgs& args) {
  last_matmul_seconds_ = 0;
  const absl::Status status = Time(&args, &last_matmul_seconds_);
  rest_seconds_ += last_matmul_seconds_;
  return status;
}

// Times the candidates; the matrix product before this call was the head's.
absl::Status MeasuredQueue::Run(const TopLogitsArgs& args) {
  rest_seconds_ -= last_matmul_seconds_;
  head_seconds_ += last_matmul_seconds_;
  last_matmul_seconds_ = 0;
  return Time(&args, &head_seconds_);
}

absl::StatusOr<std::unique_ptr<MeasuredDevice>> MeasuredDevice::Create(std::unique_ptr<Backend> inner,
                                                                       std::string path,
                                                                       uint64_t expert_bytes) {
  std::unique_ptr<MeasuredDevice> device(new MeasuredDevice(std::move(inner), std::move(path), expert_bytes));
  RETURN_IF_ERROR(device->queue_.WriteTable());
  return device;
}

absl::Status MeasuredQueue::Run(const ExpertLeadsArgs& args) {
  double seconds = 0;
  RETURN_IF_ERROR(Time(&args, &seconds));
  if (rows_ == 1) {
    table_.AddLeads(args, seconds);
  }
  return absl::OkStatus();
}

absl::Status MeasuredQueue::Run(const MoeExpertsArgs& args) {
  double seconds = 0;
  RETURN_IF_ERROR(Time(&args, &seconds));
  if (rows_ == 1) {
    table_.AddExperts(args, seconds, backend_);
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
