// AddGlobals: the functions that every template can call: raise_exception, namespace, dict, range,
// strftime_now.
//
// Thread safety: a pure function.
#pragma once

#include "absl/time/time.h"
#include "common/text/jinja/value.h"

namespace sluice::jinja {

// `now` is the time that strftime_now() prints, in UTC.
void AddGlobals(absl::Time now, Map* globals);

}  // namespace sluice::jinja
