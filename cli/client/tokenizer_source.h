// Where a command's tokenizer comes from: a pack, or a Hugging Face folder.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/ui/args.h"
#include "common/text/tokenizer.h"

namespace sluice::cli {

struct TokenizerSource {
  std::string pack;
  std::string dir;

  // Adds `--pack` and `--tokenizer`; exactly one must be given (see GivenOnce).
  void Declare(ArgParser* parser);
  bool GivenOnce() const { return pack.empty() != dir.empty(); }
};

// FailedPrecondition if the pack has no tokenizer.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const TokenizerSource& source);

// The first `max_tokens` tokens of a text file by the pack's tokenizer: taken as bytes, without BOS or EOS,
// special tokens as text. InvalidArgument if there is none.
absl::StatusOr<std::vector<int32_t>> EncodeTextFile(const std::string& pack, const std::string& path,
                                                    uint64_t max_tokens);

}  // namespace sluice::cli
