// Render: renders a parsed template. Steps, output and recursion have limits, so no template and no
// conversation can hang or exhaust the server.
//
// Thread safety: Render is a pure function of its arguments; values in the context are not changed.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/text/jinja_parser.h"

namespace sluice::jinja {

struct RenderLimits {
  uint64_t steps = 2'000'000;  // statements and expressions evaluated
  uint64_t output_bytes = 32ull << 20;
  int depth = 200;  // nested macro calls and expressions
};

// `variables` are the template's globals; `now` is the time that strftime_now() prints (in UTC).
// INVALID_ARGUMENT: the template raised (its message is passed on) or misused a value, with the line;
// UNIMPLEMENTED: a missing filter, test, function or method, named; RESOURCE_EXHAUSTED: a limit, named.
absl::StatusOr<String> Render(const Block& block, const Names& variables, absl::Time now,
                              const RenderLimits& limits = {});

}  // namespace sluice::jinja
