// What GGUF files call the pre-tokenizers of byte-level BPE, and the hub's patterns for them. A file keeps
// the name alone.
//
// Private to common/model/gguf. Thread safety: constants and a pure function.
#pragma once

#include <string_view>

namespace sluice {

struct GgufPreTokenizer {
  static constexpr int kMaxPatterns = 6;
  const char* patterns[kMaxPatterns] = {};  // each splits what the ones before left; null ends them
  bool nfc = false;                         // texts are normalized first
  bool ignore_merges = false;               // a piece that is a token is one, whatever the merges say
  bool add_bos = false;                     // unless the file says otherwise
};

// Null for a name that is not known.
const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name);

}  // namespace sluice
