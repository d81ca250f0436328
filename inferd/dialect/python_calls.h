// Calls that are written as Python: [f(a="x", b=1), g()]. Only literals are understood.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

// The number of bytes up to the end of the list that `text` begins with, npos: it does not end there.
size_t PythonListEnd(std::string_view text);

// The calls' names, and their arguments as a JSON object. None unless all of `text` is a list of calls with
// keyword arguments.
std::optional<std::vector<std::pair<std::string, std::string>>> ParsePythonCalls(std::string_view text);

}  // namespace sluice
