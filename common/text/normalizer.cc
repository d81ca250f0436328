#include "common/text/normalizer.h"

#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/text/unicode.h"

namespace sluice {

absl::StatusOr<TextPattern> TextPattern::Create(const PatternSpec& spec) {
  TextPattern pattern;
  if (spec.is_regex) {
    ASSIGN_OR_RETURN(pattern.regex_, Regex::Compile(spec.text));
  } else if (spec.text.empty()) {
    return absl::UnimplementedError("an empty string as pattern is not supported");
  } else {
    pattern.literal_ = spec.text;
  }
  return pattern;
}

absl::Status TextPattern::FindAll(std::string_view text, RegexScratch* scratch,
                                  std::vector<ByteRange>* matches) const {
  if (regex_ != nullptr) {
    return regex_->FindAll(text, scratch, matches);
  }
  matches->clear();
  for (size_t at = text.find(literal_); at != std::string_view::npos;
       at = text.find(literal_, at + literal_.size())) {
    matches->push_back({at, at + literal_.size()});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TextPattern::ReplaceAll(std::string_view text, const std::string& content,
                                                    RegexScratch* scratch) const {
  std::vector<ByteRange> matches;
  RETURN_IF_ERROR(FindAll(text, scratch, &matches));
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (const ByteRange& match : matches) {
    out.append(text.substr(done, match.begin - done));
    out.append(content);
    done = match.end;
  }
  out.append(text.substr(done));
  return out;
}

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
