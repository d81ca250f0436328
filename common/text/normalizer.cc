#include "common/text/normalizer.h"

#include "common/status.h"
#include "common/text/byte_alphabet.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

std::string Strip(const StripNormalizer& strip, std::string_view text) {
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
  return std::string(text.substr(begin, end - begin));
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

absl::StatusOr<std::string> Normalizer::Apply(std::string text, RegexScratch* scratch) const {
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<UnicodeForm>(&step.spec)) {
      text = Normalize(*form, text);
    } else if (const auto* prepend = std::get_if<PrependNormalizer>(&step.spec)) {
      if (!text.empty()) {
        text.insert(0, prepend->prefix);
      }
    } else if (const auto* replace = std::get_if<ReplaceNormalizer>(&step.spec)) {
      ASSIGN_OR_RETURN(text, step.pattern->ReplaceAll(text, replace->content, scratch));
    } else if (const auto* strip = std::get_if<StripNormalizer>(&step.spec)) {
      text = Strip(*strip, text);
    } else if (std::holds_alternative<LowercaseNormalizer>(step.spec)) {
      text = Lowercase(text);
    } else {
      std::string spelt;
      AppendByteAlphabet(text, &spelt);
      text = std::move(spelt);
    }
  }
  return text;
}

}  // namespace sluice
