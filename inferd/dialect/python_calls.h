// Parser of calls in Python syntax: [f(a="x", b=1), g()]. Only literals are supported.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::inferd {

// Number of bytes up to the end of the list at the front of `text`; npos: the end is not there yet.
size_t PythonListEnd(std::string_view text);

// Names of the calls, and their arguments as JSON objects. None unless all of `text` is a list of calls with
// keyword arguments.
std::optional<std::vector<std::pair<std::string, std::string>>> ParsePythonCalls(std::string_view text);

}  // namespace sluice::inferd
