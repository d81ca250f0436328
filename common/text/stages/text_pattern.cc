#include "common/text/stages/text_pattern.h"

#include "common/status.h"

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

}  // namespace sluice
