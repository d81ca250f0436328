// Reader of tokenizer.model, with its own reader of the protobuf wire form.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/text/tokenizer_readers.h"
#include "common/text/tokenizer_spec.h"

namespace sluice {

// ProtoReader: iterates over the fields of one protobuf message in its wire form, without generated code.
//
// Thread safety: thread-compatible; a reader is used by one thread at a time.

struct ProtoField {
  uint32_t number = 0;
  uint64_t value = 0;      // varint, or the bits of a fixed32 or fixed64
  std::string_view bytes;  // length-delimited field; a view into the message
  enum class Kind { kVarint, kFixed, kBytes } kind = Kind::kVarint;

  float AsFloat() const;
};

class ProtoReader {
 public:
  // REQUIRES: `message` outlives the reader and the fields.
  explicit ProtoReader(std::string_view message) : message_(message) {}

  bool AtEnd() const { return position_ == message_.size(); }

  // Returns the next field. INVALID_ARGUMENT, naming the offset, if the message is truncated or ill-formed.
  absl::StatusOr<ProtoField> Next();

 private:
  absl::StatusOr<uint64_t> Varint();
  absl::StatusOr<uint64_t> Fixed(size_t size);

  std::string_view message_;
  size_t position_ = 0;
};

float ProtoField::AsFloat() const { return std::bit_cast<float>(static_cast<uint32_t>(value)); }

// Seven bits per byte, the lowest first; the top bit means that more follow. Ten bytes hold 64 bits, so a
// longer varint is damage.
absl::StatusOr<uint64_t> ProtoReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (AtEnd()) {
      return absl::InvalidArgumentError(absl::StrCat("cut off at byte ", position_));
    }
    const auto byte = static_cast<uint8_t>(message_[position_++]);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) {
      return value;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("varint longer than 10 bytes at byte ", position_));
}

absl::StatusOr<uint64_t> ProtoReader::Fixed(size_t size) {
  if (message_.size() - position_ < size) {
    return absl::InvalidArgumentError(absl::StrCat("cut off at byte ", position_));
  }
  uint64_t value = 0;
  std::memcpy(&value, message_.data() + position_, size);
  position_ += size;
  return value;
}

absl::StatusOr<ProtoField> ProtoReader::Next() {
  ASSIGN_OR_RETURN(const uint64_t tag, Varint());
  ProtoField field;
  if (tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF) {
    return absl::InvalidArgumentError(absl::StrCat("field number ", tag >> 3, " at byte ", position_));
  }
  field.number = static_cast<uint32_t>(tag >> 3);
  // Wire types: 0 varint, 1 and 5 fixed of 8 and 4 bytes, 2 length-delimited. Types 3 and 4, groups, are
  // obsolete and refused.
  switch (tag & 7) {
    case 0: {
      ASSIGN_OR_RETURN(field.value, Varint());
      return field;
    }
    case 1:
    case 5: {
      field.kind = ProtoField::Kind::kFixed;
      ASSIGN_OR_RETURN(field.value, Fixed((tag & 7) == 1 ? 8 : 4));
      return field;
    }
    case 2: {
      ASSIGN_OR_RETURN(const uint64_t size, Varint());
      if (size > message_.size() - position_) {
        return absl::InvalidArgumentError(
            absl::StrCat("field of ", size, " bytes at byte ", position_, " of ", message_.size()));
      }
      field.kind = ProtoField::Kind::kBytes;
      field.bytes = message_.substr(position_, size);
      position_ += size;
      return field;
    }
    default:
      return absl::InvalidArgumentError(absl::StrCat("wire type ", tag & 7, " at byte ", position_));
  }
}

namespace {

constexpr const char* kMetaspace = "\xE2\x96\x81";
// Bound of a piece: trained pieces have at most 16 characters by default, and all splits of a piece are
// looked up.
constexpr size_t kMaxPieceBytes = 256;

// Values of ModelProto.SentencePiece.Type.
enum PieceType : uint64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct Piece {
  std::string text;
  float score = 0;
  uint64_t type = kNormal;
};

// The parts of ModelProto that determine the encoding, with the defaults of sentencepiece_model.proto.
struct Model {
  std::vector<Piece> pieces;
  uint64_t model_type = 1;  // TrainerSpec 3: 1 unigram, 2 BPE
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  int32_t bos_id = 1;
  int32_t eos_id = 2;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  size_t charsmap_bytes = 0;
};

absl::Status ParsePiece(std::string_view message, Model* model) {
  Piece piece;
  ProtoReader reader(message);
  while (!reader.AtEnd()) {
    ASSIGN_OR_RETURN(const ProtoField field, reader.Next());
    if (field.number == 1 && field.kind == ProtoField::Kind::kBytes) {
      piece.text = std::string(field.bytes);
    } else if (field.number == 2 && field.kind == ProtoField::Kind::kFixed) {
      piece.score = field.AsFloat();
    } else if (field.number == 3 && field.kind == ProtoField::Kind::kVarint) {
      piece.type = field.value;
    }
  }
  if (piece.text.empty() || piece.text.size() > kMaxPieceBytes || !IsWellFormedUtf8(piece.text) ||
      !std::isfinite(piece.score)) {
    return absl::InvalidArgumentError(absl::StrCat("piece ", model->pieces.size(), " of ", piece.text.size(),
                                                   " bytes is empty, longer than ", kMaxPieceBytes,
                                                   ", not UTF-8 or has no finite score"));
  }
  model->pieces.push_back(std::move(piece));
  return absl::OkStatus();
}

absl::Status ParseTrainerSpec(std::string_view message, Model* model) {
  ProtoReader reader(message);
  while (!reader.AtEnd()) {
    ASSIGN_OR_RETURN(const ProtoField field, reader.Next());
    if (field.kind != ProtoField::Kind::kVarint) {
      continue;
    }
    switch (field.number) {
      case 3:
        model->model_type = field.value;
        break;
      case 24:
        model->whitespace_as_suffix = field.value != 0;
        break;
      case 35:
        model->byte_fallback = field.value != 0;
        break;
      case 41:
        model->bos_id = static_cast<int32_t>(field.value);
        break;
      case 42:
        model->eos_id = static_cast<int32_t>(field.value);
        break;
      default:
        break;
    }
  }
  return absl::OkStatus();
}

absl::Status ParseNormalizerSpec(std::string_view message, Model* model) {
  ProtoReader reader(message);
  while (!reader.AtEnd()) {
    ASSIGN_OR_RETURN(const ProtoField field, reader.Next());
    if (field.number == 2 && field.kind == ProtoField::Kind::kBytes) {
      model->charsmap_bytes = field.bytes.size();
    } else if (field.number == 3 && field.kind == ProtoField::Kind::kVarint) {
      model->add_dummy_prefix = field.value != 0;
    } else if (field.number == 4 && field.kind == ProtoField::Kind::kVarint) {
      model->remove_extra_whitespaces = field.value != 0;
    } else if (field.number == 5 && field.kind == ProtoField::Kind::kVarint) {
      model->escape_whitespaces = field.value != 0;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Model> ParseModelProto(std::string_view bytes) {
  Model model;
  ProtoReader reader(bytes);
  while (!reader.AtEnd()) {
    ASSIGN_OR_RETURN(const ProtoField field, reader.Next());
    if (field.kind != ProtoField::Kind::kBytes) {
      continue;
    }
    if (field.number == 1) {
      RETURN_IF_ERROR(Annotate(ParsePiece(field.bytes, &model), "piece"));
    } else if (field.number == 2) {
      RETURN_IF_ERROR(Annotate(ParseTrainerSpec(field.bytes, &model), "trainer_spec"));
    } else if (field.number == 3) {
      RETURN_IF_ERROR(Annotate(ParseNormalizerSpec(field.bytes, &model), "normalizer_spec"));
    }
  }
  return model;
}

// Refuses options that would change the text before it is split instead of ignoring them: tokens that differ
// from the training's degrade a model without any error.
absl::Status CheckIsSupported(const Model& model) {
  if (model.pieces.empty()) {
    return absl::InvalidArgumentError("no pieces");
  }
  if (model.model_type != 2) {
    return absl::UnimplementedError(
        absl::StrCat("SentencePiece model type ", model.model_type, " is not supported (2, BPE, is)"));
  }
  if (model.charsmap_bytes != 0) {
    return absl::UnimplementedError(absl::StrCat("SentencePiece normalizer with a character map (",
                                                 model.charsmap_bytes, " bytes) is not supported"));
  }
  if (model.remove_extra_whitespaces || !model.escape_whitespaces || model.whitespace_as_suffix) {
    return absl::UnimplementedError(
        "SentencePiece options remove_extra_whitespaces, treat_whitespace_as_suffix and unescaped whitespace "
        "are not supported");
  }
  return absl::OkStatus();
}

absl::Status AddPieces(const Model& model, TokenizerSpec* spec) {
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    RETURN_IF_ERROR(spec->vocabulary.Add(piece.text, id));
    if (piece.type == kNormal || piece.type == kByte) {
      continue;
    }
    if (piece.type != kUnknown && piece.type != kControl && piece.type != kUserDefined) {
      return absl::UnimplementedError(absl::StrCat("SentencePiece piece ", i, " of type ", piece.type,
                                                   piece.type == kUnused ? " (unused)" : "",
                                                   " is not supported"));
    }
    AddedToken token;
    token.id = id;
    token.content = piece.text;
    token.special = piece.type != kUserDefined;
    RETURN_IF_ERROR(AddAddedToken(std::move(token), spec));
    if (piece.type == kUnknown) {
      spec->bpe.unknown = id;
    }
  }
  return absl::OkStatus();
}

// SentencePiece merges the neighbours whose concatenation has the best score, the leftmost of equal ones. So
// every split of a piece into two is a merge, ranked by the piece's score; equal scores have equal rank.
void AddMerges(const Model& model, TokenizerSpec* spec) {
  std::vector<int32_t> by_score;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].type == kNormal) {
      by_score.push_back(static_cast<int32_t>(i));
    }
  }
  const auto score = [&model](int32_t id) { return model.pieces[static_cast<size_t>(id)].score; };
  std::stable_sort(by_score.begin(), by_score.end(),
                   [&score](int32_t a, int32_t b) { return score(a) > score(b); });
  const auto find_normal = [&](std::string_view text) -> std::optional<int32_t> {
    const std::optional<int32_t> id = spec->vocabulary.Find(text);
    return id.has_value() && model.pieces[static_cast<size_t>(*id)].type == kNormal ? id : std::nullopt;
  };
  uint32_t rank = 0;
  for (size_t i = 0; i < by_score.size(); ++i) {
    if (i > 0 && score(by_score[i]) != score(by_score[i - 1])) {
      ++rank;
    }
    const std::string_view text = model.pieces[static_cast<size_t>(by_score[i])].text;
    for (size_t cut = Utf8Length(text[0]); cut < text.size(); cut += Utf8Length(text[cut])) {
      const std::optional<int32_t> left = find_normal(text.substr(0, cut));
      const std::optional<int32_t> right = find_normal(text.substr(cut));
      if (left.has_value() && right.has_value()) {
        spec->bpe.merges.push_back({*left, *right, by_score[i], rank});
      }
    }
  }
}

// Follows transformers' conversion: the legacy form prepends the space to every part of the text between
// special tokens, the newer form only to the first.
void AddPipeline(const Model& model, const TokenizerConfig& config, TokenizerSpec* spec) {
  if (!model.add_dummy_prefix) {
    spec->normalizers.emplace_back(ReplaceNormalizer{{" ", false}, kMetaspace});
  } else if (config.legacy.value_or(true)) {
    spec->normalizers.emplace_back(PrependNormalizer{kMetaspace});
    spec->normalizers.emplace_back(ReplaceNormalizer{{" ", false}, kMetaspace});
  } else {
    spec->pre_tokenizers.emplace_back(
        MetaspacePreTokenizer{kMetaspace, PrependScheme::kFirst, /*split=*/false});
  }
  spec->decoders = {ReplaceDecoder{{kMetaspace, false}, " "}, ByteFallbackDecoder(), FuseDecoder()};
  if (model.add_dummy_prefix) {
    spec->decoders->push_back(StripDecoder{" ", 1, 0});
  }
}

bool IsControl(const Model& model, int32_t id) {
  return id >= 0 && static_cast<size_t>(id) < model.pieces.size() &&
         model.pieces[static_cast<size_t>(id)].type == kControl;
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseSentencePieceModel(std::string_view bytes, const TokenizerConfig& config) {
  ASSIGN_OR_RETURN(const Model model, ParseModelProto(bytes));
  RETURN_IF_ERROR(CheckIsSupported(model));
  TokenizerSpec spec;
  RETURN_IF_ERROR(AddPieces(model, &spec));
  AddMerges(model, &spec);
  AddPipeline(model, config, &spec);
  spec.bpe.byte_fallback = model.byte_fallback;
  spec.bpe.fuse_unknown = true;
  if (IsControl(model, model.bos_id)) {
    spec.bos = model.bos_id;
    spec.prefix.push_back(model.bos_id);
  }
  if (IsControl(model, model.eos_id)) {
    spec.eos = model.eos_id;
  }
  RETURN_IF_ERROR(ApplyAddedTokens(config, &spec));
  return spec;
}

}  // namespace sluice
