#include "common/text/decoder.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/text/unicode.h"

namespace sluice {
namespace {

bool IsOneCharacter(std::string_view text) { return !text.empty() && text.size() == Utf8Length(text[0]); }

std::string ReplaceEvery(std::string_view text, const std::string& what, const std::string& with) {
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, done)) {
    out.append(text.substr(done, at - done));
    out.append(with);
    done = at + what.size();
  }
  out.append(text.substr(done));
  return out;
}

// Returns the byte of a token "<0xHH>", or -1.
int ByteOfToken(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') {
    return -1;
  }
  uint32_t value = 0;
  const std::string digits(token.substr(3, 2));
  const bool both = absl::ascii_isxdigit(static_cast<unsigned char>(digits[0])) &&
                    absl::ascii_isxdigit(static_cast<unsigned char>(digits[1]));
  return both && absl::SimpleHexAtoi(digits, &value) ? static_cast<int>(value) : -1;
}

// Returns the token without up to `start` characters at the left and up to `stop` at the right.
std::string Stripped(std::string token, const StripDecoder& strip) {
  const std::string& content = strip.content;
  for (size_t i = 0; i < strip.start && token.compare(0, content.size(), content) == 0; ++i) {
    token.erase(0, content.size());
  }
  for (size_t i = 0; i < strip.stop && token.size() >= content.size() &&
                     token.compare(token.size() - content.size(), content.size(), content) == 0;
       ++i) {
    token.resize(token.size() - content.size());
  }
  return token;
}

// Moves the complete characters of `bytes` to *text; ill-formed parts become U+FFFD, one for each part or, if
// `per_byte`, one for each byte. The beginning of an unfinished character stays in `bytes`.
void TakeWholeCharacters(bool per_byte, std::string* bytes, std::string* text) {
  size_t position = 0;
  while (position < bytes->size()) {
    const std::string_view rest = std::string_view(*bytes).substr(position);
    const Utf8Char next = DecodeUtf8(rest);
    if (next.state == Utf8State::kIncomplete) {
      break;
    }
    if (next.state == Utf8State::kWhole) {
      text->append(rest.substr(0, next.length));
    } else {
      for (int i = 0; i < (per_byte ? next.length : 1); ++i) {
        text->append(kReplacementUtf8);
      }
    }
    position += next.length;
  }
  bytes->erase(0, position);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Decoder>> Decoder::Create(
    const std::optional<std::vector<DecoderSpec>>& specs) {
  auto decoder = std::make_unique<Decoder>();
  if (!specs.has_value()) {
    decoder->steps_.push_back({JoinWithSpaces(), false});
    return decoder;
  }
  // The decoders of a file run one after the other over the whole list of tokens; here they run on each token
  // as it arrives, so that responses can be streamed. Orders that would then give another text are refused.
  // `fused`: from here on the text is one token.
  bool fused = false;
  bool after_bytes = false;
  for (const DecoderSpec& spec : *specs) {
    if (const auto* replace = std::get_if<ReplaceDecoder>(&spec); replace != nullptr) {
      if (replace->pattern.is_regex || replace->pattern.text.empty()) {
        return absl::UnimplementedError("decoder Replace of a regex or an empty string is not supported");
      }
      if ((fused || after_bytes) && !IsOneCharacter(replace->pattern.text)) {
        return absl::UnimplementedError("decoder Replace of several characters behind Fuse is not supported");
      }
    }
    const bool splits_by_token =
        std::holds_alternative<StripDecoder>(spec) || std::holds_alternative<MetaspaceDecoder>(spec);
    if (splits_by_token && after_bytes && !fused) {
      return absl::UnimplementedError(
          "decoder Strip or Metaspace between ByteFallback and Fuse is not supported");
    }
    const bool repeats = fused && (std::holds_alternative<ByteLevelDecoder>(spec) ||
                                   std::holds_alternative<ByteFallbackDecoder>(spec) ||
                                   std::holds_alternative<MetaspaceDecoder>(spec));
    if (repeats) {
      return absl::UnimplementedError(
          "decoder ByteLevel, ByteFallback or Metaspace behind Fuse is not supported");
    }
    decoder->steps_.push_back({spec, fused});
    fused =
        fused || std::holds_alternative<FuseDecoder>(spec) || std::holds_alternative<ByteLevelDecoder>(spec);
    after_bytes = after_bytes || std::holds_alternative<ByteFallbackDecoder>(spec);
  }
  return decoder;
}

std::string Decoder::BytesOf(std::string_view token) const {
  std::string bytes(token);
  for (const Step& step : steps_) {
    const auto* spec = std::get_if<DecoderSpec>(&step.kind);
    if (spec == nullptr) {
      bytes.insert(0, " ");
    } else if (std::holds_alternative<ByteLevelDecoder>(*spec)) {
      const std::string spelt = std::move(bytes);
      bytes.clear();
      AppendBytesOfToken(spelt, &bytes);
    } else if (const auto* replace = std::get_if<ReplaceDecoder>(spec)) {
      bytes = ReplaceEvery(bytes, replace->pattern.text, replace->content);
    } else if (std::holds_alternative<ByteFallbackDecoder>(*spec)) {
      const int byte = ByteOfToken(bytes);
      bytes = byte < 0 ? bytes : std::string(1, static_cast<char>(byte));
    } else if (const auto* metaspace = std::get_if<MetaspaceDecoder>(spec)) {
      bytes = ReplaceEvery(bytes, metaspace->replacement, " ");
    } else if (const auto* strip = std::get_if<StripDecoder>(spec); strip != nullptr && !step.fused) {
      bytes = Stripped(std::move(bytes), *strip);  // after Fuse it changes only the ends of the text
    }
  }
  return bytes;
}

DecodeRun::DecodeRun(const Decoder& decoder, bool eager)
    : decoder_(&decoder), eager_(eager), states_(decoder.steps_.size()) {}

void DecodeRun::Push(std::string_view token, std::string* out) { Feed(0, token, out); }

void DecodeRun::Finish(std::string* out) {
  for (size_t i = 0; i < states_.size(); ++i) {
    const auto* spec = std::get_if<DecoderSpec>(&decoder_->steps_[i].kind);
    if (spec != nullptr && std::holds_alternative<ByteLevelDecoder>(*spec) && !states_[i].pending.empty()) {
      Feed(i + 1, kReplacementUtf8, out);
    } else if (spec != nullptr && std::holds_alternative<ByteFallbackDecoder>(*spec)) {
      FlushByteFallback(i, out);
    }
    states_[i] = State();
  }
}

void DecodeRun::Feed(size_t index, std::string_view token, std::string* out) {
  if (index == states_.size()) {
    out->append(token);
    return;
  }
  State& state = states_[index];
  const auto* spec = std::get_if<DecoderSpec>(&decoder_->steps_[index].kind);
  if (spec == nullptr) {
    Feed(index + 1, state.count++ == 0 ? std::string(token) : absl::StrCat(" ", std::string(token)), out);
  } else if (std::holds_alternative<ByteLevelDecoder>(*spec)) {
    FeedByteLevel(index, token, out);
  } else if (const auto* replace = std::get_if<ReplaceDecoder>(spec)) {
    Feed(index + 1, ReplaceEvery(token, replace->pattern.text, replace->content), out);
  } else if (std::holds_alternative<ByteFallbackDecoder>(*spec)) {
    FeedByteFallback(index, token, out);
  } else if (std::holds_alternative<FuseDecoder>(*spec)) {
    Feed(index + 1, token, out);
  } else if (const auto* strip = std::get_if<StripDecoder>(spec)) {
    FeedStrip(index, *strip, token, out);
  } else {
    const auto& metaspace = std::get<MetaspaceDecoder>(*spec);
    const bool drops = state.count++ == 0 && metaspace.prepend != PrependScheme::kNever;
    Feed(index + 1, ReplaceEvery(token, metaspace.replacement, drops ? "" : " "), out);
  }
}

void DecodeRun::FeedByteLevel(size_t index, std::string_view token, std::string* out) {
  State& state = states_[index];
  AppendBytesOfToken(token, &state.pending);
  std::string text;
  TakeWholeCharacters(/*per_byte=*/false, &state.pending, &text);
  if (!text.empty()) {
    Feed(index + 1, text, out);
  }
}

void DecodeRun::FeedByteFallback(size_t index, std::string_view token, std::string* out) {
  State& state = states_[index];
  const int byte = ByteOfToken(token);
  if (byte < 0) {
    FlushByteFallback(index, out);
    Feed(index + 1, token, out);
    return;
  }
  state.pending.push_back(static_cast<char>(byte));
  // A whole text is decoded as in the reference: a run of byte tokens is text if all of it is well-formed. A
  // stream cannot wait for the end of the run and emits each character as soon as it is complete.
  if (eager_) {
    std::string text;
    TakeWholeCharacters(/*per_byte=*/true, &state.pending, &text);
    if (!text.empty()) {
      Feed(index + 1, text, out);
    }
  }
}

void DecodeRun::FlushByteFallback(size_t index, std::string* out) {
  std::string& pending = states_[index].pending;
  if (pending.empty()) {
    return;
  }
  if (IsWellFormedUtf8(pending)) {
    Feed(index + 1, pending, out);
  } else {
    for (size_t i = 0; i < pending.size(); ++i) {
      Feed(index + 1, kReplacementUtf8, out);
    }
  }
  pending.clear();
}

// Drops up to `start` characters at the left and up to `stop` at the right, of each token or, after Fuse, of
// the whole text. In the latter case the last characters are known only at the end, so the last `stop`
// characters are held back.
void DecodeRun::FeedStrip(size_t index, const StripDecoder& strip, std::string_view token, std::string* out) {
  State& state = states_[index];
  if (!decoder_->steps_[index].fused) {
    state = State();
  }
  const std::string& content = strip.content;
  const auto begins = [&content](std::string_view text) { return text.substr(0, content.size()) == content; };
  while (!state.begun && state.count < strip.start && begins(token)) {
    token.remove_prefix(content.size());
    ++state.count;
  }
  if (token.empty()) {
    return;
  }
  state.begun = true;
  std::string text = std::move(state.pending);
  state.pending.clear();
  text.append(token);
  size_t keep = text.size();
  for (size_t i = 0; i < strip.stop && keep >= content.size() &&
                     text.compare(keep - content.size(), content.size(), content) == 0;
       ++i) {
    keep -= content.size();
  }
  if (decoder_->steps_[index].fused) {
    state.pending = text.substr(keep);
  }
  text.resize(keep);
  if (!text.empty()) {
    Feed(index + 1, text, out);
  }
}

}  // namespace sluice
