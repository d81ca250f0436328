#include "cli/client/tokenizer_source.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/ui/command.h"
#include "common/status.h"
#include "pack/pack.h"

namespace sluice::cli {

void TokenizerSource::Declare(ArgParser* parser) {
  parser->Text("--pack", &pack, "PACK: takes the pack's tokenizer")
      .Text("--tokenizer", &dir, "DIR: takes the tokenizer files of a Hugging Face folder");
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const TokenizerSource& source) {
  if (!source.dir.empty()) {
    return Tokenizer::Load(source.dir);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(source.pack));
  ASSIGN_OR_RETURN(const TokenizerFiles files, pack->ReadTokenizerFiles());
  if (files.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(source.pack, ": the model came without a tokenizer"));
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::LoadFromFiles(files);
  if (!tokenizer.ok()) {
    return Annotate(tokenizer.status(), source.pack);
  }
  return tokenizer;
}

absl::StatusOr<std::vector<int32_t>> EncodeTextFile(const std::string& pack, const std::string& path,
                                                    uint64_t max_tokens) {
  TokenizerSource source;
  source.pack = pack;
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(source));
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  EncodeOptions encode;
  encode.add_special_tokens = false;
  encode.parse_special = false;
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer->Encode(text, encode));
  tokens.resize(std::min<uint64_t>(tokens.size(), max_tokens));
  if (tokens.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the text is empty"));
  }
  return tokens;
}

}  // namespace sluice::cli
