// State of a model's files, compared without reading their contents.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <string>

namespace sluice::cli {

// The names, sizes and times of change of a folder's files, or of a GGUF file and the others of a split one.
// Empty if there are none.
std::string ModelState(const std::string& model);

}  // namespace sluice::cli
