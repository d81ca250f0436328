// The tokenizer of synthetic packs: one token a byte, BOS and EOS, so that any text is a prompt.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace sluice {

// Ids 0..255 are the bytes, in order.
inline constexpr int32_t kSynthBosId = 256;
inline constexpr int32_t kSynthEosId = 257;
inline constexpr uint32_t kSynthTokenizerIds = 258;

// tokenizer.json (byte-level BPE without merges) and tokenizer_config.json.
std::map<std::string, std::string> SynthTokenizerFiles();

}  // namespace sluice
