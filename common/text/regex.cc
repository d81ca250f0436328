#include "common/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"

namespace sluice {
namespace {

// Published pre-tokenizer patterns have at most a few kilobytes (DeepSeek's letter ranges).
constexpr size_t kMaxPatternBytes = 64 << 10;
// Stack for the backtracking positions of one match; only its touched part is ever mapped.
constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackLimit = 16 << 20;
// Backtracks within one match: a match over a 1 MB run of one class needs about one per character.
constexpr uint32_t kMatchLimit = 50'000'000;

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct RegexScratch::Handles {
  // One pair is enough: patterns are compiled without captures.
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr);

  Handles() {
    if (context != nullptr) {
      pcre2_set_match_limit(context, kMatchLimit);
      if (stack != nullptr) {
        pcre2_jit_stack_assign(context, nullptr, stack);
      }
    }
  }
  ~Handles() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

RegexScratch::RegexScratch() = default;
RegexScratch::~RegexScratch() = default;

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
Regex::~Regex() = default;

absl::StatusOr<std::unique_ptr<const Regex>> Regex::Compile(const std::string& pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("regex of ", pattern.size(), " bytes is longer than ", kMaxPatternBytes));
  }
  absl::StatusOr<std::string> translated = TranslateRegex(pattern);
  if (!translated.ok()) {
    return Annotate(translated.status(), absl::StrCat("regex ", pattern));
  }
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (context == nullptr) {
    return absl::ResourceExhaustedError("no memory to compile a regex");
  }
  // Patterns are written for Oniguruma, in which only a line feed ends a line, whatever this library's build
  // default is.
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_unique<Compiled>();
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                                 &offset, context);
  pcre2_compile_context_free(context);
  if (compiled->code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("regex ", pattern, ": ", ErrorText(error), " at byte ", offset, " of its PCRE2 form"));
  }
  // Without the JIT (no executable memory) pcre2_match interprets the same pattern.
  static_cast<void>(pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE));
  return std::unique_ptr<const Regex>(new Regex(std::move(compiled)));
}

absl::Status Regex::FindAll(std::string_view text, RegexScratch* scratch,
                            std::vector<ByteRange>* matches) const {
  matches->clear();
  if (scratch->handles_ == nullptr) {
    scratch->handles_ = std::make_unique<RegexScratch::Handles>();
  }
  const RegexScratch::Handles& handles = *scratch->handles_;
  if (handles.data == nullptr || handles.context == nullptr) {
    return absl::ResourceExhaustedError("no memory to run a regex");
  }
  size_t start = 0;
  size_t last_end = SIZE_MAX;
  while (start <= text.size()) {
    const int rc = pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                               PCRE2_NO_UTF_CHECK, handles.data, handles.context);
    if (rc == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (rc < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("regex on a text of ", text.size(), " bytes, from byte ", start, ": ", ErrorText(rc)));
    }
    const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(handles.data);
    const ByteRange match{found[0], found[1]};
    // An empty match right after the last match does not count; the search continues one character further,
    // otherwise it would not advance.
    if (match.begin == match.end && match.end == last_end) {
      start += start < text.size() ? Utf8Length(text[start]) : 1;
      continue;
    }
    matches->push_back(match);
    start = last_end = match.end;
  }
  return absl::OkStatus();
}

}  // namespace sluice
