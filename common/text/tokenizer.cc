// Tokenizer::Impl: the components of one tokenizer, private to tokenizer.cc.
//
// Thread safety: immutable once loaded; const methods may be called from any thread at once.

#include "common/text/tokenizer.h"

#include <array>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/text/added_tokens.h"
#include "common/text/bpe.h"
#include "common/text/decoder.h"
#include "common/text/normalizer.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/tokenizer_readers.h"
#include "common/text/tokenizer_spec.h"

namespace sluice {

// Buffers of one call of Encode.
struct EncodeScratch {
  explicit EncodeScratch(const EncodeOptions& options)
      : parse_special(options.parse_special), bpe(/*allow_special=*/options.parse_special) {}
  // Buffers of EncodeMarked.
  explicit EncodeScratch(const absl::flat_hash_set<int32_t>& control)
      : parse_special(false), control(&control), bpe(/*allow_special=*/false) {}
  const bool parse_special;
  const absl::flat_hash_set<int32_t>* const control = nullptr;  // null: the text has no marks
  RegexScratch regex;
  BpeScratch bpe;
};

struct Tokenizer::Impl {
  TokenizerSpec spec;
  std::unique_ptr<const Normalizer> normalizer;
  std::unique_ptr<const PreTokenizer> pre_tokenizer;
  std::unique_ptr<const BpeModel> bpe;  // refers to spec.vocabulary
  std::unique_ptr<const Decoder> decoder;
  AddedTokenMatcher raw_tokens;         // matched in the raw text
  AddedTokenMatcher normalized_tokens;  // matched in the normalized text between those
  absl::flat_hash_set<int32_t> special_ids;
  std::map<std::string, std::string> special_token_names;
  absl::flat_hash_map<int32_t, std::string> decoded_as;  // added tokens that normalizing changes

  // Fills the matchers and decoded_as. REQUIRES: spec and normalizer are set.
  absl::Status AddMatchers();

  // Appends the ids of `text`, well-formed UTF-8; `marks` is empty or has a byte per byte of it.
  absl::Status EncodeAll(std::string_view text, std::string_view marks, EncodeScratch* scratch,
                         std::vector<int32_t>* ids) const;

  // Appends the ids of `text`, which contains none of raw_tokens.
  absl::Status EncodeText(std::string_view text, std::string_view marks, bool starts_input,
                          EncodeScratch* scratch, std::vector<int32_t>* ids) const;

  static void SplitBy(const AddedTokenMatcher& matcher, std::string_view text, std::string_view marks,
                      const EncodeScratch& scratch, std::vector<TextSegment>* segments);

  // Returns the decoder's input for `id`; nullopt for none.
  std::optional<std::string_view> TextOf(int32_t id, bool skip_special) const;
};

namespace {

constexpr std::array<const char*, 7> kFileNames = {
    "tokenizer.json",        "tokenizer.model",         "vocab.json",       "merges.txt",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};
constexpr uint64_t kMaxFileBytes = 256 << 20;
constexpr size_t kMaxTextBytes = 1 << 30;  // positions within a text are 32-bit

// NOT_FOUND if there is no such file.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file.is_open()) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  }
  const auto size = static_cast<int64_t>(file.tellg());
  if (size < 0 || static_cast<uint64_t>(size) > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", size, " bytes, not a file of at most ", kMaxFileBytes));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(bytes.data(), size)) {
    return absl::DataLossError(absl::StrCat(path, ": ", size, " bytes expected, ", file.gcount(), " read"));
  }
  return bytes;
}

absl::Status CheckTextSize(std::string_view text) {
  return text.size() < kMaxTextBytes
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("text of ", text.size(), " bytes; less than ",
                                                       kMaxTextBytes, " are allowed"));
}

absl::StatusOr<TokenizerSpec> ParseFiles(const TokenizerFiles& files, const TokenizerConfig& config) {
  if (const auto json = files.find("tokenizer.json"); json != files.end()) {
    absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(json->second);
    return spec.ok() ? std::move(spec) : Annotate(spec.status(), "tokenizer.json");
  }
  if (const auto model = files.find("tokenizer.model"); model != files.end()) {
    absl::StatusOr<TokenizerSpec> spec = ParseSentencePieceModel(model->second, config);
    return spec.ok() ? std::move(spec) : Annotate(spec.status(), "tokenizer.model");
  }
  const auto vocab = files.find("vocab.json");
  const auto merges = files.find("merges.txt");
  if (vocab == files.end() || merges == files.end()) {
    return absl::NotFoundError("no tokenizer.json, no tokenizer.model and no vocab.json with merges.txt");
  }
  return ParseVocabAndMerges(vocab->second, merges->second, config);
}

}  // namespace

absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(const std::string& dir) {
  TokenizerFiles files;
  for (const char* name : kFileNames) {
    absl::StatusOr<std::string> bytes = ReadFile(absl::StrCat(dir, "/", name));
    if (bytes.ok()) {
      files.emplace(name, *std::move(bytes));
    } else if (!absl::IsNotFound(bytes.status())) {
      return bytes.status();
    }
  }
  const bool has_vocabulary = files.contains("tokenizer.json") || files.contains("tokenizer.model") ||
                              (files.contains("vocab.json") && files.contains("merges.txt"));
  if (!has_vocabulary) {
    return absl::NotFoundError(absl::StrCat(
        dir, ": no tokenizer.json, no tokenizer.model and no vocab.json with merges.txt can be read"));
  }
  return files;
}

absl::Status Tokenizer::Impl::AddMatchers() {
  RegexScratch scratch;
  for (const AddedToken& token : spec.added_tokens) {
    if (token.special) {
      special_ids.insert(token.id);
    }
    if (!token.normalized) {
      // Most added tokens are matched in the raw text, those marked `normalized` in the normalized text, by
      // their normalized form.
      RETURN_IF_ERROR(raw_tokens.Add(token.content, token));
      continue;
    }
    ASSIGN_OR_RETURN(std::string pattern, normalizer->Apply(token.content, &scratch));
    RETURN_IF_ERROR(normalized_tokens.Add(pattern, token));
    if (pattern != token.content) {
      decoded_as.emplace(token.id, std::move(pattern));
    }
  }
  return absl::OkStatus();
}

void Tokenizer::Impl::SplitBy(const AddedTokenMatcher& matcher, std::string_view text, std::string_view marks,
                              const EncodeScratch& scratch, std::vector<TextSegment>* segments) {
  if (scratch.control != nullptr) {
    matcher.SplitMarked(text, marks, *scratch.control, segments);
  } else {
    matcher.Split(text, scratch.parse_special, segments);
  }
}

absl::Status Tokenizer::Impl::EncodeAll(std::string_view text, std::string_view marks, EncodeScratch* scratch,
                                        std::vector<int32_t>* ids) const {
  std::vector<TextSegment> segments;
  SplitBy(raw_tokens, text, marks, *scratch, &segments);
  for (const TextSegment& segment : segments) {
    if (segment.token != TextSegment::kText) {
      ids->push_back(segment.token);
      continue;
    }
    const size_t begin = segment.range.begin;
    const size_t size = segment.range.end - begin;
    RETURN_IF_ERROR(EncodeText(text.substr(begin, size), marks.empty() ? marks : marks.substr(begin, size),
                               begin == 0, scratch, ids));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::EncodeText(std::string_view text, std::string_view marks, bool starts_input,
                                         EncodeScratch* scratch, std::vector<int32_t>* ids) const {
  std::string normal_marks(marks);
  ASSIGN_OR_RETURN(const std::string normal, normalizer->Apply(std::string(text), &scratch->regex,
                                                               marks.empty() ? nullptr : &normal_marks));
  std::vector<TextSegment> segments;
  SplitBy(normalized_tokens, normal, normal_marks, *scratch, &segments);
  for (const TextSegment& segment : segments) {
    if (segment.token != TextSegment::kText) {
      ids->push_back(segment.token);
      continue;
    }
    PreTokenizedText words;
    words.text = normal.substr(segment.range.begin, segment.range.end - segment.range.begin);
    words.pieces = {{0, words.text.size()}};
    words.starts_input = starts_input && segment.range.begin == 0;
    RETURN_IF_ERROR(pre_tokenizer->Apply(&words, &scratch->regex));
    for (const ByteRange& word : words.pieces) {
      bpe->Encode(std::string_view(words.text).substr(word.begin, word.end - word.begin), &scratch->bpe, ids);
    }
  }
  return absl::OkStatus();
}

std::optional<std::string_view> Tokenizer::Impl::TextOf(int32_t id, bool skip_special) const {
  if (skip_special && special_ids.contains(id)) {
    return std::nullopt;
  }
  const auto it = decoded_as.find(id);
  return it != decoded_as.end() ? std::optional<std::string_view>(it->second) : spec.vocabulary.TokenOf(id);
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& dir) {
  ASSIGN_OR_RETURN(const TokenizerFiles files, ReadTokenizerFiles(dir));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadFromFiles(files);
  return tokenizer.ok() ? std::move(tokenizer) : Annotate(tokenizer.status(), dir);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::LoadFromFiles(const TokenizerFiles& files) {
  auto impl = std::make_unique<Impl>();
  ASSIGN_OR_RETURN(const TokenizerConfig config, ParseTokenizerConfig(files));
  ASSIGN_OR_RETURN(impl->spec, ParseFiles(files, config));
  RETURN_IF_ERROR(ApplySpecialTokenRules(config, &impl->spec));
  impl->special_token_names = CollectSpecialTokenNames(config, impl->spec);
  ASSIGN_OR_RETURN(impl->normalizer, Normalizer::Create(impl->spec.normalizers));
  ASSIGN_OR_RETURN(impl->pre_tokenizer, PreTokenizer::Create(impl->spec.pre_tokenizers));
  ASSIGN_OR_RETURN(impl->decoder, Decoder::Create(impl->spec.decoders));
  RETURN_IF_ERROR(impl->AddMatchers());
  impl->bpe = BpeModel::Create(impl->spec.vocabulary, impl->spec.bpe, impl->special_ids);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       const EncodeOptions& options) const {
  RETURN_IF_ERROR(CheckTextSize(text));
  // Clients may send ill-formed UTF-8; each bad sequence becomes U+FFFD, as everywhere else.
  std::string repaired;
  if (!IsWellFormedUtf8(text)) {
    repaired = ReplaceIllFormedUtf8(text);
    text = repaired;
  }
  std::vector<int32_t> ids;
  if (options.add_special_tokens) {
    ids = impl_->spec.prefix;
  }
  EncodeScratch scratch(options);
  RETURN_IF_ERROR(impl_->EncodeAll(text, {}, &scratch, &ids));
  if (options.add_special_tokens) {
    ids.insert(ids.end(), impl_->spec.suffix.begin(), impl_->spec.suffix.end());
  }
  return ids;
}

// Tokens in the template's own text may be control tokens even if they are not marked special; the same text
// from a user must not become one. Blank tokens are text regardless of origin.
absl::flat_hash_set<int32_t> Tokenizer::ControlTokens(std::string_view template_source) const {
  absl::flat_hash_set<int32_t> control = impl_->special_ids;
  for (const AddedToken& token : impl_->spec.added_tokens) {
    const bool blank = token.content.find_first_not_of(" \t\r\n") == std::string::npos;
    if (!blank && template_source.find(token.content) != std::string_view::npos) {
      control.insert(token.id);
    }
  }
  return control;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeMarked(
    std::string_view text, std::string_view marks, const absl::flat_hash_set<int32_t>& control) const {
  RETURN_IF_ERROR(CheckTextSize(text));
  if (text.size() != marks.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a text of ", text.size(), " bytes with ", marks.size(), " marks"));
  }
  std::string well_formed(text);
  std::string its_marks(marks);
  TransformRuns(&well_formed, &its_marks, [](std::string_view run) { return ReplaceIllFormedUtf8(run); });
  std::vector<int32_t> ids;
  EncodeScratch scratch(control);
  RETURN_IF_ERROR(impl_->EncodeAll(well_formed, its_marks, &scratch, &ids));
  return ids;
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  DecodeRun run(*impl_->decoder, /*eager=*/false);
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", id, " is outside the vocabulary of ", vocab_size(), " ids"));
    }
    if (const std::optional<std::string_view> token = impl_->TextOf(id, skip_special); token.has_value()) {
      run.Push(*token, &text);
    }
  }
  run.Finish(&text);
  return text;
}

int32_t Tokenizer::vocab_size() const { return impl_->spec.vocabulary.end(); }
std::optional<int32_t> Tokenizer::bos_id() const { return impl_->spec.bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->spec.eos; }

const std::map<std::string, std::string>& Tokenizer::special_token_names() const {
  return impl_->special_token_names;
}

std::optional<std::string_view> Tokenizer::IdToToken(int32_t id) const {
  return impl_->spec.vocabulary.TokenOf(id);
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view token) const {
  return impl_->spec.vocabulary.Find(token);
}

std::string Tokenizer::TokenBytes(int32_t id) const {
  const std::optional<std::string_view> token = impl_->TextOf(id, /*skip_special=*/true);
  return token.has_value() ? impl_->decoder->BytesOf(*token) : "";
}

bool Tokenizer::is_special(int32_t id) const { return impl_->special_ids.contains(id); }

struct StreamDecoder::State {
  const Tokenizer::Impl* tokenizer;
  bool skip_special;
  DecodeRun run;
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : state_(new State{tokenizer.impl_.get(), skip_special,
                       DecodeRun(*tokenizer.impl_->decoder, /*eager=*/true)}) {}

StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::Push(int32_t id) {
  std::string text;
  if (const auto token = state_->tokenizer->TextOf(id, state_->skip_special); token.has_value()) {
    state_->run.Push(*token, &text);
  }
  return text;
}

std::string StreamDecoder::Flush() {
  std::string text;
  state_->run.Finish(&text);
  return text;
}

}  // namespace sluice
