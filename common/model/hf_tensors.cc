#include "common/model/hf_tensors.h"

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/model/hf_mixtral.h"
#include "common/status.h"

namespace sluice {
namespace {

struct FamilyTensors {
  const char* family;
  absl::Status (*map)(const ModelConfig& config, TensorMapper* mapper);
};
constexpr FamilyTensors kFamilies[] = {
    {"mixtral", &MapMixtralTensors},
};

void Append(std::string* list, const std::string& item) {
  absl::StrAppend(list, list->empty() ? "" : ", ", item);
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Buffers that old checkpoints carry along; the forward pass computes them.
bool IsKnownBuffer(const std::string& name) {
  return absl::EndsWith(name, ".rotary_emb.inv_freq") || absl::EndsWith(name, ".masked_bias");
}

}  // namespace

const TensorInfo* TensorMapper::Use(const std::string& name, const std::vector<uint64_t>& shape) {
  const TensorInfo* tensor = folder_.Find(name);
  if (tensor == nullptr) {
    Append(&missing_, name);
    ++errors_;
    return nullptr;
  }
  used_.insert(tensor);
  if (tensor->shape != shape) {
    Append(&wrong_, absl::StrCat(name, " has shape ", ShapeText(tensor->shape), ", config.json needs ",
                                 ShapeText(shape)));
    ++errors_;
    return nullptr;
  }
  if (tensor->type != ElementType::kBf16 && tensor->type != ElementType::kF16 &&
      tensor->type != ElementType::kF32) {
    Append(&unsupported_, absl::StrCat(name, " (", ElementTypeName(tensor->type), ")"));
    ++errors_;
    return nullptr;
  }
  return tensor;
}

SourceMatrix TensorMapper::Matrix(const std::string& name, uint32_t rows, uint32_t cols) {
  return {Use(name, {rows, cols}), 0, rows, cols};
}

void TensorMapper::Vector(const std::string& canonical, const std::string& name, uint32_t length) {
  map_.dense.push_back({canonical, {Use(name, {length}), 0, 1, length}});
}

void TensorMapper::Dense(const std::string& canonical, const std::string& name, uint32_t rows,
                         uint32_t cols) {
  map_.dense.push_back({canonical, Matrix(name, rows, cols)});
}

SourceMatrix TensorMapper::Slice(const std::string& name, uint32_t count, uint32_t index, uint32_t stack_rows,
                                 uint32_t first, uint32_t rows, uint32_t cols) {
  const TensorInfo* tensor = Use(name, {count, stack_rows, cols});
  if (tensor == nullptr) return {};
  const uint64_t row = static_cast<uint64_t>(index) * stack_rows + first;
  return {tensor, row * cols * ElementBytes(tensor->type), rows, cols};
}

void TensorMapper::AddExpert(uint32_t layer, const ExpertSource& expert) {
  if (map_.experts.size() <= layer) map_.experts.resize(layer + 1);
  map_.experts[layer].push_back(expert);
}

void TensorMapper::Ignore(const std::string& name) {
  if (const TensorInfo* tensor = folder_.Find(name)) used_.insert(tensor);
}

absl::StatusOr<SourceMap> TensorMapper::Finish() {
  const std::string more = ok() ? "" : " and more";
  if (!missing_.empty()) {
    return absl::NotFoundError(absl::StrCat("the checkpoint has no tensor ", missing_, more));
  }
  if (!wrong_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", wrong_, more));
  }
  if (!unsupported_.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("element type not supported (BF16, F16, F32 are): ", unsupported_, more));
  }
  std::string extra;
  int extras = 0;
  for (const TensorInfo& tensor : folder_.tensors()) {
    if (used_.contains(&tensor) || IsKnownBuffer(tensor.name)) continue;
    if (++extras <= kMaxErrors) Append(&extra, tensor.name);
  }
  if (extras > 0) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint has ", extras,
                                                   " tensors that this architecture does not know: ", extra,
                                                   extras > kMaxErrors ? " and more" : ""));
  }
  return std::move(map_);
}

absl::StatusOr<SourceMap> MapTensors(const ModelConfig& config, const TensorFolder& folder) {
  for (const FamilyTensors& family : kFamilies) {
    if (config.family != family.family) continue;
    TensorMapper mapper(folder);
    RETURN_IF_ERROR(family.map(config, &mapper));
    ASSIGN_OR_RETURN(SourceMap map, mapper.Finish());
    map.experts.resize(config.layers.size());
    return map;
  }
  return absl::UnimplementedError(absl::StrCat("tensor names of family ", config.family, " are not known"));
}

}  // namespace sluice
