#include "common/model/code_block.h"

#include <algorithm>

#include "common/half.h"
#include "common/row_traits.h"
#include "common/vector_clones.h"

namespace sluice {

namespace {

// Decodes the values of one group; its codes all follow the same rule.
SLUICE_ALWAYS_INLINE void DecodeGroup(const RowTraits& traits, bool is_iq4, float scale, float min,
                                      const uint8_t* codes, float* out) {
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

SLUICE_VECTOR_CLONES
void DecodeGroups(const RowTraits& traits, bool is_iq4, const CodeBlock& block, float* out) {
  const float d = F16ToFloat(block.d);
  const float dmin = F16ToFloat(block.dmin);
  const uint32_t groups = std::max<uint32_t>(1, traits.super_group);
  for (uint32_t g = 0, first = 0; g < groups; ++g, first += traits.group) {
    float scale = d;
    float min = dmin;
    if (traits.super_group != 0) {
      scale *= traits.meta == RowMeta::kSuperScale ? static_cast<float>(static_cast<int8_t>(block.scales[g]))
                                                   : static_cast<float>(block.scales[g]);
      min *= static_cast<float>(block.mins[g]);
    }
    DecodeGroup(traits, is_iq4, scale, min, block.codes + first, out + first);
  }
}

}  // namespace

uint32_t ValuesPerBlock(Encoding encoding) {
  const RowTraits traits = TraitsOf(encoding);
  return uint32_t{traits.group} * std::max<uint32_t>(1, traits.super_group);
}

void DecodeCodeBlock(Encoding encoding, const CodeBlock& block, float* out) {
  DecodeGroups(TraitsOf(encoding), IsIq4(encoding), block, out);
}

}  // namespace sluice
