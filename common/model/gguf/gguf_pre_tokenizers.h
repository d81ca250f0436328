// Table of the pre-tokenizers of byte-level BPE: GGUF name -> the hub's patterns. A file holds only the name.
//
// Private to common/model. Thread safety: constants and a pure function.
#pragma once

#include <string_view>

namespace sluice {

struct GgufPreTokenizer {
  static constexpr int kMaxPatterns = 6;
  const char* patterns[kMaxPatterns] = {};  // each splits the pieces of the previous ones; null ends them
  bool nfc = false;                         // texts are normalized first
  bool ignore_merges = false;               // a piece that is a token stays one, regardless of the merges
  bool add_bos = false;                     // default; the file can override it
};

// Returns null for an unknown name.
const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name);

}  // namespace sluice
