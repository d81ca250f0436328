// Layers stored output-major: F8_E4M3 values with a scale per block, and four-bit codes in groups along a row
// (int4, MXFP4, NVFP4).
//
// Private to common/model. Thread safety: immutable after construction.
#pragma once

#include <cstdint>

#include "common/model/formats/layers.h"

namespace sluice {

// Codes are F8_E4M3 [rows, cols]; a value is its code times the scale of its block.
class Fp8BlockLayer final : public QuantizedLayer {
 public:
  struct Parts {
    const TensorInfo* codes = nullptr;
    const TensorInfo* scales = nullptr;  // [ceil(rows / block_rows), ceil(cols / block_cols)]
    uint64_t cols = 0;
    uint64_t block_rows = 0;
    uint64_t block_cols = 0;
  };
  Fp8BlockLayer(const TensorFolder& folder, const Parts& parts) : folder_(folder), parts_(parts) {}
  absl::Status Read(const TensorRect& rect, absl::Span<float> out) const override;

 private:
  const TensorFolder& folder_;
  const Parts parts_;
};

// Two codes a byte, the even column in the low half. A value is (values[code] - zero) times the scale of its
// group and of the layer.
class NibbleLayer final : public QuantizedLayer {
 public:
  struct Parts {
    const TensorInfo* codes = nullptr;   // `row_bytes` a row
    const TensorInfo* scales = nullptr;  // [rows, groups]
    const TensorInfo* zeros = nullptr;   // [ceil(rows / 8), groups] words of eight rows' zeros; null: none
    const TensorInfo* layer_scale = nullptr;  // one value; null: none
    bool divides = false;                     // true: divide by the layer's scale
    uint64_t row_bytes = 0;
    uint64_t groups = 0;
    uint64_t group = 0;             // values of a row that share a scale
    const float* values = nullptr;  // [16], by code; int4 codes are the values plus 8
  };
  NibbleLayer(const TensorFolder& folder, const Parts& parts) : folder_(folder), parts_(parts) {}
  absl::Status Read(const TensorRect& rect, absl::Span<float> out) const override;

 private:
  absl::Status ReadZeros(const TensorRect& rect, std::vector<float>* zeros) const;
  absl::StatusOr<float> LayerScale() const;

  const TensorFolder& folder_;
  const Parts parts_;
};

// Values of int4 codes.
inline constexpr float kInt4Values[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

}  // namespace sluice
