#include "kernels/cuda/fast_products.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace sluice::cuda {
namespace {

// Half of the L2 cache of an H100 and a quarter of an RTX 5090's: the product finds there what was expanded.
constexpr uint64_t kTileBytes = 16 << 20;
// Rows of a tile at most, so that the sums of kFastRows rows are no more than kTileBytes.
constexpr uint32_t kMaxTileRows = 8192;
constexpr uint32_t kTileStep = 64;
// Alignment that the library's fastest kernels ask of addresses and rows.
constexpr uint32_t kAlignment = 16;
constexpr uint32_t kColumnStep = kAlignment / 2;
constexpr uint64_t kPlace = 256;  // alignment of the buffers

constexpr uint64_t Up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

uint32_t PaddedColumns(uint32_t cols) { return static_cast<uint32_t>(Up(cols, kColumnStep)); }
// From row to row of the sums.
uint32_t SumStride(uint32_t n) { return static_cast<uint32_t>(Up(n, kAlignment / 4)); }

// Rows of a tile of weights; 0: rows are too long.
uint32_t TileRows(uint32_t padded_cols) {
  return static_cast<uint32_t>(
      std::min<uint64_t>(kTileBytes / (2 * uint64_t{padded_cols}) / kTileStep * kTileStep, kMaxTileRows));
}

// True if the library may read bf16 or f16 where it lies.
bool IsInPlace(const DeviceMatrix& m) {
  return m.encoding <= Encoding::kF16 && m.cols % kColumnStep == 0 && m.stride == 2 * uint64_t{m.cols} &&
         m.aligned >= kAlignment;
}

absl::Status StatusOfLt(lt::Status status, absl::string_view what) {
  return status == lt::kSuccess
             ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrCat("cuBLASLt: ", what, ": status ", status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FastProducts>> FastProducts::Create(const std::vector<DenseShape>& shapes,
                                                                   uint32_t max_tokens, cudaStream_t stream) {
  ASSIGN_OR_RETURN(const lt::Api api, lt::LoadCublasLt());
  std::unique_ptr<FastProducts> products(new FastProducts(api, stream));
  RETURN_IF_ERROR(products->Open(shapes, max_tokens));
  return products;
}

absl::Status FastProducts::Open(const std::vector<DenseShape>& shapes, uint32_t max_tokens) {
  RETURN_IF_ERROR(StatusOfLt(api_.create(&handle_), "a handle"));
  RETURN_IF_ERROR(StatusOfLt(api_.desc_create(&desc_, lt::kCompute32F, CUDA_R_32F), "a description"));
  // In the library's column-major terms a product is sums [n, rows] = transposed weights [k, n] . x [k,
  // rows].
  const int32_t transposed = lt::kTransposed;
  RETURN_IF_ERROR(
      StatusOfLt(api_.desc_set(desc_, lt::DescAttribute::kTransA, &transposed, sizeof(transposed)),
                 "transposed weights"));
  for (const DenseShape& shape : shapes) {
    RETURN_IF_ERROR(AddPlans(shape));
  }
  RETURN_IF_ERROR(Allocate(max_tokens));
  for (const auto& [key, plan] : plans_) {
    RETURN_IF_ERROR(TestPlan(plan));
  }
  return absl::OkStatus();
}

FastProducts::~FastProducts() {
  for (const auto& [key, plan] : plans_) {
    for (const auto* list : {&plan.x, &plan.sums}) {
      for (const lt::MatrixLayout layout : *list) {
        if (layout != nullptr) {
          api_.layout_destroy(layout);
        }
      }
    }
    if (plan.weights != nullptr) {
      api_.layout_destroy(plan.weights);
    }
  }
  if (desc_ != nullptr) {
    api_.desc_destroy(desc_);
  }
  if (handle_ != nullptr) {
    api_.destroy(handle_);
  }
  cudaFree(memory_);
}

// Every tile's product in f16, and in bf16 for weights that may be read where they lie.
absl::Status FastProducts::AddPlans(const DenseShape& shape) {
  const uint32_t k = PaddedColumns(shape.cols);
  const uint32_t tile = TileRows(k);
  if (tile == 0 || shape.rows == 0 || shape.encoding.encoding == Encoding::kF32) {
    return absl::OkStatus();
  }
  shapes_.push_back(shape);
  for (const uint32_t n : {std::min(shape.rows, tile), shape.rows % tile}) {
    if (n > 0) {
      RETURN_IF_ERROR(AddPlan(/*bf16=*/false, n, k));
      if (shape.encoding.encoding == Encoding::kBf16) {
        RETURN_IF_ERROR(AddPlan(/*bf16=*/true, n, k));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status FastProducts::AddPlan(bool bf16, uint32_t n, uint32_t k) {
  const auto [place, is_new] = plans_.try_emplace(Key(bf16, n, k));
  if (!is_new) {
    return absl::OkStatus();
  }
  Plan& plan = place->second;
  plan.n = n;
  plan.k = k;
  plan.bf16 = bf16;
  const cudaDataType_t type = bf16 ? CUDA_R_16BF : CUDA_R_16F;
  RETURN_IF_ERROR(StatusOfLt(api_.layout_create(&plan.weights, type, k, n, k), "a layout of weights"));
  for (uint32_t i = 0; i < plan.x.size(); ++i) {
    const uint64_t rows = uint64_t{i + 1} * kFastRowStep;
    RETURN_IF_ERROR(StatusOfLt(api_.layout_create(&plan.x[i], type, k, rows, k), "a layout of rows"));
    RETURN_IF_ERROR(
        StatusOfLt(api_.layout_create(&plan.sums[i], CUDA_R_32F, n, rows, SumStride(n)), "a layout of sums"));
  }
  return ChooseAlgorithm(&plan);
}

// The algorithm for the most rows is that of fewer too. Without workspace, and without a scheme that adds
// parts of a sum: an element is one sum over k.
absl::Status FastProducts::ChooseAlgorithm(Plan* plan) {
  lt::Preference preference = nullptr;
  RETURN_IF_ERROR(StatusOfLt(api_.preference_create(&preference), "a preference"));
  const uint64_t workspace = 0;
  const uint32_t schemes = 0;
  const uint32_t alignment = kAlignment;
  const std::tuple<lt::PreferenceAttribute, const void*, size_t> attributes[] = {
      {lt::PreferenceAttribute::kMaxWorkspaceBytes, &workspace, sizeof(workspace)},
      {lt::PreferenceAttribute::kReductionSchemeMask, &schemes, sizeof(schemes)},
      {lt::PreferenceAttribute::kMinAlignmentA, &alignment, sizeof(alignment)},
      {lt::PreferenceAttribute::kMinAlignmentB, &alignment, sizeof(alignment)},
      {lt::PreferenceAttribute::kMinAlignmentC, &alignment, sizeof(alignment)},
      {lt::PreferenceAttribute::kMinAlignmentD, &alignment, sizeof(alignment)}};
  lt::Status status = lt::kSuccess;
  for (const auto& [attribute, value, bytes] : attributes) {
    status = status == lt::kSuccess ? api_.preference_set(preference, attribute, value, bytes) : status;
  }
  lt::HeuristicResult result = {};
  int found = 0;
  if (status == lt::kSuccess) {
    status = api_.get_heuristic(handle_, desc_, plan->weights, plan->x.back(), plan->sums.back(),
                                plan->sums.back(), preference, 1, &result, &found);
  }
  api_.preference_destroy(preference);
  const std::string what =
      absl::StrCat("an algorithm for [", plan->n, ", ", plan->k, "] in ", plan->bf16 ? "bf16" : "f16");
  RETURN_IF_ERROR(StatusOfLt(status, what));
  if (found == 0 || result.state != lt::kSuccess || result.workspace_bytes != 0) {
    return absl::FailedPreconditionError(absl::StrCat("cuBLASLt has none for ", what, " without workspace"));
  }
  plan->algo = result.algo;
  return absl::OkStatus();
}

absl::Status FastProducts::Allocate(uint32_t max_tokens) {
  const uint64_t rows = Up(std::max(max_tokens, kFastRows), kFastRowStep);
  uint64_t weights = 0;
  uint64_t x = 0;
  uint64_t sums = 0;
  uint64_t most_n = 0;
  for (const auto& [key, plan] : plans_) {
    weights = std::max(weights, 2 * uint64_t{plan.n} * plan.k);
    x = std::max(x, 2 * rows * plan.k);
    sums = std::max(sums, uint64_t{4} * kFastRows * SumStride(plan.n));
    most_n = std::max<uint64_t>(most_n, plan.n);
  }
  uint64_t total = 0;
  const auto take = [&](uint64_t bytes) {
    const uint64_t at = total;
    total += Up(bytes, kPlace);
    return at;
  };
  const uint64_t places[] = {take(weights), take(4 * most_n), take(x), take(4 * rows), take(sums)};
  void* memory = nullptr;
  RETURN_IF_ERROR(StatusOf(cudaMalloc(&memory, std::max(total, kPlace)),
                           absl::StrCat("buffers of ", total, " bytes for cuBLASLt's products")));
  memory_ = static_cast<uint8_t*>(memory);
  weights_ = reinterpret_cast<uint16_t*>(memory_ + places[0]);
  weight_scales_ = reinterpret_cast<float*>(memory_ + places[1]);
  x_ = reinterpret_cast<uint16_t*>(memory_ + places[2]);
  x_scales_ = reinterpret_cast<float*>(memory_ + places[3]);
  sums_ = reinterpret_cast<float*>(memory_ + places[4]);
  return absl::OkStatus();
}

bool FastProducts::Takes(const CallWeights& weights) const {
  const DenseShape shape = {weights.encoding, weights.rows, weights.cols};
  return std::find(shapes_.begin(), shapes_.end(), shape) != shapes_.end();
}

void FastProducts::Begin(const Rows& rows) {
  rows_ = rows;
  staged_ = {};
}

absl::Status FastProducts::Call(const Plan& plan, const void* weights, const uint16_t* x, uint32_t rows) {
  const float one = 1;
  const float zero = 0;
  const uint32_t i = (rows + kFastRowStep - 1) / kFastRowStep - 1;
  ++calls_;
  const lt::Status status =
      api_.matmul(handle_, desc_, &one, weights, plan.weights, x, plan.x[i], &zero, sums_, plan.sums[i],
                  sums_, plan.sums[i], &plan.algo, nullptr, 0, stream_);
  return StatusOfLt(status, absl::StrCat("a product of ", (i + 1) * kFastRowStep, " rows with [", plan.n,
                                         ", ", plan.k, "] in ", plan.bf16 ? "bf16" : "f16"));
}

absl::Status FastProducts::Expand(const DeviceMatrix& weights, uint32_t first, uint32_t rows,
                                  Launcher& launcher) {
  ExpandLaunch launch;
  launch.weights = weights;
  launch.first = first;
  launch.rows = rows;
  launch.padded_cols = PaddedColumns(weights.cols);
  launch.y = weights_;
  launch.scales = weight_scales_;
  return StatusOf(EnqueueExpand(launch, launcher), "expanding weights");
}

// Parts of one call mostly want the same rows: these are made once.
absl::Status FastProducts::StageRows(bool bf16, const uint8_t* rounded, const DeviceMatrix& weights,
                                     Launcher& launcher) {
  const Staged wanted = {true, bf16, rounded};
  if (staged_ == wanted) {
    return absl::OkStatus();
  }
  HalfRowsLaunch launch;
  launch.x = rows_.x;
  launch.x_stride = rows_.x_stride;
  launch.rounded = rounded;
  launch.group = weights.group;
  launch.rows = rows_.tokens;
  launch.cols = weights.cols;
  launch.padded_rows = static_cast<uint32_t>(Up(rows_.tokens, kFastRowStep));
  launch.padded_cols = PaddedColumns(weights.cols);
  launch.bf16 = bf16;
  launch.y = x_;
  launch.scales = x_scales_;
  RETURN_IF_ERROR(StatusOf(EnqueueHalfRows(launch, launcher), "activations of 16 bits"));
  staged_ = wanted;
  return absl::OkStatus();
}

absl::Status FastProducts::Multiply(const DeviceMatrix& weights, const uint8_t* rounded,
                                    const FinishLaunch& finish, Launcher& launcher) {
  const bool in_place = IsInPlace(weights);
  const bool bf16 = in_place && weights.encoding == Encoding::kBf16;
  const uint32_t k = PaddedColumns(weights.cols);
  const uint32_t tile = TileRows(k);
  RETURN_IF_ERROR(StageRows(bf16, rounded, weights, launcher));
  for (uint32_t first = 0; first < weights.rows; first += tile) {
    const uint32_t n = std::min(tile, weights.rows - first);
    const auto plan = plans_.find(Key(bf16, n, k));
    if (plan == plans_.end()) {
      return absl::InternalError(absl::StrCat("no product of [", n, ", ", k, "] was proven"));
    }
    const void* from = weights.base + first * weights.stride;
    if (!in_place) {
      RETURN_IF_ERROR(Expand(weights, first, n, launcher));
      from = weights_;
    }
    for (uint32_t t = 0; t < rows_.tokens; t += kFastRows) {
      const uint32_t rows = std::min(kFastRows, rows_.tokens - t);
      RETURN_IF_ERROR(Call(plan->second, from, x_ + uint64_t{t} * k, rows));
      FinishLaunch launch = finish;
      launch.sums = sums_;
      launch.sums_stride = SumStride(n);
      launch.x_scales = x_scales_ + t;
      launch.row_scales = in_place ? nullptr : weight_scales_;
      launch.bias += launch.bias == nullptr ? 0 : first;
      launch.residual += launch.residual == nullptr ? 0 : t * launch.residual_stride + first;
      launch.y += t * launch.y_stride + first;
      launch.tokens = rows;
      launch.rows = n;
      RETURN_IF_ERROR(StatusOf(EnqueueFinish(launch, launcher), "results of cuBLASLt's sums"));
    }
  }
  return absl::OkStatus();
}

std::string FastProducts::Describe() const {
  const size_t version = api_.get_version();
  return absl::StrCat("cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100, ", ",
                      plans_.size(), " products proven");
}

}  // namespace sluice::cuda
