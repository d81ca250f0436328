// Parsers of calls whose arguments are written as a JSON object.
//
// Thread safety: thread-compatible; see call_parsers.h.
#pragma once

#include <memory>
#include <string>

#include "inferd/dialect/call_parsers.h"

namespace sluice {

// {"name", "arguments"} objects: one, or a list of them in brackets; then `close`, if it is there.
std::unique_ptr<CallParser> MakeObjectCalls(const std::string& close);
// The list above, or f{..}, or f[ARGS]{..}; with [CALL_ID]id between in some versions.
std::unique_ptr<CallParser> MakeMistralCalls();
// Between DeepSeek's marks, with or without a fenced block.
std::unique_ptr<CallParser> MakeDeepSeekCalls();

}  // namespace sluice
