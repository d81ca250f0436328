// Layers stored input-major: AWQ and GPTQ, four-bit codes in 32-bit words, a zero and a scale for each output
// and group of inputs. A line is one input's weights for all outputs.
//
// Private to common/model. Thread safety: immutable after construction.
#pragma once

#include <cstdint>

#include "common/model/formats/layers.h"

namespace sluice {

class InputMajorLayer final : public QuantizedLayer {
 public:
  struct Parts {
    bool awq = false;  // words hold eight outputs, interleaved; otherwise (GPTQ) eight inputs, in order
    const TensorInfo* codes = nullptr;     // I32: AWQ [inputs, outputs / 8], GPTQ [inputs / 8, outputs]
    const TensorInfo* zeros = nullptr;     // I32 [groups, outputs / 8]; null: 8 for all
    const TensorInfo* scales = nullptr;    // [groups, outputs]
    const TensorInfo* group_of = nullptr;  // I32 [inputs]; null: input / group
    uint64_t inputs = 0;
    uint64_t outputs = 0;
    uint64_t groups = 0;
    uint64_t group = 0;
    uint32_t zero_offset = 0;  // added to stored zeros
  };
  InputMajorLayer(const TensorFolder& folder, const Parts& parts) : folder_(folder), parts_(parts) {}
  absl::Status Read(const TensorRect& rect, absl::Span<float> out) const override;

 private:
  absl::Status ReadGroupsOf(const TensorRect& rect, std::vector<uint64_t>* groups) const;
  // Reads scales and zeros of one group for the rect's outputs.
  absl::Status ReadGroup(uint64_t group, const TensorRect& rect, std::vector<float>* scales,
                         std::vector<float>* zeros) const;
  // Reads the codes of input `line` for the rect's outputs; `words` caches the words that the next line
  // shares.
  absl::Status ReadCodes(uint64_t line, const TensorRect& rect, std::vector<uint8_t>* words,
                         uint64_t* words_line) const;
  uint32_t CodeOf(uint64_t line, uint64_t output, const TensorRect& rect,
                  const std::vector<uint8_t>& words) const;

  const TensorFolder& folder_;
  const Parts parts_;
};

}  // namespace sluice
