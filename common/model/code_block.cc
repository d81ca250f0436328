#include "common/model/code_block.h"

#include <algorithm>

#include "common/half.h"
#include "common/row_traits.h"

namespace sluice {

namespace {

// The values of a group, which are its codes by one rule.
void DecodeGroup(const RowTraits& traits, bool is_iq4, float scale, float min, const uint8_t* codes,
                 float* out) {
  const auto zero = static_cast<float>(traits.zero);
  if (HasMins(traits.meta)) {
    for (uint32_t i = 0; i < traits.group; ++i) out[i] = scale * static_cast<float>(codes[i]) - min;
  } else if (is_iq4) {
    for (uint32_t i = 0; i < traits.group; ++i) {
      out[i] = scale * (static_cast<float>(kIq4Codes[codes[i]]) - zero);
    }
  } else {
    for (uint32_t i = 0; i < traits.group; ++i) out[i] = scale * (static_cast<float>(codes[i]) - zero);
  }
}

}  // namespace

uint32_t BlockValuesOf(Encoding encoding) {
  const RowTraits traits = TraitsOf(encoding);
  return uint32_t{traits.group} * std::max<uint32_t>(1, traits.super_group);
}

void DecodeCodeBlock(Encoding encoding, const CodeBlock& block, float* out) {
  const RowTraits traits = TraitsOf(encoding);
  const bool super = traits.super_group != 0;
  const bool is_iq4 = IsIq4(encoding);
  const float d = F16ToFloat(block.d);
  const float dmin = F16ToFloat(block.dmin);
  const uint32_t values = BlockValuesOf(encoding);
  for (uint32_t first = 0, g = 0; first < values; first += traits.group, ++g) {
    float scale = d;
    float min = dmin;
    if (super) {
      scale *= traits.meta == RowMeta::kSuperScale ? static_cast<float>(static_cast<int8_t>(block.scales[g]))
                                                   : static_cast<float>(block.scales[g]);
      min *= static_cast<float>(block.mins[g]);
    }
    DecodeGroup(traits, is_iq4, scale, min, block.codes + first, out + first);
  }
}

}  // namespace sluice
