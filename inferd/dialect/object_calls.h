// Parsers of calls with JSON object arguments.
//
// Thread safety: thread-compatible; see call_parsers.h.
#pragma once

#include <memory>
#include <string>

#include "inferd/dialect/call_parsers.h"

namespace sluice::inferd {

// {"name", "arguments"} objects: one, or a list in brackets; then an optional `close`.
std::unique_ptr<CallParser> MakeObjectCalls(const std::string& close);
// Mistral: the list above, or f{..}, or f[ARGS]{..}; with [CALL_ID]id between in some versions.
std::unique_ptr<CallParser> MakeMistralCalls();
// DeepSeek: its own marks, with or without a fenced block.
std::unique_ptr<CallParser> MakeDeepSeekCalls();

}  // namespace sluice::inferd
