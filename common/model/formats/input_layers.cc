#include "common/model/formats/input_layers.h"

#include "common/model/formats/layer_reads.h"
#include "common/status.h"

namespace sluice {
namespace {

constexpr uint64_t kPerWord = 8;
constexpr uint64_t kNoLine = ~uint64_t{0};
constexpr float kMiddle = 8;  // the zero of symmetric layers
// AWQ: nibble of a word that holds output k of its eight (nibble i holds output 0, 2, 4, 6, 1, 3, 5, 7 [i]).
constexpr uint32_t kAwqNibble[kPerWord] = {0, 4, 1, 5, 2, 6, 3, 7};

// Returns nibble `n` of the word at `bytes`.
uint32_t Nibble(const uint8_t* bytes, uint32_t n) {
  return n % 2 == 0 ? bytes[n / 2] & 15u : bytes[n / 2] >> 4;
}

}  // namespace

absl::Status InputMajorLayer::ReadGroupsOf(const TensorRect& rect, std::vector<uint64_t>* groups) const {
  groups->resize(rect.lines);
  std::vector<uint8_t> raw;
  if (parts_.group_of != nullptr) {
    RETURN_IF_ERROR(ReadLineBytes(folder_, *parts_.group_of, 4 * parts_.inputs, 0, 1, 4 * rect.line,
                                  4 * rect.lines, &raw));
  }
  for (uint64_t i = 0; i < rect.lines; ++i) {
    int32_t group = 0;
    if (parts_.group_of == nullptr) {
      (*groups)[i] = (rect.line + i) / parts_.group;
      continue;
    }
    std::memcpy(&group, raw.data() + 4 * i, 4);
    if (group < 0 || static_cast<uint64_t>(group) >= parts_.groups) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", parts_.group_of->name, " holds ", group,
                                                     " at [", rect.line + i, "]; there are ", parts_.groups,
                                                     " groups"));
    }
    (*groups)[i] = static_cast<uint64_t>(group);
  }
  return absl::OkStatus();
}

absl::Status InputMajorLayer::ReadGroup(uint64_t group, const TensorRect& rect, std::vector<float>* scales,
                                        std::vector<float>* zeros) const {
  RETURN_IF_ERROR(
      ReadScales(folder_, *parts_.scales, group * parts_.outputs + rect.column, rect.columns, scales));
  zeros->assign(rect.columns, kMiddle);
  if (parts_.zeros == nullptr) return absl::OkStatus();
  const uint64_t first_word = rect.column / kPerWord;
  const uint64_t words = (rect.column + rect.columns + kPerWord - 1) / kPerWord - first_word;
  std::vector<uint8_t> raw;
  RETURN_IF_ERROR(
      ReadLineBytes(folder_, *parts_.zeros, parts_.outputs / 2, group, 1, 4 * first_word, 4 * words, &raw));
  for (uint64_t c = 0; c < rect.columns; ++c) {
    const uint64_t output = rect.column + c;
    const uint32_t in_word = static_cast<uint32_t>(output % kPerWord);
    const uint32_t stored =
        Nibble(raw.data() + 4 * (output / kPerWord - first_word), parts_.awq ? kAwqNibble[in_word] : in_word);
    (*zeros)[c] = static_cast<float>(stored + parts_.zero_offset);
  }
  return absl::OkStatus();
}

absl::Status InputMajorLayer::ReadCodes(uint64_t line, const TensorRect& rect, std::vector<uint8_t>* words,
                                        uint64_t* words_line) const {
  const uint64_t stored = parts_.awq ? line : line / kPerWord;
  if (stored == *words_line) return absl::OkStatus();
  *words_line = stored;
  const uint64_t line_words = parts_.awq ? parts_.outputs / kPerWord : parts_.outputs;
  const uint64_t first = parts_.awq ? rect.column / kPerWord : rect.column;
  const uint64_t count =
      parts_.awq ? (rect.column + rect.columns + kPerWord - 1) / kPerWord - first : rect.columns;
  return ReadLineBytes(folder_, *parts_.codes, 4 * line_words, stored, 1, 4 * first, 4 * count, words);
}

uint32_t InputMajorLayer::CodeOf(uint64_t line, uint64_t output, const TensorRect& rect,
                                 const std::vector<uint8_t>& words) const {
  if (parts_.awq) {
    return Nibble(words.data() + 4 * (output / kPerWord - rect.column / kPerWord),
                  kAwqNibble[output % kPerWord]);
  }
  return Nibble(words.data() + 4 * (output - rect.column), static_cast<uint32_t>(line % kPerWord));
}

absl::Status InputMajorLayer::Read(const TensorRect& rect, absl::Span<float> out) const {
  std::vector<uint64_t> groups;
  RETURN_IF_ERROR(ReadGroupsOf(rect, &groups));
  std::vector<float> scales;
  std::vector<float> zeros;
  std::vector<uint8_t> words;
  uint64_t words_line = kNoLine;
  for (uint64_t i = 0; i < rect.lines; ++i) {
    if (i == 0 || groups[i] != groups[i - 1]) RETURN_IF_ERROR(ReadGroup(groups[i], rect, &scales, &zeros));
    RETURN_IF_ERROR(ReadCodes(rect.line + i, rect, &words, &words_line));
    float* const to = out.data() + i * rect.columns;
    for (uint64_t c = 0; c < rect.columns; ++c) {
      const uint32_t code = CodeOf(rect.line + i, rect.column + c, rect, words);
      to[c] = (static_cast<float>(code) - zeros[c]) * scales[c];
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
