#include "common/model/small_float.h"

#include "common/base/vector_clones.h"

namespace sluice {

// Branch-free E4m3ToFloat, which compiles to vector code. Subnormal numbers are not made by a product of
// subnormal float32, because CPUs are slow on those.
SLUICE_VECTOR_CLONES
void ScaleE4m3(absl::Span<const uint8_t> codes, float scale, float* out) {
  const uint8_t* const from = codes.data();
  const size_t count = codes.size();
  for (size_t i = 0; i < count; ++i) {
    const int32_t code = from[i];
    const int32_t magnitude = code & 0x7f;
    const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
    const float normal = std::bit_cast<float>((magnitude << 20) + (120 << 23));
    const float finite = magnitude < 8 ? subnormal : normal;
    const float value = magnitude == 0x7f ? std::numeric_limits<float>::quiet_NaN() : finite;
    const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
    out[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign) * scale;
  }
}

}  // namespace sluice
