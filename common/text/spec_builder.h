// Steps that all readers of tokenizer files share: adding merges and added tokens to a TokenizerSpec, with
// checks.
//
// Thread safety: free functions, safe to call from any thread on different specs.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/text/stages/tokenizer_spec.h"

namespace sluice {

// Adds the merge of two tokens. InvalidArgument unless both and their concatenation are in the vocabulary.
absl::Status AddMerge(const std::string& left, const std::string& right, uint32_t rank, TokenizerSpec* spec);

// Adds the merge "left right", separated by one space.
absl::Status AddMergeLine(const std::string& line, uint32_t rank, TokenizerSpec* spec);

// Adds the token to the vocabulary, unless it is there with the same id, and to the added tokens, replacing
// an earlier one of the same content. InvalidArgument if id or content is already in use otherwise.
absl::Status AddAddedToken(AddedToken token, TokenizerSpec* spec);

}  // namespace sluice
