// TokenizerDocument: tokenizer.json as a tree, without its two big members, model.vocab and model.merges:
// they are read as a stream, because a tree of several hundred thousand nodes would be the largest part of
// the load time.
//
// Thread safety: plain values and a free function, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/json_fields.h"

namespace sluice {

struct TokenizerDocument {
  Json tree;  // an object
  std::vector<std::pair<std::string, int64_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // in the file's order, which is their rank
  bool has_vocab = false;                                   // true if both members exist, as object and list
  bool has_merges = false;
};

// InvalidArgument if `bytes` is not a well-formed JSON object, is nested deeper than 64, or if an id or a
// merge (two tokens, as a list or separated by a space) is malformed.
absl::StatusOr<TokenizerDocument> ParseTokenizerDocument(const std::string& bytes);

}  // namespace sluice
