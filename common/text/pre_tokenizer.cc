#include "common/text/pre_tokenizer.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/text/unicode.h"

namespace sluice {
namespace {

constexpr const char* kGpt2Regex =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// A part of a piece: either a match of the pattern, or the text between two matches.
struct Stretch {
  ByteRange range;
  bool is_match;
};

std::vector<Stretch> StretchesOf(const std::vector<ByteRange>& matches, size_t size) {
  std::vector<Stretch> stretches;
  stretches.reserve(2 * matches.size() + 1);
  size_t done = 0;
  for (const ByteRange& match : matches) {
    if (done != match.begin) {
      stretches.push_back({{done, match.begin}, false});
    }
    stretches.push_back({match, true});
    done = match.end;
  }
  if (done != size) {
    stretches.push_back({{done, size}, false});
  }
  return stretches;
}

template <typename Predicate>
std::vector<ByteRange> MatchesOf(std::string_view text, Predicate predicate) {
  std::vector<ByteRange> matches;
  for (size_t position = 0; position < text.size();) {
    const size_t begin = position;
    if (predicate(NextCodePoint(text, &position))) {
      matches.push_back({begin, position});
    }
  }
  return matches;
}

std::vector<ByteRange> Merged(std::vector<Stretch> stretches, SplitBehavior behavior) {
  // Merging with the next part equals merging with the previous one in reverse order.
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) {
    std::reverse(stretches.begin(), stretches.end());
  }
  std::vector<ByteRange> out;
  bool previous_match = false;
  for (const Stretch& stretch : stretches) {
    const bool joins = behavior == SplitBehavior::kContiguous ? stretch.is_match == previous_match
                                                              : stretch.is_match && !previous_match;
    if (joins && !out.empty()) {
      (backwards ? out.back().begin : out.back().end) = backwards ? stretch.range.begin : stretch.range.end;
    } else {
      out.push_back(stretch.range);
    }
    previous_match = stretch.is_match;
  }
  if (backwards) {
    std::reverse(out.begin(), out.end());
  }
  return out;
}

std::vector<ByteRange> Behave(std::vector<Stretch> stretches, SplitBehavior behavior) {
  if (behavior != SplitBehavior::kIsolated && behavior != SplitBehavior::kRemoved) {
    return Merged(std::move(stretches), behavior);
  }
  std::vector<ByteRange> out;
  out.reserve(stretches.size());
  for (const Stretch& stretch : stretches) {
    if (behavior == SplitBehavior::kIsolated || !stretch.is_match) {
      out.push_back(stretch.range);
    }
  }
  return out;
}

// Splits every piece by `cut`, which returns ranges relative to the piece.
template <typename Cut>
absl::Status CutPieces(PreTokenizedText* input, Cut cut) {
  std::vector<ByteRange> pieces;
  pieces.reserve(input->pieces.size() * 2);
  bool starts_input = false;
  for (const ByteRange& piece : input->pieces) {
    const std::string_view text = std::string_view(input->text).substr(piece.begin, piece.end - piece.begin);
    ASSIGN_OR_RETURN(const std::vector<ByteRange> parts, cut(text));
    for (const ByteRange& part : parts) {
      if (part.begin == part.end) {
        continue;
      }
      if (pieces.empty()) {
        starts_input = input->starts_input && &piece == input->pieces.data() && part.begin == 0;
      }
      pieces.push_back({piece.begin + part.begin, piece.begin + part.end});
    }
  }
  input->pieces = std::move(pieces);
  input->starts_input = starts_input;
  return absl::OkStatus();
}

absl::Status ApplySplit(const SplitPreTokenizer& split, const TextPattern& pattern, PreTokenizedText* input,
                        RegexScratch* scratch) {
  std::vector<ByteRange> matches;
  return CutPieces(input, [&](std::string_view text) -> absl::StatusOr<std::vector<ByteRange>> {
    RETURN_IF_ERROR(pattern.FindAll(text, scratch, &matches));
    std::vector<Stretch> stretches = StretchesOf(matches, text.size());
    if (split.invert) {
      for (Stretch& stretch : stretches) {
        stretch.is_match = !stretch.is_match;
      }
    }
    return Behave(std::move(stretches), split.behavior);
  });
}

template <typename Predicate>
absl::Status ApplyPredicate(Predicate predicate, SplitBehavior behavior, PreTokenizedText* input) {
  return CutPieces(input, [&](std::string_view text) -> absl::StatusOr<std::vector<ByteRange>> {
    return Behave(StretchesOf(MatchesOf(text, predicate), text.size()), behavior);
  });
}

// Implements \w+|[^\w\s]+ : runs of word characters and runs of others, without the spaces.
absl::Status ApplyWords(PreTokenizedText* input) {
  return CutPieces(input, [](std::string_view text) -> absl::StatusOr<std::vector<ByteRange>> {
    std::vector<ByteRange> out;
    int previous_kind = 0;
    for (size_t position = 0; position < text.size();) {
      const size_t begin = position;
      const char32_t c = NextCodePoint(text, &position);
      const int kind = IsWordChar(c) ? 1 : IsWhitespace(c) ? 0 : 2;
      if (kind != 0 && kind == previous_kind) {
        out.back().end = position;
      } else if (kind != 0) {
        out.push_back({begin, position});
      }
      previous_kind = kind;
    }
    return out;
  });
}

absl::Status ApplyByteLevel(const ByteLevelPreTokenizer& byte_level,
                            const std::optional<TextPattern>& pattern, PreTokenizedText* input,
                            RegexScratch* scratch) {
  PreTokenizedText output;
  output.starts_input = input->starts_input;
  output.text.reserve(input->text.size() + input->text.size() / 2);
  output.pieces.reserve(input->pieces.size());
  const auto add = [&output](std::string_view part) {
    const size_t begin = output.text.size();
    AppendByteAlphabet(part, &output.text);
    output.pieces.push_back({begin, output.text.size()});
  };
  std::string prefixed;
  std::vector<ByteRange> matches;
  for (const ByteRange& piece : input->pieces) {
    std::string_view text = std::string_view(input->text).substr(piece.begin, piece.end - piece.begin);
    // Every piece, not only the whole text, gets its missing space, as in the reference.
    if (byte_level.add_prefix_space && text[0] != ' ') {
      prefixed.assign(1, ' ').append(text);
      text = prefixed;
    }
    if (!pattern.has_value()) {
      add(text);
      continue;
    }
    RETURN_IF_ERROR(pattern->FindAll(text, scratch, &matches));
    for (const Stretch& stretch : StretchesOf(matches, text.size())) {
      if (stretch.range.begin != stretch.range.end) {
        add(text.substr(stretch.range.begin, stretch.range.end - stretch.range.begin));
      }
    }
  }
  *input = std::move(output);
  return absl::OkStatus();
}

void ReplaceSpaces(const MetaspacePreTokenizer& metaspace, PreTokenizedText* input) {
  PreTokenizedText output;
  output.starts_input = input->starts_input;
  output.text.reserve(input->text.size() + input->text.size() / 2);
  output.pieces.reserve(input->pieces.size());
  for (const ByteRange& piece : input->pieces) {
    const std::string_view text = std::string_view(input->text).substr(piece.begin, piece.end - piece.begin);
    const size_t begin = output.text.size();
    const bool is_first = input->starts_input && output.pieces.empty();
    // The first piece of the input starts it; a piece after a special token does not.
    const bool prepends = metaspace.prepend == PrependScheme::kAlways ||
                          (metaspace.prepend == PrependScheme::kFirst && is_first);
    const bool has_prefix =
        text[0] == ' ' || text.substr(0, metaspace.replacement.size()) == metaspace.replacement;
    if (prepends && !has_prefix) {
      output.text.append(metaspace.replacement);
    }
    for (const char c : text) {
      if (c == ' ') {
        output.text.append(metaspace.replacement);
      } else {
        output.text.push_back(c);
      }
    }
    output.pieces.push_back({begin, output.text.size()});
  }
  *input = std::move(output);
}

absl::Status ApplyMetaspace(const MetaspacePreTokenizer& metaspace, PreTokenizedText* input) {
  ReplaceSpaces(metaspace, input);
  if (!metaspace.split) {
    return absl::OkStatus();
  }
  size_t position = 0;
  const char32_t delimiter = NextCodePoint(metaspace.replacement, &position);
  return ApplyPredicate([delimiter](char32_t c) { return c == delimiter; }, SplitBehavior::kMergedWithNext,
                        input);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const PreTokenizer>> PreTokenizer::Create(
    const std::vector<PreTokenizerSpec>& specs) {
  auto pre_tokenizer = std::make_unique<PreTokenizer>();
  for (const PreTokenizerSpec& spec : specs) {
    Step step{spec, std::nullopt};
    if (const auto* split = std::get_if<SplitPreTokenizer>(&spec); split != nullptr) {
      ASSIGN_OR_RETURN(step.pattern, TextPattern::Create(split->pattern));
    }
    if (const auto* byte_level = std::get_if<ByteLevelPreTokenizer>(&spec);
        byte_level != nullptr && byte_level->use_regex) {
      ASSIGN_OR_RETURN(step.pattern, TextPattern::Create({kGpt2Regex, true}));
    }
    pre_tokenizer->steps_.push_back(std::move(step));
  }
  return pre_tokenizer;
}

absl::Status PreTokenizer::Apply(PreTokenizedText* input, RegexScratch* scratch) const {
  for (const Step& step : steps_) {
    if (const auto* byte_level = std::get_if<ByteLevelPreTokenizer>(&step.spec)) {
      RETURN_IF_ERROR(ApplyByteLevel(*byte_level, step.pattern, input, scratch));
    } else if (const auto* split = std::get_if<SplitPreTokenizer>(&step.spec)) {
      RETURN_IF_ERROR(ApplySplit(*split, *step.pattern, input, scratch));
    } else if (const auto* digits = std::get_if<DigitsPreTokenizer>(&step.spec)) {
      RETURN_IF_ERROR(ApplyPredicate(
          IsNumeric, digits->individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, input));
    } else if (const auto* punctuation = std::get_if<PunctuationPreTokenizer>(&step.spec)) {
      RETURN_IF_ERROR(ApplyPredicate(IsPunctuation, punctuation->behavior, input));
    } else if (const auto* whitespace = std::get_if<WhitespacePreTokenizer>(&step.spec)) {
      RETURN_IF_ERROR(whitespace->words ? ApplyWords(input)
                                        : ApplyPredicate(IsWhitespace, SplitBehavior::kRemoved, input));
    } else {
      RETURN_IF_ERROR(ApplyMetaspace(std::get<MetaspacePreTokenizer>(step.spec), input));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
