#include "common/model/formats/layer_reads.h"

#include "common/half.h"
#include "common/model/formats/small_float.h"
#include "common/status.h"

namespace sluice {

absl::Status ReadLineBytes(const TensorFolder& folder, const TensorInfo& tensor, uint64_t line_bytes,
                           uint64_t line, uint64_t lines, uint64_t first, uint64_t count,
                           std::vector<uint8_t>* out) {
  out->resize(lines * count);
  const absl::Span<std::byte> bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(out->data()), out->size());
  if (count == line_bytes) return folder.Read(tensor, line * line_bytes, bytes);
  for (uint64_t i = 0; i < lines; ++i) {
    RETURN_IF_ERROR(folder.Read(tensor, (line + i) * line_bytes + first, bytes.subspan(i * count, count)));
  }
  return absl::OkStatus();
}

bool IsScaleType(ElementType type) {
  return type == ElementType::kBf16 || type == ElementType::kF16 || type == ElementType::kF32 ||
         type == ElementType::kF8E4m3 || type == ElementType::kU8;
}

absl::Status ReadScales(const TensorFolder& folder, const TensorInfo& tensor, uint64_t first, uint64_t count,
                        std::vector<float>* out) {
  const uint64_t width = ElementBytes(tensor.type);
  std::vector<uint8_t> raw(count * width);
  RETURN_IF_ERROR(folder.Read(tensor, first * width,
                              absl::MakeSpan(reinterpret_cast<std::byte*>(raw.data()), raw.size())));
  out->resize(count);
  for (uint64_t i = 0; i < count; ++i) {
    uint16_t half = 0;
    switch (tensor.type) {
      case ElementType::kF32:
        std::memcpy(&(*out)[i], raw.data() + 4 * i, 4);
        break;
      case ElementType::kBf16:
        std::memcpy(&half, raw.data() + 2 * i, 2);
        (*out)[i] = Bf16ToFloat(half);
        break;
      case ElementType::kF16:
        std::memcpy(&half, raw.data() + 2 * i, 2);
        (*out)[i] = F16ToFloat(half);
        break;
      case ElementType::kF8E4m3:
        (*out)[i] = E4m3ToFloat(raw[i]);
        break;
      case ElementType::kU8:
        (*out)[i] = E8m0ToFloat(raw[i]);
        break;
      default:
        return absl::InternalError(absl::StrCat(tensor.name, ": no type of scales"));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
