// How a family writes the call of a tool, in pieces between which a grammar puts a name and a JSON object;
// and where what it writes is the answer's text.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <string>

#include "inferd/dialect/dialect.h"

namespace sluice {

// before_name NAME before_arguments OBJECT end
struct CallForm {
  ToolStyle style = ToolStyle::kHermes;  // whose parser reads it
  std::string before_name;
  std::string before_arguments;
  std::string end;      // may be empty
  bool quoted = false;  // the name stands in a JSON string
};

// Families whose arguments are not JSON, and models that know no tools, are given Hermes' form.
CallForm CallFormOf(ToolStyle style);

// What stands before an answer's text; "" for all but families of channels.
std::string TextOpening(ToolStyle style);

}  // namespace sluice
