#include "common/text/stages/normalizer.h"

#include "common/status.h"
#include "common/text/unicode/byte_alphabet.h"
#include "common/text/unicode/marked_text.h"
#include "common/text/unicode/utf8.h"

namespace sluice {
namespace {

ByteRange StripRange(const StripNormalizer& strip, std::string_view text) {
  size_t begin = 0;
  while (strip.left && begin < text.size()) {
    size_t next = begin;
    if (!IsWhitespace(NextCodePoint(text, &next))) {
      break;
    }
    begin = next;
  }
  size_t end = text.size();
  if (strip.right) {
    end = begin;
    for (size_t position = begin; position < text.size();) {
      if (!IsWhitespace(NextCodePoint(text, &position))) {
        end = position;
      }
    }
  }
  return {begin, end};
}

// Applies `change` to the whole text or, with marks, to each run of equal marks: the output of a run has its
// mark.
template <typename Change>
void ChangeText(std::string* text, std::string* marks, Change change) {
  if (marks != nullptr) {
    TransformRuns(text, marks, change);
  } else {
    *text = change(*text);
  }
}

// Changes the marks as TextPattern::ReplaceAll() changes the text. A replacement is the client's as soon as
// one replaced byte was.
void ReplaceMarks(const std::vector<ByteRange>& matches, size_t content_size, std::string* marks) {
  std::string out;
  size_t done = 0;
  for (const ByteRange& match : matches) {
    out.append(*marks, done, match.begin - done);
    const bool clients = marks->substr(match.begin, match.end - match.begin).find('\1') != std::string::npos;
    out.append(content_size, clients ? '\1' : '\0');
    done = match.end;
  }
  out.append(*marks, done);
  *marks = std::move(out);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Normalizer>> Normalizer::Create(
    const std::vector<NormalizerSpec>& specs) {
  auto normalizer = std::make_unique<Normalizer>();
  for (const NormalizerSpec& spec : specs) {
    Step step{spec, std::nullopt};
    if (const auto* replace = std::get_if<ReplaceNormalizer>(&spec); replace != nullptr) {
      ASSIGN_OR_RETURN(step.pattern, TextPattern::Create(replace->pattern));
    }
    normalizer->steps_.push_back(std::move(step));
  }
  return normalizer;
}

absl::StatusOr<std::string> Normalizer::Apply(std::string text, RegexScratch* scratch,
                                              std::string* marks) const {
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<UnicodeForm>(&step.spec)) {
      ChangeText(&text, marks, [form](std::string_view run) { return Normalize(*form, run); });
    } else if (const auto* prepend = std::get_if<PrependNormalizer>(&step.spec)) {
      if (!text.empty()) {
        text.insert(0, prepend->prefix);
        if (marks != nullptr) {
          marks->insert(0, prepend->prefix.size(), '\0');
        }
      }
    } else if (const auto* replace = std::get_if<ReplaceNormalizer>(&step.spec)) {
      if (marks != nullptr) {
        std::vector<ByteRange> matches;
        RETURN_IF_ERROR(step.pattern->FindAll(text, scratch, &matches));
        ReplaceMarks(matches, replace->content.size(), marks);
      }
      ASSIGN_OR_RETURN(text, step.pattern->ReplaceAll(text, replace->content, scratch));
    } else if (const auto* strip = std::get_if<StripNormalizer>(&step.spec)) {
      const ByteRange kept = StripRange(*strip, text);
      text = text.substr(kept.begin, kept.end - kept.begin);
      if (marks != nullptr) {
        *marks = marks->substr(kept.begin, kept.end - kept.begin);
      }
    } else if (std::holds_alternative<LowercaseNormalizer>(step.spec)) {
      ChangeText(&text, marks, [](std::string_view run) { return Lowercase(run); });
    } else {
      ChangeText(&text, marks, [](std::string_view run) {
        std::string spelt;
        AppendByteAlphabet(run, &spelt);
        return spelt;
      });
    }
  }
  return text;
}

}  // namespace sluice
