// Parser: template source to syntax tree. Supports the subset that chat templates use: output, if, for (with
// else, condition, break, continue), set (also blocks and namespace attributes), macro, call, filter blocks,
// raw, generation; all of Jinja's expressions. All other tags (import, include, extends, block, ...) are
// UNIMPLEMENTED, named with their line.
//
// Thread safety: a pure function.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/text/jinja/ast.h"

namespace sluice::jinja {

absl::StatusOr<Block> Parse(std::string_view source);

}  // namespace sluice::jinja
