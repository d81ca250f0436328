// Methods of strings of the template language, and formatting, with Python's meaning: positions and lengths
// count characters, not bytes.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/text/jinja_value.h"
#include "common/text/unicode.h"

namespace sluice::jinja {

int64_t CharacterCount(std::string_view text);
// Returns the byte at which character `index` begins; the text's size behind its last character.
size_t ByteOfCharacter(std::string_view text, int64_t index);

// Calls text.method(arguments). UNIMPLEMENTED for a method that is missing here.
absl::StatusOr<Value> CallString(const String& text, const std::string& method, const Arguments& arguments);

// Implements strip(): removes from both ends the characters in `characters`, or white space if it is null.
String Strip(const String& text, const String* characters, bool left = true, bool right = true);
String ChangeCase(const String& text, LetterCase letter_case);
// Upper case for the first character, lower case for the others.
String Capitalize(const String& text);

// Implements `format % operand`.
absl::StatusOr<String> FormatPercent(const String& format, const Value& operand);
// Implements format.format(arguments).
absl::StatusOr<String> FormatBraces(const String& format, const Arguments& arguments);
// Pads to `width` characters with blanks, with Python's choice of the longer side.
String Center(const String& text, int64_t width, const String& fill);

}  // namespace sluice::jinja
