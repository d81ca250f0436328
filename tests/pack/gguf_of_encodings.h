// GGUF files of any block types, for tests of packs.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/encoding.h"
#include "common/model/gguf_blocks.h"
#include "tests/common/model/gguf/gguf_builder.h"

namespace sluice {

// A Mixtral of a layer for each encoding (64 plus GGUF's number of the type), in which gate and q have that
// type and up has the next one's; random blocks with small scales.
inline std::string GgufOfEncodings(absl::Span<const Encoding> encodings) {
  constexpr uint64_t kHidden = 256, kWidth = 256, kExperts = 2, kVocab = 8, kKvRows = 64;
  GgufBuilder builder;
  builder.Word("general.architecture", "llama");
  const auto count = static_cast<uint32_t>(encodings.size());
  for (const auto& [key, value] :
       {std::pair("block_count", count), std::pair("context_length", 16u),
        std::pair("embedding_length", uint32_t{kHidden}), std::pair("feed_forward_length", uint32_t{kWidth}),
        std::pair("attention.head_count", 4u), std::pair("attention.head_count_kv", 1u),
        std::pair("expert_count", uint32_t{kExperts}), std::pair("expert_used_count", 1u)}) {
    builder.U32(std::string("llama.") + key, value);
  }
  std::mt19937 random(3);
  const auto add = [&](const std::string& name, const std::vector<uint64_t>& dims, Encoding encoding) {
    const uint32_t id = encoding == Encoding::kF32 ? kGgufF32 : static_cast<uint32_t>(encoding) - 64;
    uint64_t values = 1;
    for (const uint64_t dim : dims) values *= dim;
    const GgufBlockFormat& format = *FindGgufFormat(id);
    std::string data(values / format.values * format.bytes, '\0');
    // Wherever the scale is, these bytes are a small number.
    for (char& byte : data) byte = static_cast<char>(0x10 | (random() & 7));
    builder.Tensor(name, dims, id, data);
  };
  add("token_embd.weight", {kHidden, kVocab}, blocks::kIq3S);
  add("output_norm.weight", {kHidden}, Encoding::kF32);
  for (uint32_t i = 0; i < count; ++i) {
    const std::string layer = absl::StrCat("blk.", i, ".");
    const Encoding type = encodings[i];
    add(layer + "attn_norm.weight", {kHidden}, Encoding::kF32);
    add(layer + "ffn_norm.weight", {kHidden}, Encoding::kF32);
    add(layer + "ffn_gate_inp.weight", {kHidden, kExperts}, Encoding::kF32);
    add(layer + "attn_q.weight", {kHidden, kHidden}, type);
    add(layer + "attn_k.weight", {kHidden, kKvRows}, type);
    add(layer + "attn_v.weight", {kHidden, kKvRows}, type);
    add(layer + "attn_output.weight", {kHidden, kHidden}, type);
    add(layer + "ffn_gate_exps.weight", {kHidden, kWidth, kExperts}, type);
    add(layer + "ffn_up_exps.weight", {kHidden, kWidth, kExperts}, encodings[(i + 1) % count]);
    add(layer + "ffn_down_exps.weight", {kWidth, kHidden, kExperts}, type);
    if (type == blocks::kNvfp4) {
      builder.Tensor(layer + "ffn_gate_exps.scale", {kExperts}, kGgufF32,
                     GgufBuilder::Bytes(0.3f) + GgufBuilder::Bytes(7.0f));
      builder.Tensor(layer + "attn_q.scale", {1}, kGgufF32, GgufBuilder::Bytes(1.7f));
    }
  }
  return builder.File();
}

}  // namespace sluice
