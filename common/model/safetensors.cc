#include "common/model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "common/status.h"
#include "common/strict_json.h"

namespace sluice {
namespace {

using nlohmann::json;

struct TypeRow {
  std::string_view name;
  ElementType type;
  uint32_t bytes;
};
constexpr TypeRow kTypes[] = {
    {"BF16", ElementType::kBf16, 2},      {"F16", ElementType::kF16, 2},
    {"F32", ElementType::kF32, 4},        {"F64", ElementType::kF64, 8},
    {"F8_E4M3", ElementType::kF8E4m3, 1}, {"F8_E5M2", ElementType::kF8E5m2, 1},
    {"I8", ElementType::kI8, 1},          {"U8", ElementType::kU8, 1},
    {"I16", ElementType::kI16, 2},        {"U16", ElementType::kU16, 2},
    {"I32", ElementType::kI32, 4},        {"U32", ElementType::kU32, 4},
    {"I64", ElementType::kI64, 8},        {"U64", ElementType::kU64, 8},
    {"BOOL", ElementType::kBool, 1},
};

const TypeRow* FindType(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

// Bounds a name from the file for error messages.
std::string TensorExcerpt(std::string_view name) {
  return JsonExcerpt(json(std::string(name.substr(0, 200))));
}

absl::Status BadTensor(const std::string& subject, std::string_view name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(subject, ": tensor ", TensorExcerpt(name), ": ", what));
}

// Returns the shape's product times `element_bytes`; nullopt if it exceeds 64 bits or the shape is not whole
// numbers.
std::optional<uint64_t> ShapeBytes(const json& shape, uint32_t element_bytes, std::vector<uint64_t>* out) {
  uint64_t bytes = element_bytes;
  bool overflow = false;
  bool empty = false;
  for (const json& dim : shape) {
    if (!dim.is_number_unsigned()) return std::nullopt;
    const uint64_t value = dim.get<uint64_t>();
    out->push_back(value);
    empty = empty || value == 0;
    overflow = overflow || __builtin_mul_overflow(bytes, value, &bytes);
  }
  if (overflow) return std::nullopt;
  return empty ? 0 : bytes;
}

absl::StatusOr<TensorInfo> ParseTensor(const std::string& name, const json& value, uint64_t data_start,
                                       uint64_t data_bytes, const std::string& subject) {
  const auto type_name = value.find("dtype");
  const auto shape = value.find("shape");
  const auto offsets = value.find("data_offsets");
  if (!value.is_object() || value.size() != 3 || type_name == value.end() || !type_name->is_string() ||
      shape == value.end() || !shape->is_array() || offsets == value.end() || !offsets->is_array()) {
    return BadTensor(subject, name, "needs exactly dtype, shape and data_offsets");
  }
  const TypeRow* type = FindType(type_name->get_ref<const std::string&>());
  if (type == nullptr) {
    return BadTensor(subject, name, absl::StrCat("unknown dtype ", JsonExcerpt(*type_name)));
  }
  if (shape->size() > kMaxTensorRank) {
    return BadTensor(subject, name, absl::StrCat("rank ", shape->size(), " is above ", kMaxTensorRank));
  }
  TensorInfo info;
  info.name = name;
  info.type = type->type;
  const std::optional<uint64_t> bytes = ShapeBytes(*shape, type->bytes, &info.shape);
  if (!bytes.has_value()) {
    return BadTensor(subject, name, "shape has a dimension that is no whole number, or overflows 64 bits");
  }
  if (offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return BadTensor(subject, name, "data_offsets must be two whole numbers");
  }
  const uint64_t begin = (*offsets)[0].get<uint64_t>();
  const uint64_t end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > data_bytes) {
    return BadTensor(subject, name,
                     absl::StrCat("data_offsets [", begin, ", ", end, "] outside the file's ", data_bytes,
                                  " bytes of data"));
  }
  if (end - begin != *bytes) {
    return BadTensor(subject, name,
                     absl::StrCat("data_offsets span ", end - begin, " bytes, but shape and ",
                                  std::string(type->name), " need ", *bytes));
  }
  info.offset = data_start + begin;
  info.bytes = *bytes;
  return info;
}

// The format requires that tensors fill the data without gaps or overlaps: unowned bytes could hide anything,
// and overlapping tensors mean a damaged or forged file.
absl::Status CheckContiguous(const std::vector<TensorInfo>& tensors, uint64_t data_start, uint64_t file_bytes,
                             const std::string& subject) {
  uint64_t position = data_start;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset != position) {
      return BadTensor(
          subject, tensor.name,
          absl::StrCat(tensor.offset < position ? "overlaps the tensor before: begins at byte "
                                                : "leaves a gap: begins at byte ",
                       tensor.offset - data_start, " of the data, expected ", position - data_start));
    }
    position += tensor.bytes;
  }
  if (position != file_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(subject, ": ", file_bytes - position, " bytes at the end belong to no tensor"));
  }
  return absl::OkStatus();
}

}  // namespace

const char* ElementTypeName(ElementType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.name.data();
  }
  return "?";
}

uint32_t ElementBytes(ElementType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.bytes;
  }
  return 0;
}

absl::StatusOr<uint64_t> SafetensorsHeaderBytes(absl::Span<const std::byte> first8, uint64_t file_bytes,
                                                const std::string& subject) {
  if (file_bytes < 8 || first8.size() < 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(subject, ": ", file_bytes, " bytes are no safetensors file"));
  }
  uint64_t length = 0;
  std::memcpy(&length, first8.data(), sizeof(length));
  if (length > kMaxSafetensorsHeader || length > file_bytes - 8) {
    return absl::InvalidArgumentError(absl::StrCat(subject, ": header length ", length, " is above ",
                                                   std::min(kMaxSafetensorsHeader, file_bytes - 8)));
  }
  return length;
}

absl::StatusOr<std::vector<TensorInfo>> ParseSafetensorsHeader(std::string_view header, uint64_t file_bytes,
                                                               const std::string& subject) {
  if (header.size() > kMaxSafetensorsHeader || file_bytes < 8 || header.size() > file_bytes - 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(subject, ": header of ", header.size(), " bytes does not fit a file of ", file_bytes));
  }
  ASSIGN_OR_RETURN(const json root, ParseStrictJson(header, subject, {.max_depth = 4}));
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(root, subject));
  const uint64_t data_start = 8 + header.size();
  std::vector<TensorInfo> tensors;
  tensors.reserve(root.size());
  for (const auto& [name, value] : object.value().items()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(JsonObject::Of(value, absl::StrCat(subject, ": __metadata__")).status());
      continue;
    }
    ASSIGN_OR_RETURN(TensorInfo info, ParseTensor(name, value, data_start, file_bytes - data_start, subject));
    tensors.push_back(std::move(info));
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  RETURN_IF_ERROR(CheckContiguous(tensors, data_start, file_bytes, subject));
  return tensors;
}

}  // namespace sluice
