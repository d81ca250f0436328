#include "cli/tokenizer_source.h"

#include "absl/strings/str_cat.h"
#include "common/pack/pack.h"
#include "common/status.h"

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

}  // namespace sluice::cli
